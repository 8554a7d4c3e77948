"""A worker's generations in its agent's memory: when one is due, how it is written and read.

Rank 0 of a group says when the next one is due, for all alike. A replacement begins with one that
its group can repeat what followed from (core/replay/settling.py).

Not here: what a generation has, of a worker of one group (memory.py), and of one in a replica among
others (in_place.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ftrun.base import clock
from ftrun.checkpoint.leaves import Leaf
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.pacing import AHEAD, Pace, ahead_of, is_due
from ftrun.core.replay.settling import Counts, Mark, begin
from ftrun.inject.zero_edit.values.journal import unpacked
from ftrun.inject.zero_edit.world.replayed import ReplayedWorld, stay
from ftrun.snapshots.area import NONE, AreaFull, State
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import GroupMemory
from ftrun.training.context import WorkerContext

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.predecessor import Predecessor


class Generations:
    """Those of one worker.

    Args:
        memory: of its group.

    Attributes:
        here: this worker, as its group sees it; ``world``: the process groups in that.
        number: of the newest one, or of that with which this replacement begins.
        began_at: when the step under way began; ``took_s``: what the newest one has taken of the
            processor.
        must: the next one is due whatever it costs.
        state: with which this replacement begins, with its ``head`` and the ``parts`` behind that;
            None: it is none, or has loaded it.
        predecessor: of an unmodified script; None: the script has a Manager, or none so far.
    """

    predecessor: Predecessor | None = None

    def __init__(self, here: WorkerContext, memory: GroupMemory) -> None:
        kind: type[ReplayedWorld] = ReplayedWorld
        if here.device == "cuda":
            from ftrun.inject.zero_edit.world.on_device import DeviceWorld as kind
        self.here = as_replicas(here)
        self.world = world = kind(self.here, here.group_rank, memory)
        self.board, self.area = memory.board, world.area
        self.number = self.area.newest
        self.began_at, self.took_s = clock.now(), 0.0
        self._pace, self._worked_s = Pace(), time.process_time()
        self.state: State | None = None
        self.head: dict[str, Any] = {}
        self.parts: Sequence[bytes] = ()
        if world.is_newcomer:
            self.state = self._find()
            self.head, self.parts, _ = unpacked(self.state.head)
        self.must = self.number == NONE

    @property
    def place(self) -> str:
        """Where the predecessor of an unmodified script's worker stood."""
        return str(self.head.get("place", ""))

    def taken(self) -> State:
        """The predecessor's, which is loaded now."""
        state, self.state = self.state, None
        assert state is not None, "a replacement has found one"
        return state

    def passes(self, inputs: Any) -> None:
        """A pass in training begins, with these inputs of the model."""

    def proves(self) -> None:
        """This replacement has got what its predecessor had in its first step."""
        self.world.proves()

    def _find(self) -> State:
        """Where this replacement begins: to be known before it publishes a decree."""
        world = self.world
        if world.memory.spans:
            world.await_words()
        done = self.board.all_done()
        found = begin(self.area.generations(), self.area.logs(), done, world.rank)
        state = None if isinstance(found, Fall) else self.area.read(found.number)
        if state is None:
            world.falls(found if isinstance(found, Fall) else Fall.NO_GENERATION)
            stay()
        self.number, world.before, world.steps = state.number, state.before, [state.step]
        return state

    def wants(self, step: int) -> bool:
        """Whether one is due in a step."""
        if not (self.must or is_due(self.board.read(0, Word.DUE), step)):
            return False
        if not any(x.mark for x in self.area.generations()):
            return True  # nobody holds the same
        # The last one at which they were alike stays until the agent has seen that.
        return self.world.memory.unlike() is None

    def step_begins(self, step: int) -> None:
        """A step begins, perhaps with one; rank 0 says when the next one is due."""
        if self.board.room < 0:
            self.gives_up("memory has become scarce on this node")
        world = self.world
        if world.rank:
            return
        worked_s, passed_s = time.process_time(), clock.now() - self.began_at
        step_s = self._pace.lasted(worked_s - self._worked_s, passed_s)
        repeat_s = max(0.0, passed_s - world.waited_s)
        self._worked_s, world.waited_s = worked_s, 0.0
        ahead = ahead_of(passed_s) if world.memory.spans else AHEAD
        said, fills = self.board.read(0, Word.DUE), world.fills_within(ahead + 1, step)
        state: dict[str, Any] = {"fills": fills, "is_behind": world.is_left_behind, "ahead": ahead}
        word = self._pace.begins(step, said, step_s, self.took_s, repeat_s, **state)
        if word != said:
            self.board.set(0, Word.DUE, word)

    def write(
        self,
        text: bytes,
        leaves: Sequence[Leaf],
        step: int,
        calls: Counts,
        before: Counts,
        *,
        groups: int = 1,
        is_whole: Callable[[], bool] = lambda: True,
        mark: Callable[[], Mark | None] = lambda: None,
    ) -> None:
        """Write the one of ``number``; see ``Area.write``, and ``has_room``. In any thread."""
        has_room = partial(self.world.has_room, groups=groups)
        more: dict[str, Any] = {"is_whole": is_whole, "has_room": has_room, "mark": mark}
        try:
            if self.area.write(self.number, text, leaves, step, calls, before, **more):
                self.board.set(self.world.rank, Word.NEWEST, step)
        except AreaFull as error:
            self.gives_up(str(error))

    def gives_up(self, why: str) -> None:
        """Nobody here can be replaced any more."""
        if self.world.fell is None:
            self.world.falls(Fall.NO_MEMORY, why)
            self.area.drop()


def as_replicas(here: WorkerContext) -> WorkerContext:
    """A worker as its group sees it: a replica of one worker among the others."""
    return replace(
        here,
        key=replace(here.key, replica_id=str(here.group_rank), group_rank=0),
        replicas=here.workers_per_replica,
        min_replicas=1,
        workers_per_replica=1,
        snapshot_dir="",
        resume_dir="",
    )
