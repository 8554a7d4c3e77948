"""Marks of steps: values that must be equal on all replicas, so that a divergence is detected.

A mark has the settings of the optimizers and the place in the script, and at some steps a digest of
the parameters. The lighthouse compares the marks of the same state.

The end of the script has a mark too: the parameters after the last step. Code after the loop may
change them on one rank only (its best weights, an average). So the digest is taken when a loop ends
or is left. Of a loop that is not followed ftrun cannot see the end (headers.py). Then the digest is
taken late, at the end of the script.

Not here: when a step is marked (loop.py), the comparison (core/lighthouse/divergence.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from torch.optim import Optimizer

from ftrun.base.chaos_trap import corruption_trap
from ftrun.checkpoint.leaves import local_of
from ftrun.core.worker.marks import PARAMETERS_EVERY
from ftrun.inject.zero_edit.frames import call_site
from ftrun.training.manager import Manager

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

_NUMBERS = (int, float)
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer type by element size. Integers are summed because the order does not matter."""

Settings = list[tuple[str, list[tuple[str, Any]]]]


class Marking:
    """The marks of one replica.

    Attributes:
        optimizers: the optimizers that step the models' parameters.
        known: returns the ids of these. What else the optimizers step is compared with nobody's: a
            rank may have parameters of its own, as its part of a table.
        is_reduced: gradients were averaged in the step under way.
        apart: the line where an optimizer first stepped with gradients of this rank only; "": none.
        ended: this worker's digest of the parameters after the last step; None: not taken yet, or
            other ones have healed since.
    """

    def __init__(self, script: Script) -> None:
        self._mates, self._standing = script.mates, script.standing
        # A replacement in one group gets the state of its own rank, so ranks may differ.
        self._world = script.world if script.memory is None else None
        self.optimizers: Sequence[Optimizer] = ()
        self.known: Callable[[], Collection[int]] = set
        self.is_reduced, self.apart = False, ""
        self.ended: str | None = None
        who = os.environ.get("FTRUN_REPLICA_ID", ""), os.environ.get("FTRUN_GROUP_RANK", "")
        self._trap = corruption_trap(os.environ, *who)

    def mark(self, manager: Manager) -> None:
        """Mark this step, if a mark is due. Called when the gradients are averaged, and before an
        optimizer steps."""
        if self._trap is not None and self._trap.exists():
            self._corrupt(self._trap)
        self._look_apart()
        if not manager.session.progress.wants_mark():
            return  # nothing is compared at this step
        is_due = manager.current_step() % PARAMETERS_EVERY == 0
        found = self.digest() if is_due else ""
        if self._mates.is_lead:
            settings = partial(text_of, settings_of(self.optimizers))
            manager.session.progress.mark(settings, found, self._standing.position())

    def _look_apart(self) -> None:
        """Set ``apart`` at the first step with gradients that neither a model's reduction nor the
        script has averaged."""
        is_reduced, self.is_reduced = self.is_reduced, False
        if self._world is None:
            return
        is_shared, self._world.has_shared = self._world.has_shared, False
        is_apart = not (is_reduced or is_shared or self.apart)
        if is_apart and any(p.grad is not None for p in self._parameters()):
            self.apart = call_site()

    def digest(self) -> str:
        """A digest of the replica's parameters, from the parts of all its workers."""
        return self._of_all(digest_of(self._parameters()))

    def _parameters(self) -> Iterator[torch.Tensor]:
        known = self.known()
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        return (p for group in groups for p in group["params"] if id(p) in known)

    def _of_all(self, own: str) -> str:
        return self._mates.digest(own) if self._mates.are_several else own

    def loop_ended(self) -> None:
        """A loop around steps has ended: take the digest, because it may be the last one."""
        if self.ended is None and self._world is not None:
            self.ended = digest_of(self._parameters())

    def end(self) -> tuple[str, bool]:
        """At the end of the script. All mates must call this.

        Returns:
            The digest of the parameters after the last step, and whether it was taken late, so that
            the script may have changed them since.
        """
        is_late = self._mates.any(self.ended is None)
        found = self._of_all(self.ended or digest_of(self._parameters()))
        return (found if self.optimizers else ""), is_late or not self.optimizers

    def _corrupt(self, trap: Path) -> None:
        """Flip one bit of a parameter, to simulate broken memory. It is a high mantissa bit of the
        largest value, so that later steps do not round it away."""
        parts = (local_of(p.detach()).view(-1) for p in self._parameters())
        values = next(part for part in parts if part.numel())
        size = values.element_size()
        at = int(values.abs().argmax()) * size + max(0, size - 2)
        values.view(torch.uint8)[at] ^= 8
        trap.unlink()


def settings_of(optimizers: Sequence[Optimizer]) -> Settings:
    """All parameter groups as they are now, unfiltered, because this may run in each step."""
    return [
        (type(optimizer).__name__, list(group.items()))
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]


def _is_setting(value: Any) -> bool:
    kind = type(value)
    if kind is tuple:
        return all(type(part) in _NUMBERS for part in value)
    return kind in _NUMBERS


def text_of(settings: Settings) -> str:
    """The numbers in the settings, as a text to compare: ``SGD lr 0.1, SGD momentum 0.9``."""
    return ", ".join(
        f"{name} {key} {'/'.join(map(repr, value)) if type(value) is tuple else repr(value)}"
        for name, group in settings
        for key, value in group
        if _is_setting(value)
    )


def digest_of(tensors: Iterable[torch.Tensor]) -> str:
    """A digest of the bits of dense tensors, in one pass; of a sharded one, this worker's part.

    On a CPU of the bytes, without Python's lock: 30 times as fast as sums of integers, which a GPU
    makes instead.
    """
    found, sums = xxhash.xxh3_64(), dict[torch.device, list[torch.Tensor]]()
    for tensor in tensors:
        part = local_of(tensor.detach())
        if part.device.type != "cpu":
            sums.setdefault(part.device, []).append(_sum(part))
        elif part.numel():
            found.update(part.reshape(-1).view(torch.uint8).numpy())
    found.update(repr([torch.stack(x).tolist() for x in sums.values()]).encode())
    return found.hexdigest()


def _sum(values: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(values) if values.is_complex() else values
    bits = real.contiguous().view(-1).view(_INTEGERS[real.element_size()])
    return bits.sum(dtype=torch.int64)
