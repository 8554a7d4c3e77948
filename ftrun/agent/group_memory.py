"""The memory snapshots of the groups that run here: allocate, watch, report and free them.

Not here: the memory itself (snapshots/group_memory.py), the decisions that use it
(core/agent/replacing.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

from ftrun.agent.at_risk import AtRisk, Stored
from ftrun.agent.group_disk import GroupDisk
from ftrun.base import clock
from ftrun.base.errors import FtrunError
from ftrun.base.free_memory import LEFT_SHARE, free_bytes
from ftrun.base.words import amount
from ftrun.config.forms import (
    leaves_state,
    misses_memory_snapshots,
    sees_gpus,
    why_no_memory_snapshots,
)
from ftrun.config.layers import DEFAULT
from ftrun.config.settings import RunSettings
from ftrun.core.activity import Activity
from ftrun.core.agent.events import BoardSeen, Kept
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import Progress, Resumption
from ftrun.core.replay.alike import Unlike
from ftrun.core.replay.copying import EVERY_S
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import begin, common
from ftrun.snapshots import directory
from ftrun.snapshots.area import NONE
from ftrun.snapshots.board import PRINTED, Word
from ftrun.snapshots.group_memory import LEFT, RESULTS_SHARE, GroupMemory

SHARE = 0.5
"""The areas take at most this share of the memory that is free when a group starts."""
LEAST_BYTES = 64 << 20
"""The smallest useful area. If an area would be smaller, no memory snapshots are taken."""
OWN_SHARE = 0.1
"""The share of the memory that is free when a worker starts. The memory that workers keep for their
successors without memory snapshots (``own_bytes``) takes no more.
"""
LOOK_EVERY_S, CALM_EVERY_S = 0.25, 1.0
"""How often a group is examined. ``LOOK_EVERY_S`` holds at its start, while memory may become
scarce, and where snapshots go to a disk. Otherwise ``CALM_EVERY_S`` is enough: the lighthouse gets
a report each second.
"""
CALM_AFTER_S = 10.0
ROOMY_BYTES = 4 << 30
"""With this much free beyond ``LEFT_SHARE``, memory does not become scarce within a second."""
SNAPSHOT_STEP = "snapshot_step"
"""The scalar of a worker that has written a snapshot (training/snapshots.py)."""
UNTRIED = " With NCCL this has not run on a GPU so far (docs/GPU.md)."


class MemorySnapshots:
    """The memory snapshots by incarnation. ``tell``: prints a line on the terminal.

    All methods run in the event loop's thread.

    Attributes:
        disk: writes the snapshots to a disk too; None: there is no disk.
        on_progress: called with a group's progress, and with the steps that a loss would cost it.
        on_unlike: called with an incarnation whose workers should hold the same parameters and do
            not.
        on_manager: called once if the script makes a Manager and no option asks for memory
            snapshots. From then on none are taken.
        on_over: called when a process has ended well, while its words can still be read.
        is_left_only: no snapshots are taken. A worker writes its state there before all replicas
            begin again (core/agent/together.py).
        elsewhere, on_disk: the newest state of a group on another node, by incarnation, and the
            newest one in ``--snapshot``. The code that stores a state sets these.
    """

    def __init__(
        self, settings: RunSettings, runtime_dir: Path, tell: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, GroupMemory] = {}
        self._at_risk: dict[str, AtRisk] = {}
        self._told: set[str] = set()
        self._who = "all workers" if settings.replicas == 1 else "its replica"
        self._otherwise = f"A death restarts {self._who}."
        self.on_progress: Callable[[WorkerKey, Progress], None] = lambda key, progress: None
        self.on_manager: Callable[[], None] = lambda: None
        self.on_unlike: Callable[[str, Unlike], None] = lambda incarnation, found: None
        self.on_over: Callable[[], None] = lambda: None
        self.is_left_only = leaves_state(settings)
        self._is_asked = settings.sources.get("memory_snapshots", DEFAULT) != DEFAULT
        self._has_manager = False
        self._left: dict[str, tuple[int, GroupMemory]] = {}  # by replica, and from which step
        self._over: set[str] = set()  # replicas that are not started here any more
        self._replica_of: dict[str, str] = {}
        self._shared: tuple[int, str, GroupMemory] | None = None  # a step, whose it is
        self._sharing: set[str] = set()  # the incarnations that were there then
        self.elsewhere: dict[str, Stored] = {}
        self.on_disk: Stored | None = None
        self._ended: tuple[str, GroupMemory] | None = None
        self.disk: GroupDisk | None = None
        if settings.snapshot_path is not None and not settings.spans:
            self._write_to(GroupDisk(settings, runtime_dir, tell))

    def _write_to(self, disk: GroupDisk) -> None:
        if not why_no_memory_snapshots(self._settings):
            self.disk = disk
            disk.on_whole = self._is_on_disk

    def _is_on_disk(self, step: int) -> None:
        self.on_disk = Stored(step, clock.now())

    async def fill(self, replica_id: str, incarnation: str, sound_until: float) -> None:
        """Allocate a group's memory, and read the newest snapshot on the disk into it, if there is
        one.

        Raises:
            OSError, FtrunError: as GroupDisk.fill.
        """
        self.make(replica_id, incarnation, sound_until)
        if self.disk is None:
            return
        try:
            step = await self.disk.fill(self.of(incarnation), replica_id, incarnation)
        except (OSError, FtrunError):
            self.free(incarnation)
            self._forget_ended()
            raise
        if step != NONE:
            self.begins_from(incarnation, step)

    def begins_from(self, incarnation: str, step: int) -> None:
        """This node's workers have a snapshot's states in memory, and resume from ``step``."""
        known = self._known[incarnation]
        self._begin_at(known, step)
        for rank in known.here:
            known.board.set(rank, Word.STARTS, 1)  # each process succeeds another one
            known.board.set(rank, Word.NEWEST, step)
            known.board.set(rank, Word.REACHED, step)

    def make(self, replica_id: str, incarnation: str, sound_until: float = NONE) -> None:
        """Allocate memory for a new incarnation, if memory snapshots are taken.

        ``sound_until``: the incarnation may resume from states of earlier incarnations up to this
        step.
        """
        if why_no_memory_snapshots(self._settings):
            if why := misses_memory_snapshots(self._settings):
                self._tell_once("off", f"No memory snapshots: {why}. {self._otherwise}")
            if not self.is_left_only:
                return
        if incarnation in self._known or self._has_manager:
            return
        self._forget_ended()
        self._replica_of[incarnation] = replica_id
        self._over.discard(replica_id)
        shared = inf if self._shared is None else self._shared[0]
        self._keep_left(replica_id, min(sound_until, shared))
        ranks, here = self._settings.workers_per_replica, self._settings.ranks_here
        several = self._settings.replicas > 1 and not self.is_left_only
        areas = len(here) * (2 if self._settings.spans else 1)  # also another node's copies
        areas *= self._settings.replicas
        free, of_results = free_bytes(), 1 / RESULTS_SHARE * several
        each = int(free * SHARE / (areas * (1 + of_results))) // 4096 * 4096
        why = f"{amount(free)} of memory are free" if each < LEAST_BYTES else ""
        if not why:
            try:
                self._known[incarnation] = GroupMemory.make(ranks, each, here, has_results=several)
            except OSError as error:
                why = error.strerror or str(error)
        if self.is_left_only:
            return
        if why:
            disk = " No snapshot is written to a disk." if self.disk is not None else ""
            text = f"No memory snapshots: {why}. {self._otherwise}{disk}"
            self._tell_once("off", text)
        else:
            self._known[incarnation].board.room = free_bytes(left=LEFT_SHARE)
            self._at_risk[incarnation] = AtRisk(self._known[incarnation], clock.now())
            key = WorkerKey(replica_id, incarnation, 0)
            self._loop.call_later(LOOK_EVERY_S, self._look, key)

    def of(self, incarnation: str) -> GroupMemory | None:
        """The memory of an incarnation; None if it has none."""
        return self._known.get(incarnation)

    def last_of(self, incarnation: str) -> GroupMemory | None:
        """As ``of``, but also finds the incarnation that ended last, until another begins."""
        ended = dict(() if self._ended is None else [self._ended])
        return self._known.get(incarnation) or ended.get(incarnation)

    def starts(self, incarnation: str, rank: int) -> str:
        """A process is about to start as this rank. Return the value of its variable, or ""."""
        known = self._known.get(incarnation)
        if known is None:
            return ""
        known.board.set(rank, Word.STARTS, known.board.read(rank, Word.STARTS) + 1)
        known.board.set(rank, Word.SAID_AT, 0)
        others = () if self.is_left_only else (x for x in self._known.values() if x is not known)
        replica_id = self._replica_of[incarnation]
        step, left = self._left.get(replica_id, (NONE, None))
        places = [x.place for x in (known, *others)]
        if self._shared is not None and not (left and self._is_like_shared(step, left)):
            step, replica_id, left = self._shared
        if left is not None:
            places.append(f"{step}{LEFT}{replica_id}{LEFT}{left.place}")
        return " ".join(places)

    def _is_like_shared(self, step: int, left: GroupMemory) -> bool:
        """Whether a replica's own state of a step is as good as the one that is shared. Where steps
        since its place are made again, all make the same ones."""
        assert self._shared is not None, "it is asked for where one is"
        of_step, _, shared = self._shared
        is_like = not self.is_left_only or _numbers(left, step) == _numbers(shared, step)
        return step == of_step and is_like

    def ended_well(self, incarnation: str, rank: int) -> None:
        """A process has exited well, perhaps without a message (os._exit): no rank waits for it."""
        known = self._known.get(incarnation)
        if known is not None:
            known.board.set(rank, Word.OVER, 1)
            self.on_over()

    def decree(self, incarnation: str, number: int, dead: int) -> None:
        """Raise the decree's number on the board, and wake the group. ``dead`` is not over."""
        known = self._known.get(incarnation)
        if known is not None:
            if dead >= 0:
                known.board.set(dead, Word.OVER, 0)
            known.board.make_decree(number, int(clock.now() * 1e9))

    def with_losses(self, incarnation: str, progress: Progress) -> Progress:
        """What one of several replicas reports, with what a loss would cost now."""
        settings, now = self._settings, clock.now()
        known = self._at_risk.get(incarnation) if settings.replicas > 1 else None
        if known is not None:
            return known.of_replicas(progress, now)
        is_here = settings.lighthouse is None and settings.nodes == 1
        if settings.replicas == 1 or settings.snapshot_path is None or not is_here:
            return progress
        if progress.phase in (Activity.STARTING, Activity.HEALING):
            return progress  # it has no state of the job so far
        written = int(dict(progress.scalars).get(SNAPSHOT_STEP, NONE))
        if self.on_disk is None:  # it began with that one, or with none
            self.on_disk = Stored(progress.step if written == NONE else written, now)
        elif written > self.on_disk.step:
            self.on_disk = Stored(written, now)
        job = self.on_disk.resumption(now)
        worker = Resumption(progress.step, 0.0)
        return replace(progress, worker_lost=worker, node_lost=job, job_lost=job)

    def stops(self, incarnation: str) -> None:
        """Workers are asked to stop. None that dies from now on is replaced."""
        known = self._known.get(incarnation)
        if known is not None:
            known.board.stop()

    def held(self) -> tuple[tuple[str, int, int], ...]:
        """The complete states outside the workers, each as (replica, step, place).

        The states of a replica are in memory. The replica "" means the disk, if several replicas
        write one snapshot together. ``place``: where the replica's workers go on from it.
        """
        on_disk = self._step_on_disk()
        found = {("", on_disk, on_disk)} if on_disk is not None else set[tuple[str, int, int]]()
        places = [(whose, known, {step}) for whose, (step, known) in self._left.items()]
        places += [(self._replica_of[x], y, _boundaries(y)) for x, y in self._known.items()]
        for whose, known, steps in places:
            for step in steps:
                numbers = _numbers(known, step) if self.is_left_only else {step}
                if len(numbers) == 1:
                    found.add((whose, step, numbers.pop()))
        return tuple(sorted(found))

    def share(self, replica_id: str, step: int) -> None:
        """All replicas start again together, from this replica's state of ``step``."""
        places = [(self._replica_of[x], known) for x, known in self._known.items()]
        places += [(whose, left) for whose, (_, left) in self._left.items()]
        found = next(x for whose, x in places if whose == replica_id and step in _boundaries(x))
        self._shared, self._sharing = (step, replica_id, found), {*self._known}

    def _step_on_disk(self) -> int | None:
        places = self._settings.snapshot_path, self._settings.resume_path
        for where in filter(None, places):
            with contextlib.suppress(OSError, FtrunError):  # then workers cannot read it either
                if (found := directory.look(where).newest) is not None:
                    return found.manifest.step
        return None

    def due(self, incarnation: str, word: int) -> None:
        """Set the steps at which all ranks take their states.

        Rank 0, on another node, has sent them.
        """
        known = self._known.get(incarnation)
        if known is not None:
            known.board.set(0, Word.DUE, word)

    def kept(self, incarnation: str, rank: int) -> Kept | None:
        """The data that a dying worker leaves; None if the script has no process group."""
        known = self._known.get(incarnation)
        if known is None or not any(done := known.board.all_done()):
            return None
        if self._is_its_own(known):
            return None
        board, area = known.board, known.area(rank)
        fall = next(filter(None, board.all(Word.FALL)), 0)
        found = area.generations()
        place = begin(found, area.logs(), done, rank, board.all(Word.FULL))
        if known.spans and found:  # the replacement decides, once all words have arrived
            place = max(found, key=lambda generation: generation.number)
        newest, reached = (board.read(rank, word) for word in (Word.NEWEST, Word.REACHED))
        set_up_s = board.read(rank, Word.SET_UP) / 1e9
        written = Fall(fall) if fall else None
        return Kept(written or place, newest, reached, set_up_s, board.why, written)

    def seen(self, incarnation: str) -> BoardSeen | None:
        """The words of all ranks of an incarnation; None if it has no memory."""
        known = self._known.get(incarnation)
        if known is None:
            return None
        board = known.board
        words = tuple(board.all(Word.JOINED)), tuple(board.all(Word.FALL))
        areas = [known.area(rank) for rank in known.here]
        boundary = common(known.generations(), [x.logs() for x in areas])
        broken = tuple(board.all(Word.BROKEN))
        steps, calls = board.all(Word.REACHED), map(board.said, range(board.ranks))
        after = tuple(steps), tuple(calls)
        lost = tuple(board.all(Word.LOST))
        words_of = incarnation, board.look(), *words
        return BoardSeen(*words_of, boundary, broken, False, board.why, *after, lost=lost)

    def let_differ(self, incarnation: str) -> None:
        """The workers' parameters are not compared any more."""
        known = self._known.get(incarnation)
        if known is not None:
            known.board.let_differ()

    def rewind(self, incarnation: str, number: int, boundary: int) -> None:
        """Drop the states later than the step ``boundary``. No process of the group runs."""
        known = self._known[incarnation]
        self._begin_at(known, boundary)
        known.board.make_decree(number, int(clock.now() * 1e9))

    def _begin_at(self, known: GroupMemory, boundary: int) -> None:
        known.board.why = ""
        for rank in range(known.board.ranks):
            for word in (Word.FALL, Word.OVER, Word.FULL, *PRINTED):
                known.board.set(rank, word, 0)
        for rank in known.here:
            calls = known.area(rank).rewind(boundary, has_logs=not known.spans)
            known.board.rewind(rank, calls)
            if not known.board.read(rank, Word.STARTS):  # the state was loaded
                known.board.set(rank, Word.STARTS, 1)

    def free(self, incarnation: str) -> None:
        """Free an incarnation's memory; no process of the group runs any more.

        A state that may be the job's last one, or that the replica's next incarnation may resume
        from, is kept.
        """
        known = self._known.pop(incarnation, None)
        at_risk = self._at_risk.pop(incarnation, None)
        if known is not None and at_risk is not None and not self._is_its_own(known):
            at_risk.look(clock.now())  # a short job has ended before the first look
            self._tell_fall(at_risk, known)
        self.elsewhere.pop(incarnation, None)
        replica_id = self._replica_of.pop(incarnation, "")
        if known is None:
            return
        self._forget_ended()
        if self._settings.replicas == 1:
            self._ended = incarnation, known
        elif replica_id not in self._over and (step := _boundary(known)) is not None:
            self._drop_left(replica_id)
            self._left[replica_id] = step, known
        else:
            self._close(known)

    def drop(self, replica_id: str) -> None:
        """Drop the memory of a replica that does not start here again; "": what all have left."""
        if replica_id:
            self._over.add(replica_id)
            self._drop_left(replica_id)
            return
        for one in list(self._left):
            self._drop_left(one)
        self._shared = None

    def _keep_left(self, replica_id: str, sound_until: float) -> None:
        """The next incarnation begins: of the states that are left, keep the one it may resume
        from.
        """
        _, left = self._left.get(replica_id, (NONE, None))
        step = None if left is None else _boundary(left, sound_until)
        if left is None or step is None:
            self._drop_left(replica_id)
            return
        self._left[replica_id] = step, left
        for rank in left.here:
            left.area(rank).drop(but=step)
            if left.has_results:
                left.results(rank).drop()

    def _drop_left(self, replica_id: str) -> None:
        _, left = self._left.pop(replica_id, (NONE, None))
        if left is not None:
            self._close(left)

    def _close(self, memory: GroupMemory) -> None:
        if self._shared is not None and self._shared[2] is memory:
            self._shared = None
        memory.close()

    async def end(self) -> None:
        """The job ends: write a last snapshot, if there is a disk, and free all memory."""
        for incarnation in list(self._known):
            self.free(incarnation)
        if self.disk is not None:
            if self._ended is not None:
                incarnation, known = self._ended
                await self.disk.last(known, incarnation, self._settings.grace_s / 2)
            await self.disk.close()
        for replica_id in list(self._left):
            self._drop_left(replica_id)
        self._forget_ended()

    def _forget_ended(self) -> None:
        if self._ended is not None:
            self._ended[1].close()
            self._ended = None

    def _look(self, key: WorkerKey) -> None:
        """Report a group's progress, and print once what a worker's death costs from now on."""
        known, memory = self._at_risk.get(key.incarnation), self._known.get(key.incarnation)
        if known is None or memory is None:
            return
        if self._is_its_own(memory):
            self._has_manager = True
            for incarnation in list(self._known):
                self.free(incarnation)
            self.on_manager()
            return
        now, room = clock.now(), free_bytes(left=LEFT_SHARE)
        memory.board.room = room
        known.look(now)
        if known.newest is not None:  # the states of earlier incarnations are older
            self._drop_left(key.replica_id)
            if key.incarnation not in self._sharing:
                self._shared = None
        is_calm = known.newest is not None and known.age_s(now) >= CALM_AFTER_S
        is_calm &= self.disk is None and room >= ROOMY_BYTES
        self._loop.call_later(CALM_EVERY_S if is_calm else LOOK_EVERY_S, self._look, key)
        if (unlike := memory.unlike()) is not None:
            self.on_unlike(key.incarnation, unlike)
        if not self._tell_fall(known, memory) and known.newest is not None:
            where, costs = "this node", "costs no step"
            if memory.spans:
                where = f"each node, and every {EVERY_S:g} s on another one too"
                costs += ", a lost node those since its copy"
            if "on" not in self._told and (not memory.spans or key.incarnation in self.elsewhere):
                each = memory.held_bytes() // len(memory.here)
                untried = UNTRIED if sees_gpus(self._settings) else ""
                self._tell_once(
                    "on",
                    f"Memory snapshots are kept on {where} ({amount(each)} a worker so far, at "
                    f"most {amount(memory.worker_bytes)}). A lost worker {costs}.{untried}",
                )
            on_corruption = self._settings.sources.get("on_corruption", DEFAULT)
            if not (on_corruption.startswith(DEFAULT) or memory.has_mates()):
                text = f"{on_corruption} has no effect: no two workers hold the same parameters."
                self._tell_once("mates", text)
            # There is a gap also while a replacement catches up, although no result was too large.
            if known.has_gap and any(memory.board.all(Word.FULL)):
                logs = amount(memory.area(memory.here.start).log_room)
                then = f"takes all workers back to step {known.newest.step}"
                then = then if self._settings.replicas == 1 else f"restarts {self._who}"
                self._tell_once(
                    "full",
                    "Memory snapshots: the results of a step's collectives do not fit into its "
                    f"log ({logs} a worker). Until the next snapshot, a death {then}. Free memory "
                    "to get larger logs.",
                )
        if self.disk is not None:
            self.disk.look(memory, key.incarnation)
        if known.step and not memory.has_results:  # otherwise its Manager reports
            elsewhere = self.elsewhere.get(key.incarnation)
            scalars = () if self.disk is None else self.disk.scalars
            self.on_progress(key, known.progress(now, elsewhere, self.on_disk, scalars))

    def _tell_fall(self, known: AtRisk, memory: GroupMemory) -> bool:
        """Print once why no death can be mended from now on. Returns whether that is so."""
        if known.fall is None:
            return False
        begin = "No memory snapshots" + " any more" * ("on" in self._told)
        why = known.fall.because(memory.board.why)
        self._tell_once("off", f"{begin}: {why}. {self._otherwise}")
        return True

    def _is_its_own(self, known: GroupMemory) -> bool:
        """True if the script makes a Manager, and no option declares that it can repeat a step."""
        return not self._is_asked and Fall.EXPLICIT in known.board.all(Word.FALL)

    def _tell_once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._tell(text)


def own_bytes(settings: RunSettings) -> int:
    """The memory in bytes that one worker may leave to its successor without memory snapshots."""
    workers = settings.replicas * settings.workers_per_replica
    return int(free_bytes() * OWN_SHARE / workers) // 4096 * 4096


def _boundary(memory: GroupMemory, until: float = inf) -> int | None:
    """The newest step up to ``until`` of which all workers have left a complete state."""
    return common(memory.generations(), until=until)


def _boundaries(memory: GroupMemory) -> set[int]:
    """The steps of which all workers have a complete state."""
    known = {x.step for x in memory.area(memory.here.start).generations()}
    return {step for step in known if _boundary(memory, step) == step}


def _numbers(memory: GroupMemory, step: int) -> set[int]:
    """The numbers of the workers' states of a step. A state left at a fall has its place's."""
    return {x.number for own in memory.generations() for x in own if x.step == step}
