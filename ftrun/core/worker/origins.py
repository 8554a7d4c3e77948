"""Where a replica that joins its peers takes each value from: one table for all values.

The *donor* trains; its value belongs to the place at which the replica joins. The *predecessor* had
the replica's slot; its values belong to its last noted step. Which values differ between replicas
is known before any death: both have their values of the steps at which all replicas trained.

| the first line that holds | origin |
|---|---|
| a flag of an iteration that the replica begins itself, ahead of its steps | its own |
| no value of the predecessor is left | the donor's |
| whole numbers that differed by the same at two steps (a cursor by rank) | the donor's, shifted |
| its function was called again since: the predecessor's value is gone | the donor's |
| it differed and grew on both (a sum by rank); loops stand alike | the donor's + the difference |
| the same, but only one common step is known: no later value speaks against a sum | likewise |
| it differed, and the donor has emptied it since (a list between two log lines) | the donor's |
| it differed; the donor has not changed it since, or loops stand alike | the predecessor's |
| it differed, and the loops have advanced (a sum that each epoch resets) | the donor's, and named |
| the predecessor has changed it later (``if rank == 0: best = …``) | the predecessor's |
| a fraction that no replica had when all trained (a first evaluation's loss) | the donor's, named |
| else | the donor's |

Where the table says "the donor's", the replica keeps its own value if it has changed that later. A
sum that the donor has begun again since is the donor's (``as_far_from``).

Random generators have a table of their own (``random_origin``).

Not here: how values are read, compared by step and set (inject/zero_edit/values/).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Origin(Enum):
    """Where a value comes from.

    ``STAND_IN``: the donor's, in place of this replica's own. ``UNSEEN``: the donor's, and nobody
    knows whether this replica's own would be the same. ``SHIFTED``, ``CONTINUED``: the
    donor's plus the difference that the predecessor's had while all trained: none if it was emptied
    since. While the replica was away, its donor was its deputy, and its changes count for the
    replica.
    """

    OWN = "own"
    DONOR = "donor"
    STAND_IN = "stand-in"
    UNSEEN = "unseen"
    SHIFTED = "shifted"
    CONTINUED = "continued"
    PREDECESSOR = "predecessor"


@dataclass(frozen=True, slots=True)
class Known:
    """The facts about one value.

    Attributes:
        own_step, donor_step, left_step: when this replica, its donor and its predecessor have
            changed it last; -1: never.
        together: the donor's and the predecessor's value at each of up to two steps at which all
            replicas trained, the newer one last; empty: not known.
        together_step: the newer one of these steps.
        has_left: the predecessor's values exist, and are of the same life of the job.
        is_called_anew: its function was called again since the predecessor's values.
        stands_alike: the loops around it are where they were then.
        begins_here: it is a flag of code that draws batches ahead of the loop's steps. The replica
            draws these itself, from the iteration's beginning.
        now: the donor's value, and the last one of the predecessor.
        lengths: of a collection, how many items the donor and the predecessor had when all trained
            last, and the donor's and the predecessor's last; empty: not known.
        is_unseen: it is a fraction, and no replica had it when all trained last.
    """

    own_step: int
    donor_step: int
    left_step: int
    together: tuple[tuple[Any, Any], ...] = ()
    together_step: int = -1
    has_left: bool = True
    is_called_anew: bool = False
    stands_alike: bool = True
    begins_here: bool = False
    now: tuple[Any, Any] = (None, None)
    lengths: tuple[int, ...] = ()
    is_unseen: bool = False

    @property
    def has_differed(self) -> bool:
        """Whether the donor's and the predecessor's values differed while all replicas trained."""
        if not self.together:
            return False
        return not is_same(*self.together[-1])

    @property
    def is_shifted(self) -> bool:
        """Whether both are whole numbers that changed, and kept their difference."""
        if len(self.together) < 2 or not _are_numbers(int, *self.together):
            return False
        (donor, left), (later_donor, later_left) = self.together
        return bool(donor != later_donor and left - donor == later_left - later_donor != 0)

    @property
    def has_grown(self) -> bool:
        """Whether both are sums: fractions that grew (or both fell) between the two steps.

        If only one step is known, they have to do so until now, as far as the predecessor came.
        """
        is_known_once = len(self.together) < 2
        pairs = (*self.together, self.now) if is_known_once else self.together
        if not _are_numbers(float, *pairs):
            return False
        (donor, left), (later_donor, later_left) = pairs
        if donor == later_donor or left == later_left:
            return is_known_once and donor != later_donor
        return bool((later_donor > donor) == (later_left > left))

    @property
    def is_emptied(self) -> bool:
        """Whether it is a collection that the donor has emptied since, and the predecessor not."""
        if not self.lengths:
            return False
        theirs, before, theirs_now, before_now = self.lengths
        return theirs_now < theirs and before_now >= before

    def as_far_from(self, now: Any) -> Any:
        """The donor's value ``now``, plus the difference of the two when all trained last. A sum
        that the donor has begun again since has none: it is zero, or has turned back by half."""
        donor, left = self.together[-1]
        if type(donor) is float and type(now) in (int, float):
            grew = donor - self.together[0][0]  # 0.0: only one step is known
            has_turned = (now - donor) * grew < 0 and abs(now) < abs(donor) / 2
            if now == 0 or has_turned:
                return now
        return now + (left - donor) if type(now) is type(donor) else left


def _are_numbers(kind: type[Any], *pairs: tuple[Any, Any]) -> bool:
    """Whether all are finite numbers of that kind."""
    return all(type(x) is kind and x - x == 0 for pair in pairs for x in pair)


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are of one type and equal; so are two that are not a number."""
    is_equal = one == other or (one != one and other != other)
    return type(one) is type(other) and bool(is_equal)


def origin(known: Known) -> Origin:
    """Where the replica takes the value from."""
    if known.begins_here:
        return Origin.OWN
    donor = Origin.OWN if known.own_step > known.donor_step else Origin.DONOR
    is_left = known.has_left and not known.is_called_anew
    if known.has_left and known.has_differed:
        if known.is_shifted:
            return Origin.SHIFTED
        has_changed = known.donor_step > known.together_step
        is_sum = known.has_grown or known.is_emptied
        if is_left and has_changed and known.stands_alike and is_sum:
            return Origin.CONTINUED
        is_as_it_was = known.stands_alike or not has_changed
        if is_left:
            return Origin.PREDECESSOR if is_as_it_was else Origin.STAND_IN
    if is_left and known.left_step > known.donor_step:
        return Origin.PREDECESSOR
    return Origin.UNSEEN if known.is_unseen and donor is Origin.DONOR else donor


def random_origin(*, is_here: bool, was_alike: bool) -> Origin:
    """Where the replica takes the state of a random generator from.

    Args:
        is_here: the predecessor's state is of the very place at which the replica joins.
        was_alike: the donor's generator stood alike at the last place that both have noted. Then
            all ranks draw the same numbers, and the donor's is where the replica's would be.
    """
    return Origin.DONOR if was_alike and not is_here else Origin.PREDECESSOR
