"""A worker's snapshots: the copy at a boundary, and a thread that has it written.

The training thread copies the state into memory that it shares with a process (snapshots/), and
goes on. All else is the background thread's: it looks what is there, starts that process, sends it
the order and waits for the answer. So a slow disk, a full one and a dead writer cost no step.

Not here: when one is due and who writes (core/worker/snapshots.py), how (snapshots/writer.py), how
a job goes on from one (resuming.py).
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch

from ftrun import clock
from ftrun.checkpoint.format import pack
from ftrun.core.ids import StateId
from ftrun.core.worker.machine import StepMachine
from ftrun.core.worker.snapshots import Decision, SnapshotSchedule
from ftrun.errors import FtrunError
from ftrun.logs.units import bytes_words
from ftrun.snapshots import directory
from ftrun.snapshots.memory import SharedMemory, offsets_of
from ftrun.training.context import WorkerContext
from ftrun.training.healing import OWN, USER, Healing
from ftrun.training.in_flight import InFlight
from ftrun.training.progress import WorkerProgress
from ftrun.training.resuming import Resuming

log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 24 * 3600.0
"""The schedule abandons a write long before."""
END_TIMEOUT_S = 2.0
TASKS_MAX = 16


@dataclass(frozen=True, slots=True)
class _Copied:
    """A state in shared memory. ``held_s``: how long the training thread was held."""

    state: StateId
    position: str
    structure: Any
    specs: tuple[Any, ...]
    offsets: list[int]
    nbytes: int
    held_s: float


class Snapshots:
    """Takes the snapshots of one worker's replica.

    Args:
        context: of this worker; its ``snapshot_dir`` is not empty.
        in_flight: knows this replica's place among the contributors to the step under way.
        resuming: where the job has begun.

    Attributes:
        position: the script's place at the boundary, for one that cannot tell by its state.
        copy_s, held_s: the last copy's time, and how long the training thread was held for it.
    """

    def __init__(
        self,
        context: WorkerContext,
        machine: StepMachine,
        healing: Healing,
        progress: WorkerProgress,
        in_flight: InFlight,
        resuming: Resuming,
    ) -> None:
        self.position: Callable[[], str] = str
        self.copy_s = self.held_s = 0.0
        self._context = context
        self._directory = Path(context.snapshot_dir)
        self._machine = machine
        self._healing = healing
        self._progress = progress
        self._in_flight = in_flight
        self._resuming = resuming
        self._schedule: SnapshotSchedule | None = None
        self._lock = threading.Condition()  # guards the schedule
        self._memory: SharedMemory | None = None
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue(TASKS_MAX)
        self._thread: threading.Thread | None = None
        self._writer: Any = None
        self._is_closing = threading.Event()
        self._has_told = False
        self._taken_at = -1

    # ------------------------------------------------------------ the training thread

    def at_boundary(self) -> None:
        """A step begins whose state is whole, and at which replicas may join."""
        with self._lock:
            now = clock.now()
            if self._schedule is None:
                is_late = self._machine.state.step > self._resuming.first_step + 1
                every_s = self._context.snapshot_every_s
                self._schedule = SnapshotSchedule(every_s, now, is_late=is_late)
            decision = self._schedule.at_boundary(self._in_flight.rank == 0, now)
        if decision is not Decision.NOTHING:
            self._carry_out(decision)

    def at_end(self) -> None:
        """This replica leaves at a boundary: take a last one, and wait until it is written.

        Half of the launcher's grace is for that, the rest for what the script saves itself.
        """
        machine, deadline = self._machine, clock.now() + self._context.grace_s / 2
        if self._schedule is None or machine.torn or machine.healing:
            return
        if not self._await_idle(deadline) or self._taken_at == machine.state.step:
            return
        with self._lock:
            takes = self._schedule.at_end(clock.now())
        if takes:
            self._take()
            if not self._await_idle(deadline):
                self._say(
                    f"the last snapshot, of step {machine.state.step}, was not written within half "
                    "of --grace: give it longer"
                )

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
            self._hand(self._look)
            self._hand(self._warm)
        elif decision is Decision.PREPARE:
            self._prepare()
        elif decision is Decision.TAKE:
            self._take()
        elif decision is Decision.SKIP:
            assert self._schedule is not None
            is_writing = self._schedule.is_writing
            what = "one before is still being written" if is_writing else "directory is slow"
            self._say(
                f"the snapshot of step {self._machine.position} is left out, because the {what}. "
                "Give --snapshot-every a longer time, or --snapshot a faster disk"
            )
            self._show()
        elif self._writer is not None:
            self._writer.kill()  # the background thread reports it

    def _prepare(self) -> None:
        try:
            sizes = [leaf.spec.nbytes for leaf in pack(self._healing.tree()).leaves]
        except Exception as error:  # noqa: BLE001
            sizes = []  # the script's own functions: the snapshot itself will tell
            log.debug("the size of the state is not known yet: %s", error)
        nbytes = offsets_of(sizes)[1]
        self._hand(lambda: self._touch(nbytes))

    def _take(self) -> None:
        try:
            copied = self._copy()
        except Exception as error:  # noqa: BLE001
            # The script's own functions, or no memory: training goes on without this snapshot.
            self._failed(self._machine.position, error)
            return
        self._taken_at = copied.state.step
        self._hand(lambda: self._write(copied))

    def _copy(self) -> _Copied:
        began = clock.now()
        packed = pack(self._healing.tree())
        offsets, nbytes = offsets_of([leaf.spec.nbytes for leaf in packed.leaves])
        memory = self._shared()
        memory.reserve(max(1, nbytes))
        copying = clock.now()
        memory.fill(packed.leaves, offsets, torch.get_num_threads())
        self.copy_s = clock.now() - copying
        specs = tuple(leaf.spec for leaf in packed.leaves)
        self.held_s = clock.now() - began
        return _Copied(
            self._machine.state,
            self.position(),
            packed.structure,
            specs,
            offsets,
            nbytes,
            self.held_s,
        )

    def _hand(self, task: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ftrun-snapshot", daemon=True)
            self._thread.start()
        self._tasks.put_nowait(task)

    def close(self) -> None:
        """End the thread and the process. A snapshot under way is given up: its draft stays."""
        self._is_closing.set()
        if self._thread is not None:
            if self._writer is not None:
                self._writer.kill()
            self._tasks.put_nowait(None)
            self._thread.join(END_TIMEOUT_S)

    # ------------------------------------------------------------ the background thread

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None and not self._is_closing.is_set():
            task()
        if self._writer is not None:
            self._writer.close()

    def _look(self) -> None:
        """See how old the newest snapshot is."""
        age_s: float | None = None
        try:
            age_s = directory.age_s(self._directory)
        except (OSError, FtrunError) as error:
            log.warning("snapshots in %s: %s", self._directory, error)
        with self._lock:
            assert self._schedule is not None
            self._schedule.looked(age_s, clock.now())
            self._lock.notify_all()

    def _warm(self) -> None:
        """Start the writer's process, which loads torch for some seconds, before it is needed."""
        try:
            self._start_writer()
        except (OSError, FtrunError) as error:
            log.warning("snapshots: %s. It is tried again with the next one", error)

    def _touch(self, nbytes: int) -> None:
        try:
            memory = self._shared()
            memory.reserve(max(1, nbytes))
            memory.touch()
        except (OSError, ValueError) as error:
            log.warning("no memory for snapshots yet (%s bytes): %s", nbytes, error)
        with self._lock:
            assert self._schedule is not None
            self._schedule.prepared()
            self._lock.notify_all()

    def _start_writer(self) -> Any:
        from ftrun.snapshots.process import WriterProcess  # only the writer's replica needs it

        if self._writer is None:
            self._writer = WriterProcess(self._shared())
        return self._writer

    def _shared(self) -> SharedMemory:
        """The memory that the writer's process has too. From both threads."""
        with self._lock:
            if self._memory is None:
                self._memory = SharedMemory()
            return self._memory

    def _write(self, copied: _Copied) -> None:
        step = copied.state.step
        try:
            answer = self._start_writer().write(self._order(copied), WRITE_TIMEOUT_S)
        except (OSError, FtrunError, ValueError) as error:
            self._end_writer_if_dead()
            if not self._is_closing.is_set():
                self._failed(step, error)
            return
        with self._lock:
            assert self._schedule is not None
            self._schedule.written()
            self._lock.notify_all()
        self._show(snapshot_step=step, snapshot_held_ms=1000 * copied.held_s)
        if not self._has_told:
            self._has_told = True
            self._say(
                f"wrote the snapshot of step {step} to {answer['path']}: "
                f"{bytes_words(answer['nbytes'])} in {answer['duration_s']:.1f} s; the training "
                f"thread was held for {1000 * copied.held_s:.0f} ms"
            )

    def _end_writer_if_dead(self) -> None:
        """A process that has ended is reaped at once; the next snapshot starts another."""
        if self._writer is not None and not self._writer.lives:
            self._writer.close()
            self._writer = None

    def _order(self, copied: _Copied) -> dict[str, Any]:
        here = self._context
        return {
            "directory": str(self._directory),
            "keep": here.snapshot_keep,
            "writer": here.key.incarnation[:16],
            "step": copied.state.step,
            "lineage": copied.state.lineage,
            "position": copied.position,
            "origin": {
                "script": here.script,
                "inject": here.inject,
                "workers_per_replica": here.workers_per_replica,
                "replicas": here.replicas,
                "job_id": here.job_id,
            },
            "structure": copied.structure,
            "specs": [astuple(spec) for spec in copied.specs],
            "offsets": copied.offsets,
            "nbytes": max(1, copied.nbytes),
            "user_key": USER,
            "own_key": OWN,
        }

    def _failed(self, step: int, error: Exception) -> None:
        with self._lock:
            assert self._schedule is not None
            self._schedule.failed()
            self._taken_at = -1
            self._lock.notify_all()
        self._show()
        self._say(
            f"the snapshot of step {step} was not written: {error}. Training goes on; the next one "
            f"is due in {self._context.snapshot_every_s:g} s or less"
        )

    def _show(self, **more: float) -> None:
        """Count in ``ftrun status`` and the metrics."""
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
