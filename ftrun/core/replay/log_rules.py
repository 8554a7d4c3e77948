"""What a rank logs of a call, so that a replacement can be given the same result; where. Pure.

A result that does not fit is not logged, and from there on a replacement lacks it. Then a death
takes all back to a generation, whatever the others keep. So the rank writes a word, and where they
begin their next steps the others write it too, and keep nothing either until their next generation
(``is_in_vain``). No rank has to know it at the same moment: what is missing is a fall, and never
another result.

A step that is due, and that all know of before they come to it, begins with an empty log at its
place (``begins``). So even where logs are always full one has what follows up to the copy, and all
that begin again there take it from the log (settling.py: ``common``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from ftrun.core.ids import Attempt
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import Generation, Logged

MISSED_MAX = 3
"""Generations in a row that were due, and could not be made at the place of their step."""


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


def may_take(noted: Attempt, highest: Attempt) -> bool:
    """Whether a replacement has had a result that another replica's worker of its rank has logged.

    That worker has met the lost one in this reduction. So the lost one had the result too, or died
    just before; nobody can tell. If its group knows of no later attempt than that worker did then,
    no quorum relies on its not having it.

    Args:
        noted: the highest attempt that the other worker knew when it logged the result.
        highest: that the replacement's group has seen.
    """
    return noted >= highest


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
CALLED = ("", *sorted({"barrier", *_ROOT_ONLY, *_GATHERS, *_ALIKE, *_RESULTS}))
"""The calls that can be followed."""


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


def is_of_one_size(kind: str) -> bool:
    """Whether all members give tensors of as many bytes."""
    return kind in _ALIKE


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


def begins(
    logs: Collection[Logged],
    generations: Collection[Generation],
    *,
    begun: int,
    is_full: bool,
    is_behind: bool,
    spans: bool,
) -> bool:
    """Whether a log begins where a step does that is due: what a generation shows is in one log.

    A replacement goes on in the log that its predecessor has begun there. If each of several did
    begin one, the last would take the place of the log that others still repeat their calls from.

    Args:
        logs, generations: of this rank. A step that was due may have got no generation; then its
            log goes on.
        begun: so many calls the rank has begun.
        is_full: the log under way is, so that it helps nobody.
        is_behind: the rank repeats calls, and the lost worker has begun its log.
        spans: the logs of other nodes' ranks may be lost, so none is of use to who begins again.
    """
    if is_full or is_behind:
        return is_full and not (is_behind or spans)
    newest = max(logs, key=lambda log: log.first, default=Logged(0, 0))
    is_used = any(known.place >= newest.first for known in generations)
    return is_used and newest.first < newest.end <= begun


def needed(log: Logged, generations: Iterable[Generation]) -> int:
    """How many of its calls are needed of a log that is no part of a whole one any more.

    Nobody can be replaced alone then, and all that begin again need what a generation shows.
    """
    ends = (x.copied for x in generations if x.copied > x.place and log.leads_to(x))
    return max(ends, default=log.first) - log.first


def may_be_made(*, whole_from: int | None, since: int, begun: int) -> bool:
    """Whether a generation can be made: what is copied may show what the calls since its place have
    given, so whoever begins there must have them from the log.

    Args:
        whole_from: the logs have all calls from this one on; None: they lack the latest ones.
        since: the number of calls that had begun at the place; ``begun``: that have by now.
    """
    return since == begun or (whole_from is not None and whole_from <= since)


@dataclass
class Misses:
    """Why steps that were due have got no generation: now and then is well, always is a fall."""

    _in_row: int = 0

    def look(self, *, is_logged: bool, is_known: bool, is_settled: bool) -> Fall | None:
        """One is due at this step. Why it cannot be made; None: it can.

        Args:
            is_logged: ``may_be_made``.
            is_known: a replacement would get the same batch there: from a loader, or by a turn.
            is_settled: the script waits for no call from before the step.
        """
        lacks = Fall.LOG_FULL if not is_logged else None if is_settled else Fall.IN_FLIGHT
        lacks = lacks if is_known else Fall.SCRIPT
        self._in_row = 0 if lacks is None else self._in_row + 1
        return lacks

    @property
    def are_too_many(self) -> bool:
        """Whether nobody can be replaced alone from now on. It is so once, until one is made."""
        return self._in_row == MISSED_MAX


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
