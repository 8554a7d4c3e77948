"""What a replica's earlier processes have left in their launcher's memory: where the job
continues if no replica holds its state any more.

A worker whose replica was restarted claims the state of the generation that its predecessor has
left, as a job that is started again claims a snapshot on a disk (training/resuming.py). Mostly it
heals from its peers. If none of them has a newer state, it loads what it has claimed. Where all
replicas begin again together, each claims the same state: of another replica it takes what a peer
would have got.

Not here: which generation that is (agent/group_memory.py), whose claim counts
(core/lighthouse/choice.py), what a generation has (in_place.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftrun.checkpoint.format import pack
from ftrun.inject.zero_edit import suspended, told
from ftrun.inject.zero_edit.place import Place
from ftrun.inject.zero_edit.randomness import States
from ftrun.inject.zero_edit.values.journal import unpacked
from ftrun.inject.zero_edit.values.tensors import FAR
from ftrun.inject.zero_edit.values.tensors import KEY as TENSORS
from ftrun.snapshots.directory import Found
from ftrun.snapshots.group_memory import LEFT, GroupMemory
from ftrun.snapshots.manifest import Manifest, Origin, Share
from ftrun.snapshots.states import restored
from ftrun.training.engine import Engine
from ftrun.training.healing import USER
from ftrun.training.resuming import Resuming

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script


class Inherited(Resuming):
    """One worker's claim. ``left``: as the worker's environment has it; ``script``: gives the
    unmodified one; None: the script has a Manager."""

    def __init__(self, engine: Engine, left: str, script: Callable[[], Script | None]) -> None:
        super().__init__(engine)
        self._script = script
        step, whose, place = left.split(LEFT)
        self._is_own = whose == engine.context.replica_id
        rank, here = engine.context.group_rank, engine.context
        memory = GroupMemory.open(place)
        area = memory.area(rank)
        number = max(x.number for x in area.generations() if x.step == int(step))
        self._left = area.read(number)  # a view, which has the memory until it is dropped
        memory.close()
        assert self._left is not None, "its agent has looked"
        self._head, (_, *self._parts), _ = unpacked(self._left.head)
        own = Share(self._head.get("place", ""), None, ())
        origin = here.script, here.inject, here.workers_per_replica, here.replicas
        self._own = self._head.get("own", {})  # what of it is for its own successor alone
        state, lineage = self._head["state"]
        manifest = Manifest(
            state, lineage, Origin(*origin), own.position, "", None, (), mates=(own,) * rank
        )
        self._found, self._has_looked = Found(Path("in memory"), manifest), True

    def find_place(self) -> tuple[str, int] | None:
        """See Resuming."""
        found, script = super().find_place(), self._script()
        if found is None or script is None or self._is_own or not self._own:
            return found
        walk, far = script.counters.walk, self._own[FAR]
        near = Place.decode(found[0]).for_peers(lambda at, path: walk.is_far(at, path, far))
        return near.encode(), found[1]

    def healed(self) -> None:
        """See Resuming."""
        super().healed()
        self._left = None

    def _read(self, found: Found) -> Any:
        left, self._left, script = self._left, None, self._script()
        assert left is not None, "it is loaded once"
        tree = restored(left, self._head, pack(self._healing.tree()).leaves)
        if not self._is_own:
            return tree if script is None or not self._own else self._as_peers(tree, script)
        if script is None:
            States.decode(self._parts).set()
        else:
            self._goes_on(script)
        if self._context.group_rank == 0:
            told.say(
                f"replica {self._context.replica_id} resumes from step {found.manifest.step}. Its "
                "agent kept that state in memory, and no replica has a newer one"
            )
        return tree

    def _as_peers(self, tree: dict[str, Any], script: Script) -> dict[str, Any]:
        """Another replica's state, as a peer would have got it."""
        near = script.tensors.without_own(tree[USER][TENSORS], self._own)
        return {**tree, USER: {**tree[USER], TENSORS: near}}

    def _goes_on(self, script: Script) -> None:
        """An unmodified script: all that was its predecessor's is in that state."""
        head = self._head
        script.randomness.given = head["iterators"], self._parts[: head["random"]]
        held = [suspended.Suspended(*x) for x in Place.decode(head["place"]).held]
        suspended.come_to(script.counters.walk.held(), held)  # what does not is told at the join
        script.own.forget()
        script.counters.has_all = True
