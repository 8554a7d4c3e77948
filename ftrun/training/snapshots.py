"""A worker's snapshots: it copies the state at a boundary, and a thread has the copy written.

The training thread copies the state into memory that it shares with a process (snapshots/), and
continues. The background thread does the rest (snapshot_writing.py).

If the replica has several workers, they agree in a step's vote that all copy at the boundary that
follows (core/worker/snapshots.py); each copies its own part. When the replica leaves at a boundary,
no vote follows, so the lead sends the others whether there is a last snapshot.

Not here: when one is due and who writes (core/worker/snapshots.py), how (snapshots/writer.py), how
a job resumes from one (resuming.py).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ftrun.base import clock
from ftrun.base.errors import FtrunError, PeerError
from ftrun.base.words import amount
from ftrun.checkpoint.format import pack
from ftrun.checkpoint.leaves import Leaf
from ftrun.checkpoint.meshes import chunk_of
from ftrun.core.worker.snapshots import Decision, PartSchedule, SkipNotices, SnapshotSchedule
from ftrun.snapshots import directory
from ftrun.snapshots.manifest import AWAITS
from ftrun.snapshots.memory import offsets_of
from ftrun.training.engine import Engine
from ftrun.training.resuming import Resuming
from ftrun.training.snapshot_meeting import END, Meeting
from ftrun.training.snapshot_writing import Copied, SnapshotWriting

log = logging.getLogger(__name__)

UNAGREED_MAX = 8
TAKES, TAKES_NONE = "takes", "none"


class Snapshots:
    """Takes the snapshots of one worker's replica.

    Args:
        engine: of this worker; the ``snapshot_dir`` of its context is not empty.
        resuming: where the job has begun.

    Attributes:
        position: returns the script's place at the boundary, for a script that cannot derive it
            from its state.
        copy_s, held_s: how long the last copy took, and how long the training thread was stopped
            for it.
    """

    def __init__(self, engine: Engine, resuming: Resuming) -> None:
        context = engine.context
        self.position: Callable[[], str] = str
        self.copy_s = self.held_s = 0.0
        self._context = context
        self._directory = Path(context.snapshot_dir)
        self._machine, self._in_flight = engine.machine, engine.in_flight
        self._healing, self._progress = engine.healing, engine.progress
        self._resuming = resuming
        self._schedule: SnapshotSchedule | PartSchedule | None = None
        self._lock = threading.Condition()  # guards the schedule
        self._meeting = Meeting(context) if context.workers_per_replica > 1 else None
        self._writing = SnapshotWriting(context, self._meeting)
        self._chunks: dict[str, tuple[int, ...] | None] = {}
        self._has_told = False
        self._skips = SkipNotices()
        self._taken_at = -1
        self._unagreed: deque[tuple[int, str]] = deque(maxlen=UNAGREED_MAX)  # steps and paths

    # ------------------------------------------------------------ the training thread

    def at_boundary(self) -> None:
        """A step begins, with a whole state, at which replicas may join."""
        with self._lock:
            now = clock.now()
            if self._schedule is None:
                self._schedule = self._make_schedule(now)
            step = self._machine.state.step
            decision = self._schedule.at_boundary(self._in_flight.rank == 0, now, step)
        if decision is not Decision.NOTHING:
            self._carry_out(decision)
        if self._unagreed and self._unagreed[0][0] <= self._progress.agreed_step:
            path, at = self._unagreed.popleft()[1], self._progress.agreed_step
            self._writing.hand(lambda: self._writing.agree(path, at))

    def _make_schedule(self, now: float) -> SnapshotSchedule | PartSchedule:
        every_s = self._context.snapshot_every_s
        if not self._is_lead:
            return PartSchedule(every_s, now)
        is_late = self._machine.state.step > self._resuming.first_step + 1
        is_several = self._meeting is not None
        return SnapshotSchedule(every_s, now, is_late=is_late, is_several=is_several)

    @property
    def _is_lead(self) -> bool:
        return self._context.group_rank == 0

    def ballot(self) -> bool:
        """This worker's bit in a step's vote: whether all shall copy at the boundary that
        follows."""
        with self._lock:
            return self._schedule is not None and self._schedule.ballot(clock.now())

    def voted(self, agreed: bool, *, committed: bool) -> None:
        """The step's vote has ended."""
        with self._lock:
            if self._schedule is not None:
                self._schedule.voted(agreed, self._machine.state.step, committed=committed)

    def at_end(self) -> None:
        """The replica leaves at a boundary: take a last snapshot, and wait until it is written.

        This may take half of the launcher's grace period. The rest is for what the script itself
        saves.
        """
        machine, deadline = self._machine, clock.now() + self._context.grace_s / 2
        has_state = self._schedule is not None and not (machine.heal.torn or machine.healing)
        is_new = has_state and self._await_idle(deadline) and self._taken_at != machine.state.step
        takes = is_new and self._takes_last(deadline)
        if self._meeting is not None and self._is_lead:
            self._tell_end(self._meeting, takes, deadline)
        if takes:
            self._take(is_last=True)
            if not self._await_idle(deadline):
                self._say(
                    f"the last snapshot, of step {machine.state.step}, was not written within half "
                    "of --grace: give it longer"
                )

    def _takes_last(self, deadline: float) -> bool:
        """Whether this replica takes a last snapshot: by the schedule, and by the lead's
        message."""
        schedule, step = self._schedule, self._machine.state.step
        assert schedule is not None
        if self._meeting is not None and not self._is_lead:
            try:
                if self._meeting.hear(step, END, deadline) != TAKES:
                    return False
            except PeerError as error:
                log.warning("no last snapshot: %s", error)
                return False
        with self._lock:
            return schedule.at_end(clock.now())

    def _tell_end(self, meeting: Meeting, takes: bool, deadline: float) -> None:
        try:
            meeting.tell(self._machine.state.step, END, TAKES if takes else TAKES_NONE, deadline)
        except PeerError as error:
            log.warning("no last snapshot: %s", error)

    def _await_idle(self, deadline: float) -> bool:
        schedule = self._schedule
        with self._lock:
            while schedule is not None and not schedule.is_idle:
                left_s = deadline - clock.now()
                if left_s <= 0:
                    return False
                self._lock.wait(left_s)
        return True

    def _carry_out(self, decision: Decision) -> None:
        if decision is Decision.LOOK:
            self._writing.hand(self._look)
            self._writing.hand(self._writing.warm)
        elif decision is Decision.WARM:
            self._writing.hand(self._writing.warm)
        elif decision is Decision.PREPARE:
            self._prepare()
        elif decision is Decision.TAKE:
            self._take()
        elif decision is Decision.SKIP:
            assert self._schedule is not None
            with self._lock:
                is_told = self._skips.skipped(self._schedule.counts.skipped)
            if is_told:
                self._say_skipped(self._schedule.is_writing)
            self._show()
        else:
            self._writing.abandon()  # the background thread reports it

    def _say_skipped(self, is_writing: bool) -> None:
        """Report that a snapshot is skipped. Further ones are not reported until one is written."""
        step = self._machine.position
        if is_writing:
            self._say(
                f"snapshots are skipped from step {step} on, because the one before is still being "
                "written. Give --snapshot-every a longer time, or --snapshot a faster disk. A "
                "later line reports when one is written again"
            )
            return
        others = "" if self._meeting is None else ", or another worker of this replica,"
        self._say(
            f"no snapshot at step {step} yet: the process that writes, or the directory{others} is "
            "not ready. It is taken when that is ready, and a later line reports it"
        )

    def _prepare(self) -> None:
        try:
            leaves = pack(self._healing.tree()).leaves
            sizes = [leaf.spec.nbytes for leaf in leaves]
            self._chunks_of(leaves)
        except Exception as error:  # noqa: BLE001
            sizes = []  # the script's own functions may fail: the snapshot itself will report it
            log.debug("the size of the state is not known yet: %s", error)
        nbytes = offsets_of(sizes)[1]
        self._writing.hand(lambda: self._touch(nbytes))

    def _take(self, *, is_last: bool = False) -> None:
        try:
            copied = self._copy(None if is_last else self._awaits())
        except Exception as error:  # noqa: BLE001
            # The script's own functions, or no memory: training continues without this snapshot.
            step = self._machine.state.step
            self._failed(step, error)
            if self._meeting is not None:
                words = str(error)
                self._writing.hand(lambda: self._writing.give_up(step, words))
            return
        self._taken_at = copied.state.step
        self._writing.hand(lambda: self._write(copied))

    def _copy(self, agreed: int | None) -> Copied:
        began = clock.now()
        packed = pack(self._healing.tree())
        offsets, nbytes = offsets_of([leaf.spec.nbytes for leaf in packed.leaves])
        memory = self._writing.memory
        memory.reserve(max(1, nbytes))
        chunks = self._chunks_of(packed.leaves)
        copying = clock.now()
        memory.fill(packed.leaves, offsets, torch.get_num_threads())
        self.copy_s = clock.now() - copying
        specs = tuple(leaf.spec for leaf in packed.leaves)
        self.held_s = clock.now() - began
        return Copied(
            self._machine.state,
            self.position(),
            packed.structure,
            specs,
            chunks,
            offsets,
            nbytes,
            self.held_s,
            agreed,
        )

    def _awaits(self) -> int | None:
        """``agreed`` for the manifest: AWAITS if the replicas' parameters will be compared.

        A last snapshot is not compared: the job ends, and must not lose what it has trained.
        """
        quorum = self._machine.in_force
        is_one = quorum is None or len(quorum.members) == 1
        return None if is_one or not self._progress.agreed_step else AWAITS

    def _chunks_of(self, leaves: Sequence[Leaf]) -> list[tuple[int, ...] | None]:
        """The offsets of the local parts of DTensors. Each kind is computed once."""
        found = []
        for leaf in leaves:
            mesh = leaf.spec.mesh
            if mesh and mesh not in self._chunks:
                self._chunks[mesh] = chunk_of(leaf.value)
            found.append(self._chunks[mesh] if mesh else None)
        return found

    def close(self) -> None:
        """End the thread and the process. A snapshot under way is given up: its draft stays."""
        self._writing.close()

    # ------------------------------------------------------------ the background thread

    def _look(self) -> None:
        """Look up the age of the newest snapshot."""
        age_s: float | None = None
        try:
            age_s = directory.age_s(self._directory)
        except (OSError, FtrunError) as error:
            log.warning("snapshots in %s: %s", self._directory, error)
        with self._lock:
            assert isinstance(self._schedule, SnapshotSchedule), "only a lead looks"
            self._schedule.looked(age_s, clock.now())
            self._lock.notify_all()

    def _touch(self, nbytes: int) -> None:
        try:
            memory = self._writing.memory
            memory.reserve(max(1, nbytes))
            memory.touch()
        except (OSError, ValueError) as error:
            log.warning("no memory for snapshots yet (%s bytes): %s", nbytes, error)
        with self._lock:
            assert self._schedule is not None
            self._schedule.prepared()
            self._lock.notify_all()

    def _write(self, copied: Copied) -> None:
        step, schedule = copied.state.step, self._schedule
        assert schedule is not None
        try:
            answer = self._writing.write(copied, schedule.limit_s, self._resuming.form)
        except (OSError, FtrunError, ValueError) as error:
            if not self._writing.is_closing:
                self._failed(step, error)
            return
        with self._lock:
            schedule.written()
            schedule.counts.failed += len(answer.get("given_up", ()))
            goes_on = self._skips.written()
            self._lock.notify_all()
        if not self._is_lead:
            return
        if copied.agreed is not None:
            self._unagreed.append((step, answer["path"]))
        for other in answer["given_up"]:
            self._say(
                f"the snapshot of step {other} is incomplete, because a worker that wrote it died. "
                f"That of step {step} is complete"
            )
        self._show(snapshot_step=step, snapshot_held_ms=1000 * copied.held_s)
        if goes_on and self._has_told:
            self._say(
                f"snapshots are written again: that of step {step}; {schedule.counts.skipped} were "
                "skipped so far"
            )
        if not self._has_told:
            self._has_told = True
            self._say(
                f"wrote the snapshot of step {step} to {answer['path']}: "
                f"{amount(answer['nbytes'])} in {answer['duration_s']:.1f} s; the training "
                f"thread was held for {1000 * copied.held_s:.0f} ms"
            )

    def _failed(self, step: int, error: Exception) -> None:
        with self._lock:
            assert self._schedule is not None
            self._schedule.failed()
            self._taken_at = -1
            self._lock.notify_all()
        if not self._is_lead:
            log.debug("no part of the snapshot of step %s: %s", step, error)
            return  # the lead's message decides
        self._show()
        self._say(
            f"the snapshot of step {step} was not written: {error}. Training continues; the next "
            f"one is due in {self._context.snapshot_every_s:g} s or less"
        )

    def _show(self, **more: float) -> None:
        """Update the counts in ``ftrun status`` and the metrics."""
        assert self._schedule is not None
        counts = self._schedule.counts
        self._progress.show(
            snapshots_written=counts.written,
            snapshots_skipped=counts.skipped,
            snapshots_failed=counts.failed,
            **more,
        )

    def _say(self, text: str) -> None:
        print(f"ftrun: {text}", file=sys.__stderr__, flush=True)
