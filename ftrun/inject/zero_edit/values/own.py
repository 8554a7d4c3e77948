"""Tensors that a worker leaves to its successor: those that no peer has, or has as they are here.

Examples are an average of the weights that rank 0 alone updates, and sums that each rank keeps for
itself. A worker copies them to its launcher's memory (snapshots/own_memory.py), where they outlive
a SIGKILL: with the plain values that it leaves (legacy.py), and before it writes a file between two
steps. That takes a hundredth of its time at most, so what is there may be some steps old. A slot
that moves to another node finds nothing.

After 1, 2, 4, 8 ... steps the ranks of a node tell each other digests of what has changed. What is
alike on all of them is left no more: a successor has it from its donor. What is not alike is its
own. Else the predecessor's counts if no peer has it, or has changed it as late, by the table of
``core/worker/origins.py``.

Not here: what has changed, and how it is set (tensors.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.base.words import amount
from ftrun.checkpoint.format import pack
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.mates import store_of_all
from ftrun.inject.zero_edit.values.tensors import Left, Tensors
from ftrun.snapshots.area import NONE, Area, AreaFull
from ftrun.snapshots.states import described, restored

SHARE = 0.01
"""Of the worker's time, which copies take."""
LOOK_EVERY_S = 1.0
"""While it has none."""
STORE_LIMIT = timedelta(seconds=10)


class Own:
    """What one worker leaves, and what it has found.

    Args:
        area: opens that of this slot; None: its launcher has none.
        life: names that of the job: what is left in another one does not count.
        ranks: of this node that would have the same in another replica; the worker's own first.
        is_exact: it is copied each time, whatever that takes, because a trial compares it.
    """

    def __init__(
        self,
        area: Callable[[], Area | None],
        tensors: Tensors,
        life: Callable[[], str],
        ranks: Sequence[int],
        *,
        is_exact: bool,
    ) -> None:
        self._open, self._tensors, self._is_exact = area, tensors, is_exact
        self._is_off = False
        self._life, self._ranks = life, ranks
        self._due_at = 0.0
        self._has_begun = False
        self._found: tuple[str, Left] | None = None
        self._said: tuple[int, dict[str, str]] | None = None  # which nobody has answered so far
        self._shared = self._apart = frozenset[str]()

    @cached_property
    def _area(self) -> Area | None:
        return self._open()

    def find(self) -> Left | None:
        """What the predecessor has left in this life of the job; None: nothing."""
        if self._has_begun or self._area is None:
            return None
        if self._found is None and (number := self._area.newest) != NONE:
            state = self._area.read(number)
            assert state is not None, "nobody else writes"
            head = json.loads(state.head)
            self._found = head["life"], Left(state.step, **restored(state, head, ()))
        return (
            self._found[1] if self._found is not None and self._found[0] == self._life() else None
        )

    def leave(self, step: int) -> None:
        """Copy them, unless a copy of late was expensive. ``step``: so many are committed."""
        area, now = None if self._is_off else self._area, clock.now()
        if area is None:
            return
        if step and not step & (step - 1):
            self._say(step)
        if not (self._is_exact or now >= self._due_at):
            return
        self._hear()
        self._has_begun, self._found, self._tensors.left = True, None, None
        tree = self._tensors.own_state(self._shared, self._apart)
        if tree["modules"] or tree["units"]:
            self._leave(area, tree, step)
            self._due_at = clock.now() + (clock.now() - now) / SHARE
        else:
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
        head = json.dumps({"life": self._life(), **described(given)}).encode()
        try:
            area.write(area.newest + 1, head, given.leaves, step, {}, {})
        except AreaFull:
            nbytes = sum(leaf.spec.nbytes for leaf in given.leaves)
            where = "outside modules" if tree["units"] else "in modules beside the trained ones"
            told.once(
                f"this worker keeps {amount(nbytes)} in tensors that its peers lack or have "
                f"otherwise. That is too much for all of it to be left to a worker that follows "
                f"it: those {where} are not"
            )
            return False
        return True

    # ------------------------------------------------------------ what ranks have alike

    @cached_property
    def _store(self) -> Any:
        return store_of_all("ftrun/own", STORE_LIMIT)

    @contextlib.contextmanager
    def _with_store(self) -> Iterator[Any]:
        """For the time of the block. If the store is gone nobody can tell, and nobody asks again:
        each try could take ``STORE_LIMIT``."""
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
                return  # some have not come to the step, or do not tell
            others = [json.loads(store.get(key).decode()) for key in keys]
            alike = {x for x, found in mine.items() if all(o.get(x) == found for o in others)}
            self._shared = frozenset(alike)
            self._apart = frozenset().union(mine, *others) - alike
            self._said = None
