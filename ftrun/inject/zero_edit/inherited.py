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

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ftrun.checkpoint.format import pack
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.randomness import States
from ftrun.inject.zero_edit.values.journal import unpacked
from ftrun.snapshots.directory import Found
from ftrun.snapshots.group_memory import LEFT, GroupMemory
from ftrun.snapshots.manifest import Manifest, Origin, Share
from ftrun.snapshots.states import restored
from ftrun.training.engine import Engine
from ftrun.training.resuming import Resuming


class Goes(Protocol):
    """How an unmodified script goes on."""

    def inherits(self, head: dict[str, Any], bodies: Sequence[bytes]) -> None:
        """From a state of its own predecessor's, with this head and the bytes behind that."""

    def borrows(self, head: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
        """From one of another replica: the state that a peer would have got."""

    def borrowed(self, place: str, head: dict[str, Any]) -> str:
        """Its place, likewise."""


class Inherited(Resuming):
    """One worker's claim. ``left``: as the worker's environment has it; ``goes``: gives how its
    script goes on; None: the script has a Manager."""

    def __init__(self, engine: Engine, left: str, goes: Callable[[], Goes | None]) -> None:
        super().__init__(engine)
        self._goes = goes
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
        state, lineage = self._head["state"]
        manifest = Manifest(
            state, lineage, Origin(*origin), own.position, "", None, (), mates=(own,) * rank
        )
        self._found, self._has_looked = Found(Path("in memory"), manifest), True

    def find_place(self) -> tuple[str, int] | None:
        """See Resuming."""
        found, kept = super().find_place(), self._goes()
        if found is None or self._is_own or kept is None:
            return found
        return kept.borrowed(found[0], self._head), found[1]

    def healed(self) -> None:
        """See Resuming."""
        super().healed()
        self._left = None

    def _read(self, found: Found) -> Any:
        left, self._left, kept = self._left, None, self._goes()
        assert left is not None, "it is loaded once"
        tree = restored(left, self._head, pack(self._healing.tree()).leaves)
        if not self._is_own:
            return tree if kept is None else kept.borrows(self._head, tree)
        if kept is None:
            States.decode(self._parts).set()
        else:
            kept.inherits(self._head, self._parts)
        if self._context.group_rank == 0:
            told.say(
                f"replica {self._context.replica_id} resumes from step {found.manifest.step}. Its "
                "agent kept that state in memory, and no replica has a newer one"
            )
        return tree
