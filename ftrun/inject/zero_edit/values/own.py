"""Tensors that a worker leaves to its successor: those that no peer has, or has as they are here.

An average of the weights that rank 0 alone keeps is such a module, and so is one that each rank has
begun with random numbers of its own. A unit (units.py) is the worker's own if no peer has it, or
has changed it as late, by the table of ``core/worker/origins.py``.

A worker copies them to its launcher's memory (snapshots/own_memory.py), where they outlive a
SIGKILL: with the plain values that it leaves (legacy.py), and before it writes a file between two
steps. That takes a hundredth of its time at most, so what is there may be some steps old. A slot
that moves to another node finds nothing.

Not here: which those are, and how they are set (tensors.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.base.words import amount
from ftrun.checkpoint.format import pack
from ftrun.inject.zero_edit import told
from ftrun.snapshots.area import NONE, Area, AreaFull
from ftrun.snapshots.states import described, restored

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.values.tensors import Tensors

SHARE = 0.01
"""Of the worker's time, which copies take."""
LOOK_EVERY_S = 1.0
"""While it has none."""


@dataclass(frozen=True, slots=True)
class Left:
    """What a predecessor has left.

    ``step``: so many were committed then. ``modules``: their states by name. ``units``: as a state
    has them (tensors.py).
    """

    step: int
    modules: Mapping[str, Mapping[str, Any]]
    units: Mapping[str, Mapping[str, Any]]


class Own:
    """What one worker leaves, and what it has found.

    Args:
        area: of this slot; None: its launcher has none.
        life: names that of the job: what is left in another one does not count.
        is_exact: it is copied each time, whatever that takes, because a trial compares it.
    """

    def __init__(
        self, area: Area | None, tensors: Tensors, life: Callable[[], str], *, is_exact: bool
    ) -> None:
        self._area, self._tensors, self._is_exact = area, tensors, is_exact
        self._life = life
        self._due_at = 0.0
        self._has_begun = False
        self._found: tuple[str, Left] | None = None

    def find(self) -> Left | None:
        """What the predecessor has left in this life of the job; None: nothing."""
        if self._has_begun or self._area is None:
            return None
        if self._found is None and (number := self._area.newest) != NONE:
            state = self._area.read(number)
            assert state is not None, "nobody else writes"
            head = json.loads(state.head)
            self._found = head["life"], Left(state.step, **restored(state, head, ()))
        return self._found[1] if self._found is not None and self._found[0] == self._life() else None

    def leave(self, step: int) -> None:
        """Copy them, unless a copy of late was expensive. ``step``: so many are committed."""
        area, now = self._area, clock.now()
        if area is None or not (self._is_exact or now >= self._due_at):
            return
        self._has_begun, self._found, self._tensors.left = True, None, None
        tree = self._tensors.own_state()
        if tree["modules"] or tree["units"]:
            try:
                given = pack(tree)
                head = json.dumps({"life": self._life(), **described(given)}).encode()
                area.write(area.newest + 1, head, given.leaves, step, {}, {})
            except AreaFull:
                nbytes = sum(leaf.spec.nbytes for leaf in given.leaves)
                told.once(
                    f"this worker keeps {amount(nbytes)} in tensors that its peers lack or have "
                    "otherwise, which is too much to be left to a worker that follows it"
                )
                self._area = None
                area.drop()
            except UserError:
                self._area = None  # what cannot be carried is named where it is met
            self._due_at = clock.now() + (clock.now() - now) / SHARE
        else:
            self._due_at = clock.now() + LOOK_EVERY_S
