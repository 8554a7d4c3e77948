"""What a rank logs of a call, so that a replacement can be given the same result; where. Pure.

A result that does not fit is not logged, and from there on a replacement lacks it. Then a death
takes all back to a generation, whatever the others keep. So the rank writes a word, and where they
begin their next steps the others write it too, and keep nothing either until their next generation
(``is_in_vain``). No rank has to know it at the same moment: what is missing is a fall, and never
another result.
"""

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


def free_parts(taken: Sequence[tuple[int, int]], room: int) -> list[tuple[int, int]]:
    """Of a memory of so many bytes, what lies between the parts that are taken; some are empty."""
    ordered = sorted(taken)
    begins, ends = [begin for begin, _ in ordered], [end for _, end in ordered]
    return list(zip([0, *ends], [*begins, room], strict=True))


def roomy(free: Sequence[tuple[int, int]], wanted: int) -> tuple[int, int]:
    """The first part of so many bytes, because its memory was used before; else the largest one."""
    fit = (part for part in free if part[1] - part[0] >= wanted)
    return next(fit, max(free, key=lambda part: part[1] - part[0]))


def is_in_vain(full: Sequence[int], opened: Sequence[int]) -> bool:
    """Whether what a rank keeps of its calls helps nobody before its next generation.

    Args:
        full: of each rank, one more than the step of the generation whose log is full; 0: none is.
        opened: the steps of the generations of this rank's logs, as far as they are known.
    """
    return bool(opened) and opened[-1] + 1 in full


def may_be_made(*, is_full: bool, since: int, begun: int) -> bool:
    """Whether a generation can be made: what is copied may show what the calls since its place have
    given, so whoever begins there must have them from the log.

    Args:
        is_full: the log before, which has lacked results from some call on.
        since: the number of calls that had begun at the place; ``begun``: that have by now.
    """
    return not is_full or since == begun


def is_over(opened: Sequence[int], step: int, newest: Sequence[int]) -> bool:
    """Whether nobody needs the log before the last two, so that its memory is free.

    A rank that is in the step of its newest generation may not have copied that, and then its
    replacement begins at the one before.

    Args:
        opened: the steps of the generations of this rank's logs, in order.
        step: it begins now.
        newest: the steps of the newest whole generations of all ranks of the node.
    """
    return len(opened) > 1 and step > opened[-1] and min(newest) >= opened[-2]
