"""What a rank logs of a call, so that its replacement can be given the same result. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class Keeps(IntEnum):
    """What the log has of a call. 0 is not used, so that an empty word is none of them.

    ``RESULT``: what the call gave this rank. ``INPUT``: what this rank gave; the result is made of
    the inputs in the logs of all members. ``ALIKE``: what the call gave all alike, which one member
    logs for all (``of_all``). ``NOTHING``: the call gave this rank nothing.
    """

    RESULT = 1
    INPUT = 2
    NOTHING = 3
    ALIKE = 4


_ROOT_ONLY = {"reduce", "gather"}
_GATHERS = {
    "allgather",
    "_allgather_base",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
}
_ALIKE = {"allreduce", "allreduce_coalesced", "broadcast"}
_RESULTS = {
    "scatter",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "alltoall",
    "alltoall_base",
}


def keeps(kind: str, *, is_root: bool, spans: bool = False) -> Keeps | None:
    """What is logged of a call; None: a script that makes it cannot be followed.

    A send or a receive is not numbered alike at all ranks. A replacement has the logs of its own
    node, so what is gathered from several nodes is logged as a result.

    Args:
        kind: the method of torch's ProcessGroup.
        is_root: this rank is the root of the call, if it has one.
        spans: the group has members on several nodes.
    """
    if kind in _GATHERS:
        return Keeps.ALIKE if spans else Keeps.INPUT
    if kind in _ALIKE:
        return Keeps.ALIKE
    if kind in _ROOT_ONLY:
        return Keeps.RESULT if is_root else Keeps.NOTHING
    if kind == "barrier":
        return Keeps.NOTHING
    return Keeps.RESULT if kind in _RESULTS else None


def of_all(call: int, members: Sequence[int]) -> int:
    """The member whose log has the result of a call that gives all alike; they take turns.

    ``members``: those of one node.
    """
    return members[call % len(members)]
