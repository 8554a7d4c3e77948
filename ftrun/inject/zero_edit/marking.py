"""Marks of a step: what must be equal on all replicas, so that none diverges in silence.

A mark has the settings of the optimizers and the place in the script, and at some steps a digest of
the parameters. The lighthouse compares those of one state.

Not here: what a digest is made of (settings.py), the comparison (core/lighthouse/divergence.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch.optim import Optimizer

from ftrun.core.worker.marks import PARAMETERS_EVERY
from ftrun.inject.zero_edit.mates import Mates
from ftrun.inject.zero_edit.settings import digest_of, settings_of, text_of
from ftrun.inject.zero_edit.standing import Standing
from ftrun.training.manager import Manager


class Marking:
    """The marks of one replica.

    Args:
        mates: its workers; ``standing``: where it stands.

    Attributes:
        optimizers: those that step parameters of the training.
    """

    def __init__(self, mates: Mates, standing: Standing) -> None:
        self._mates, self._standing = mates, standing
        self.optimizers: Sequence[Optimizer] = ()

    def mark(self, manager: Manager) -> None:
        """Mark this step, if one is due: all have their averaged gradients, and no optimizer has
        stepped yet."""
        if not manager.session.progress.wants_mark():
            return  # not one at which parameters are compared
        is_due = manager.current_step() % PARAMETERS_EVERY == 0
        found = self.digest() if is_due else ""
        if self._mates.is_lead:
            settings = partial(text_of, settings_of(self.optimizers))
            manager.session.progress.mark(settings, found, self._standing.position())

    def digest(self) -> str:
        """A digest of the replica's parameters, of which each mate may have a part."""
        found = digest_of(self.optimizers)
        return self._mates.digest(found) if self._mates.are_several else found
