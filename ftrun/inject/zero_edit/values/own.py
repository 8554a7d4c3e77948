"""A worker's own tensors: a copy in its launcher's memory, which its successor takes.

Examples are an average of the weights that rank 0 alone updates, and sums that each rank keeps for
itself. No peer can give these to a newcomer. A worker copies them to its launcher's memory
(snapshots/own_memory.py), where they outlive a SIGKILL. It does so when it writes its plain values
(legacy.py), and before it writes a file between two steps. Copies take 1 % of its time at most, so
the newest copy may be some steps old. A slot that moves to another node finds no copy.

After 1, 2, 4, 8 ... steps the ranks of a node exchange digests of the tensors that have changed.
Tensors that are alike on all ranks are not copied any more: a successor has them from its donor.
Tensors that differ are the rank's own. Of all others the predecessor's counts if no peer has it, or
if no peer has changed it later, by the table of ``core/worker/origins.py``.

Not here: which tensors have changed, and how they are set (tensors.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.base.words import amount
from ftrun.checkpoint.format import pack
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.mates import Mates, store_of_all
from ftrun.inject.zero_edit.values.tensors import Left
from ftrun.snapshots.area import Area, AreaFull
from ftrun.snapshots.states import described, restored

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

SHARE = 0.01
"""Of the worker's time, which copies take."""
LOOK_EVERY_S = 1.0
"""While it has none."""
ANSWERED_IN = 2
"""So many steps later all have told their digests, if none is away."""
STORE_LIMIT = timedelta(seconds=10)


class Own:
    """The copies of one worker: the predecessor's, and the worker's own.

    Args:
        area: opens that of this slot; None: its launcher has none.
    """

    def __init__(self, script: Script, area: Callable[[], Area | None]) -> None:
        self._script, self._tensors, self._open = script, script.tensors, area
        self._ranks, self._is_off = _alike(script.mates), False
        self._tensors.rank = str(self._ranks[0])
        self._due_at = 0.0
        self._has_begun = self._has_left = False
        self._found: list[tuple[str, Left]] | None = None
        self._said: tuple[int, dict[str, str]] | None = None  # which nobody has answered so far

    @cached_property
    def _area(self) -> Area | None:
        return self._open()

    def find(self, until: int) -> Left | None:
        """The predecessor's newest copy of this life of the job, of ``until`` steps at most; None:
        there is none. It may have begun a step that its peers have not, and the one before counts.
        """
        if self._has_begun or self._area is None:
            return None
        if self._found is None:
            numbers = sorted((x.number for x in self._area.generations()), reverse=True)
            states = [self._area.read(x) for x in numbers]
            whole = [(x, json.loads(x.head)) for x in states if x is not None]
            self._found = [(h["life"], Left(x.step, **restored(x, h, ()))) for x, h in whole]
        found = (x for life, x in self._found if life == self._script.carried.life)
        return next((x for x in found if x.step <= until), None)

    def forget(self) -> None:
        """This worker has all that its predecessor had: no older copy of it counts."""
        self._has_begun = True

    def leave(self, step: int, *, compares: bool = True) -> None:
        """Copy them, unless a copy of late was expensive. ``step``: the number of committed steps.
        ``compares``: all ranks are at this moment of the step, so that they can be compared.
        """
        area, now = None if self._is_off else self._area, clock.now()
        if area is None:
            return
        if compares and step and not step & (step - 1):
            self._say(step)
        elif self._said is not None and step <= self._said[0] + ANSWERED_IN:
            self._hear()
        if self._script.trial is None and now < self._due_at:  # a trial compares each copy
            return
        self._hear()
        self._has_begun, self._found, self._tensors.left = True, None, None
        tree = self._tensors.own_state(self._tensors.shared)
        if tree["modules"] or tree["units"]:
            self._leave(area, tree, step)
            self._due_at = clock.now() + (clock.now() - now) / SHARE
        else:
            if self._has_left:  # all of it has turned out to be alike on all ranks
                area.drop()
            self._has_left = False
            self._due_at = clock.now() + LOOK_EVERY_S

    def _leave(self, area: Area, tree: dict[str, Any], step: int) -> None:
        try:
            # Tensors outside modules may be data.
            if self._copy(area, tree, step) or self._copy(area, {**tree, "units": {}}, step):
                return
            area.drop()
        except UserError:
            pass  # what cannot be carried is named where it is met
        self._is_off = True

    def _copy(self, area: Area, tree: dict[str, Any], step: int) -> bool:
        given = pack(tree)
        head = json.dumps({"life": self._script.carried.life, **described(given)}).encode()
        # One of the same step makes way for it, so that the one before stays (``find``).
        numbers = {x.step: x.number for x in sorted(area.generations(), key=lambda x: x.number)}
        try:
            area.write(numbers.get(step, area.newest + 1), head, given.leaves, step, {}, {})
            self._has_left = True
        except AreaFull:
            nbytes = sum(leaf.spec.nbytes for leaf in given.leaves)
            where = "outside modules" if tree["units"] else "in modules beside the trained ones"
            told.once(
                f"this worker has {amount(nbytes)} in tensors that its peers lack, or have with "
                f"other values. That is too much to keep all for a worker that replaces it: those "
                f"{where} are not kept"
            )
            return False
        return True

    # ------------------------------------------------------------ what ranks have alike

    @cached_property
    def _store(self) -> Any:
        return store_of_all("ftrun/own", STORE_LIMIT)

    @contextlib.contextmanager
    def _with_store(self) -> Iterator[Any]:
        """The store, for the block. If the store is gone, this worker compares no more: each try
        could take ``STORE_LIMIT``."""
        try:
            yield self._store
        except RuntimeError:
            self._ranks, self._said = self._ranks[:1], None

    def _say(self, step: int) -> None:
        """Once for each of these steps."""
        if len(self._ranks) == 1 or (self._said is not None and self._said[0] == step):
            return
        self._said = step, self._tensors.digests()
        with self._with_store() as store:
            store.set(f"{self._ranks[0]}@{step}", json.dumps(self._said[1]))

    def _hear(self) -> None:
        if self._said is None:
            return
        step, mine = self._said
        keys = [f"{rank}@{step}" for rank in self._ranks[1:]]
        with self._with_store() as store:
            if not store.check(keys):
                return  # another rank has not come to the step, or has not noted it
            others = [json.loads(store.get(key).decode()) for key in keys]
            alike = {x for x, found in mine.items() if all(o.get(x) == found for o in others)}
            self._tensors.shared = frozenset(alike)
            every = frozenset().union(mine, *others)
            self._tensors.apart = every - alike
            known = zip(self._ranks, (mine, *others), strict=True)
            self._tensors.lacks = {str(rank): sorted(every - of.keys()) for rank, of in known}
            self._said = None


def _alike(mates: Mates) -> list[int]:
    """The ranks of this node that have in other replicas what this one has; itself first."""
    first = mates.rank - int(os.environ.get("LOCAL_RANK", "0"))
    here = range(first, first + int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    others = (x for x in here if x != mates.rank and (x - mates.rank) % mates.size == 0)
    return [mates.rank, *others]
