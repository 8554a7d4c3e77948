"""The lead's part of its group's memory snapshots: rounds of copies, and the step to resume at.

Each node has the states of its own ranks (keeping.py). The lead knows what all nodes have, and
sends the hands their orders. Not here: when a round is due, and at which step all resume
(core/replay/copying.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ftrun.agent.at_risk import Stored
from ftrun.agent.group_memory import MemorySnapshots
from ftrun.agent.team.boards import Boards
from ftrun.agent.team.disk import Hands, SpannedDisk
from ftrun.agent.team.keeping import LOOK_S, Keeping
from ftrun.base import clock
from ftrun.base.words import first_of
from ftrun.config.settings import RunSettings
from ftrun.core import messages as m
from ftrun.core.agent.events import BoardSeen, Kept
from ftrun.core.replay.copying import Copying, Had
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.mending import SOUND
from ftrun.core.replay.pacing import newest
from ftrun.core.replay.settling import Generation, Mark
from ftrun.snapshots.area import NONE
from ftrun.snapshots.board import Word

REPORT_EVERY_S = 0.5
LACKS_S = 10.0
"""A node that has not reported for this long keeps no states."""


class SpannedMemory(MemorySnapshots):
    """The memory of a group on several nodes that this one leads. One incarnation at a time.

    Attributes:
        keeping: this node's own states and copies.
        started: by incarnation, the order with which its workers were started.
        spanned: the same as ``disk``.
    """

    keeping: Keeping

    def __init__(
        self, settings: RunSettings, runtime_dir: Path, tell: Callable[[str], None], hands: Hands
    ) -> None:
        super().__init__(settings, runtime_dir, tell)
        self._hands = hands
        self._copying = Copying(hands.own_id)
        self._incarnation = ""
        self._reports: dict[str, m.RanksKept] = {}
        self._due = 0
        self._reported_at = 0.0
        self._silent: dict[str, float] = {}  # since when each node has had a place without a report
        self._tasks: set[asyncio.Task[None]] = set()
        self._boards = Boards(self.of, hands.order)
        self.on_over = self._boards.tell
        self.started: dict[str, m.StartRanks] = {}
        self.spanned: SpannedDisk | None = None
        if settings.snapshot_path is not None:
            self.spanned = SpannedDisk(settings, runtime_dir, tell, hands, lambda: self._copying)
            self._write_to(self.spanned)

    def make(self, replica_id: str, incarnation: str, sound_until: float = NONE) -> None:
        """See MemorySnapshots."""
        if self.of(incarnation) is not None:
            return
        super().make(replica_id, incarnation, sound_until)
        self._incarnation = incarnation
        self._copying, self._reports, self._due = Copying(self._hands.own_id), {}, 0
        if self.of(incarnation) is not None:
            self._loop.call_later(LOOK_S, self._tick, incarnation)
            self._boards.begin(incarnation, self._settings.ranks_here)

    def free(self, incarnation: str) -> None:
        """See MemorySnapshots."""
        is_latest = incarnation == self._incarnation  # another one may have begun
        if is_latest:
            self.keeping.report(incarnation)  # its last states may still go to the disk
        super().free(incarnation)
        if is_latest:
            self._boards.end()
            self.keeping.let_go()

    @property
    def lacks_states(self) -> bool:
        """Whether a node has joined after the others have read the snapshot that all begin from."""
        readers = None if self.spanned is None else self.spanned.readers
        return readers is not None and not readers.issuperset(self._hands.ranks_of_nodes())

    async def end(self) -> None:
        """See MemorySnapshots."""
        for task in self._tasks:
            task.cancel()
        self._boards.end()
        await super().end()
        self.keeping.close()

    # ------------------------------------------------------------ from the nodes

    def has(self, node_id: str, report: m.RanksKept) -> None:
        """A node, perhaps this one, reports which states it has."""
        if report.incarnation != self._incarnation:
            return
        self._reports[node_id] = report
        own = {x.group_rank: x.steps for x in report.ranks if not x.is_copy}
        copies = {x.group_rank: x.steps for x in report.ranks if x.is_copy}
        sound = all(not x.fall or x.fall in SOUND for x in report.ranks)
        had = Had(own, copies, report.topology, sound, report.copied, bool(report.reason))
        had = replace(had, number=report.number)
        memory = self.of(report.incarnation)
        if memory is not None and not memory.board.may_differ:
            had = replace(had, marks={x: y for one in report.ranks for x, y in _marks(one)})
        self._copying.has(node_id, had, clock.now())
        pinned, known = self._copying.pinned, self.elsewhere.get(report.incarnation)
        if pinned is not None and (known is None or known.step != pinned):
            self.elsewhere[report.incarnation] = Stored(pinned, clock.now())

    def say(self, node_id: str, words: m.GroupWords) -> None:
        """Words of a node's ranks have arrived: write them to this node's board, and forward
        them.
        """
        found = self._boards.came(words)
        for other in self._hands.ranks_of_nodes() if found is not None else ():
            if found is not None and other not in (node_id, self._hands.own_id):
                self._hands.order_at(other, found)

    def can_lose(self, node_id: str) -> bool:
        """Whether all can resume without what this node has."""
        return self._copying.can_lose(node_id, range(self._settings.workers_per_replica))

    def gone(self, node_id: str) -> None:
        """A node is lost, and its states too."""
        self._reports.pop(node_id, None)
        self._copying.gone(node_id)
        if self.spanned is not None:
            self.spanned.gone(node_id)

    # ------------------------------------------------------------ as MemorySnapshots

    def kept(self, incarnation: str, rank: int) -> Kept | None:
        """See MemorySnapshots; also of a rank of another node."""
        memory = self.of(incarnation)
        if memory is None or rank in memory.here:
            return super().kept(incarnation, rank)
        reached = max(memory.board.read(x, Word.REACHED) for x in memory.here)
        known = (x for report in self._reports.values() for x in report.ranks)
        one = next((x for x in known if x.group_rank == rank and not x.is_copy), None)
        fall = next(filter(None, memory.board.all(Word.FALL)), 0)
        if fall or one is None or not one.steps:
            return Kept(Fall(fall or Fall.NO_GENERATION), NONE, reached)
        return Kept(Generation(0, max(one.steps)), max(one.steps), reached)

    def decree(self, incarnation: str, number: int, dead: int) -> None:
        """See MemorySnapshots. All nodes carry it out."""
        super().decree(incarnation, number, dead)
        self._hands.order(m.GroupDecree(incarnation, number, dead if dead >= 0 else None))
        self._boards.raised(number)

    def seen(self, incarnation: str) -> BoardSeen | None:
        """See MemorySnapshots."""
        seen = super().seen(incarnation)
        if seen is None:
            return None
        self.keeping.report(incarnation)
        waits = not self._hands.is_complete
        if not waits:
            self._copying.places = self._hands.ranks_of_nodes()
        step = self._copying.step_for(range(self._settings.workers_per_replica))
        return replace(seen, boundary=step, waits=waits)

    def rewind(self, incarnation: str, number: int, boundary: int) -> None:
        """See MemorySnapshots. All nodes carry it out."""
        restored = self._copying.restore(boundary, clock.now(), number)
        sources = {rank: self._source(rank, node) for rank, node in restored.items()}
        nodes = sorted({self._hands.name_of(node) for node in restored.values()})
        if nodes:
            self._tell(f"The lost node's states of step {boundary} come from {first_of(nodes)}.")
        for node, ranks in self._hands.ranks_of_nodes().items():
            if node != self._hands.own_id:
                theirs = tuple(sources[rank] for rank in ranks if rank in sources)
                order = m.RewindRanks(self.started[incarnation], number, boundary, theirs)
                self._hands.order_at(node, order)
        self._due = 0  # a new node has not received the word
        self.keeping.drop_later(incarnation, boundary)
        super().rewind(incarnation, number, boundary)
        self._boards.raised(number)
        self.keeping.pin(incarnation, boundary)

    def _source(self, rank: int, node_id: str) -> m.RankSource:
        report = self._reports[node_id]
        name = self._hands.name_of(node_id)
        return m.RankSource(rank, name, report.address, report.certificate)

    # ------------------------------------------------------------ in the course of time

    def _tick(self, incarnation: str) -> None:
        """Send the hands the steps that begin with a state, and begin rounds."""
        memory, now = self.of(incarnation), clock.now()
        if memory is None:
            return
        self._loop.call_later(LOOK_S, self._tick, incarnation)
        due = memory.board.read(0, Word.DUE)
        if now >= self._reported_at + REPORT_EVERY_S:
            self._reported_at = now
            self.keeping.report(incarnation)
            if (found := self._copying.unlike()) is not None:
                self.on_unlike(incarnation, found)
        if due == self._due:
            return
        self._due = due
        self._hands.order(m.GroupDue(incarnation, due))
        if self._hands.is_complete:
            self._copying.places = self._hands.ranks_of_nodes()
            step = newest(due)
            if self._copying.begin(step, now):
                self._begin_round(incarnation, step)
            self._tell_who_lacks(now)

    def _tell_who_lacks(self, now: float) -> None:
        """Report nodes without memory for their states: they do not report, and no round can
        begin.
        """
        silent = (x for x in self._copying.places if x not in self._reports)
        self._silent = {node: self._silent.get(node, now) for node in silent}
        lacking = [node for node, since in self._silent.items() if now >= since + LACKS_S]
        if lacking:
            names = first_of([self._hands.name_of(node) for node in lacking])
            disk = ", and no snapshot is written to a disk" if self.disk is not None else ""
            self._tell_once(
                "lacks",
                f"Memory snapshots: {names} keeps none, as too little memory is free there. So "
                f"none are copied from node to node{disk}.",
            )

    def _begin_round(self, incarnation: str, step: int) -> None:
        pinned = self._copying.pinned
        for node in self._hands.ranks_of_nodes():
            copies = self._copying.copies_of(node)
            sources = tuple(self._source(rank, owner) for rank, owner in copies.items())
            order = m.KeepRanks(incarnation, step, pinned, sources)
            if node != self._hands.own_id:
                self._hands.order_at(node, order)
                continue
            task = self._loop.create_task(self.keeping.keep(order))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def _marks(kept: m.RankKept) -> Iterator[tuple[tuple[int, int], Mark]]:
    """By rank and step, the marks of states that have one."""
    for step, numbers in zip(kept.steps, zip(*[iter(kept.marks)] * 3, strict=True), strict=False):
        if numbers[0]:
            yield (kept.group_rank, step), Mark(*numbers)
