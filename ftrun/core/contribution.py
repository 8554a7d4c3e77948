"""Who contributes to a step: the divisor of every average (C4). Pure arithmetic on a quorum."""

from __future__ import annotations

from ftrun.core.messages import Quorum


def contributors(
    quorum: Quorum, step: int, heal_first: bool = False, at_most: int | None = None
) -> tuple[int, ...]:
    """The replica_ranks whose gradients count in ``step``, in order.

    Newcomers add zeros in the first step of their quorum, unless everybody heals before the
    forward pass (``heal_first``, and always at step 0). ``at_most``: the rest are spares
    (``WorldSizeMode.FIXED_WITH_SPARES``). Every member comes to the same answer without asking.
    """
    ranks = tuple(range(len(quorum.members)))
    if quorum.newcomers and step == quorum.step and not (heal_first or step == 0):
        members = quorum.members
        ranks = tuple(r for r in ranks if members[r].replica_id not in quorum.newcomers)
    return ranks if at_most is None else ranks[:at_most]
