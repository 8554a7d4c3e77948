"""Whose value a replica takes when it joins its peers: one table for all that a script counts.

The *donor* trains, and its value is of the place at which the replica joins. The *predecessor* had
the replica's slot, and its values are of its last noted step. Which values differ between replicas
is known before any death: both have their values of the steps at which all replicas trained.

| the first line that holds | origin |
|---|---|
| nothing is left of the predecessor | the donor's |
| a framework's own | the donor's, unless the predecessor has changed it later |
| whole numbers that differed by the same at two steps (a cursor by rank) | the donor's, shifted |
| its function was called anew since: the predecessor's is gone | the donor's |
| it differed; the donor has not changed it since, or loops stand alike | the predecessor's |
| it differed, and the loops have gone on (a sum that each epoch begins) | the donor's, and named |
| the predecessor has changed it later (``if rank == 0: best = …``) | the predecessor's |
| else | the donor's |

In place of the donor's, a value stays that the replica itself has changed later.

Not here: how values are read, compared by step and set (inject/zero_edit/counters.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Origin(Enum):
    """Whose a value is. ``STAND_IN``: the donor's, although that is not this replica's."""

    OWN = "own"
    DONOR = "donor"
    STAND_IN = "stand-in"
    SHIFTED = "shifted"
    PREDECESSOR = "predecessor"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one value.

    Attributes:
        own_step, donor_step, left_step: when this replica, its donor and its predecessor have
            changed it last; -1: never.
        together: the donor's and the predecessor's value at each of up to two steps at which all
            replicas trained, the newer one last; empty: not known.
        together_step: the newer one of these.
        has_left: the predecessor's values are there, of the same life of the job.
        is_framework: it is a framework's own.
        is_called_anew: its function was called anew since the predecessor's values.
        stands_alike: the loops around stand where they stood then.
    """

    own_step: int
    donor_step: int
    left_step: int
    together: tuple[tuple[Any, Any], ...] = ()
    together_step: int = -1
    has_left: bool = True
    is_framework: bool = False
    is_called_anew: bool = False
    stands_alike: bool = True

    @property
    def has_differed(self) -> bool:
        """Whether the two had different values while all replicas trained."""
        if not self.together:
            return False
        donor, left = self.together[-1]
        return type(donor) is not type(left) or bool(donor != left)

    @property
    def shift(self) -> int:
        """By how much the predecessor's value is greater than the donor's, always; 0: that is not
        known, or it is not."""
        numbers = [number for pair in self.together for number in pair]
        if len(self.together) < 2 or any(type(number) is not int for number in numbers):
            return 0
        (donor, left), (later_donor, later_left) = self.together
        has_moved = donor != later_donor and left != later_left
        return left - donor if has_moved and left - donor == later_left - later_donor else 0


def origin(known: Known) -> Origin:
    """Whose value the replica takes."""
    donor = Origin.OWN if known.own_step > known.donor_step else Origin.DONOR
    is_left = known.has_left and not known.is_called_anew
    if known.has_left and known.has_differed and not known.is_framework:
        if known.shift:
            return Origin.SHIFTED
        is_as_it_was = known.stands_alike or known.donor_step <= known.together_step
        if is_left:
            return Origin.PREDECESSOR if is_as_it_was else Origin.STAND_IN
    if is_left and known.left_step > known.donor_step:
        return Origin.PREDECESSOR
    return donor
