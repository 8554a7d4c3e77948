"""What a rank logs of its calls, and where, so that a replacement gets the same results. Pure.

A result that does not fit is not logged, and a replacement lacks it and all that follow. A death
then takes all ranks back to a generation, whatever the other ranks log. So the rank sets its word
``full``. The others read it where they begin their next steps, and log nothing either until their
next generation (``is_in_vain``). The ranks need not read it at the same moment: a missing result
leads to a fall, never to a different result.

A due step that all ranks know of in advance begins with an empty log at its place (``begins``). So
even if each log overflows, one log has the calls from there to the copy, and all ranks that resume
there take them from it (settling.py: ``common``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from ftrun.core.ids import Attempt
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import Generation, Logged

MISSED_MAX = 3
"""The limit of due generations in a row that could not be made at the place of their step."""


class Keeps(IntEnum):
    """What the log has of a call. 0 is not used, so that an empty word is none of them.

    ``RESULT``: the result at this rank. ``INPUT``: the input of this rank; the result is made of
    the inputs in the logs of all members. ``ALIKE``: a result that all members share, which one
    member logs for all (``of_all``). ``NOTHING``: the call has no result at this rank.
    """

    RESULT = 1
    INPUT = 2
    NOTHING = 3
    ALIKE = 4


def may_take(noted: Attempt, highest: Attempt) -> bool:
    """Whether a replacement counts as having had a result that a peer of another replica has
    logged.

    The peer has the same rank and took part in this reduction together with the lost worker. So the
    lost worker had the result too, or died just before; this cannot be decided. If the
    replacement's group has seen no later attempt than the peer knew then, no quorum relies on its
    not having had the result.

    Args:
        noted: the highest attempt that the peer knew when it logged the result.
        highest: the highest attempt that the replacement's group has seen.
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
"""The calls that can be logged and repeated."""


def keeps(kind: str, *, is_root: bool, spans: bool = False) -> Keeps | None:
    """What is logged of a call; None: a script that makes this call cannot be followed.

    Sends and receives are not supported, because they are not numbered alike at all ranks. A
    replacement has only the logs of its own node, so a gather over several nodes is logged as a
    result.

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
    """Whether the tensors of all members have the same number of bytes."""
    return kind in _ALIKE


def of_all(call: int, members: Sequence[int]) -> int:
    """The member that logs a result which all members share; members take turns.

    ``members``: the members on one node.
    """
    return members[call % len(members)]


def free_parts(taken: Sequence[tuple[int, int]], room: int) -> list[tuple[int, int]]:
    """The free parts of a memory of ``room`` bytes, between the parts taken; some are empty."""
    ordered = sorted(taken)
    begins, ends = [begin for begin, _ in ordered], [end for _, end in ordered]
    return list(zip([0, *ends], [*begins, room], strict=True))


def roomy(free: Sequence[tuple[int, int]], wanted: int) -> tuple[int, int]:
    """The first free part of at least ``wanted`` bytes, because its memory was used before; if
    there is none, the largest part.
    """
    fit = (part for part in free if part[1] - part[0] >= wanted)
    return next(fit, max(free, key=lambda part: part[1] - part[0]))


def is_in_vain(full: Sequence[int], opened: Sequence[int]) -> bool:
    """Whether what a rank logs of its calls is of no use before its next generation.

    Args:
        full: by rank, 1 + the step of the generation whose log is full; 0: no log is full.
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
    """Whether a new log begins at the begin of a due step, so that one log has all calls from there
    to the copy.

    A replacement continues the log that its predecessor has begun there. If each of several
    replacements began a new log, the last one would overwrite the log that others still repeat
    their calls from.

    Args:
        logs, generations: this rank's. A due step may have got no generation; its log is then
            continued.
        begun: the number of calls that the rank has begun.
        is_full: the current log is full, so it is of no use.
        is_behind: the rank repeats calls whose log its predecessor has begun.
        spans: the group has several nodes. The logs of other nodes' ranks may be lost, so no log is
            of use to a rank that resumes.
    """
    if is_full or is_behind:
        return is_full and not (is_behind or spans)
    newest = max(logs, key=lambda log: log.first, default=Logged(0, 0))
    is_used = any(known.place >= newest.first for known in generations)
    return is_used and newest.first < newest.end <= begun


def needed(log: Logged, generations: Iterable[Generation]) -> int:
    """The number of calls that must be kept of a log that is not part of a whole one any more.

    No worker can be replaced alone then. All that resume need the calls from the place of a
    generation to its copy.
    """
    ends = (x.copied for x in generations if x.copied > x.place and log.leads_to(x))
    return max(ends, default=log.first) - log.first


def may_be_made(*, whole_from: int | None, since: int, begun: int) -> bool:
    """Whether a generation can be made.

    Its copy may depend on the results of the calls since its place, so these must be in the log of
    each rank that resumes there.

    Args:
        whole_from: the logs have all calls from this one on; None: they lack the latest ones.
        since: the number of calls that had begun at the place.
        begun: the number of calls that have begun by now.
    """
    return since == begun or (whole_from is not None and whole_from <= since)


@dataclass
class Misses:
    """Counts due steps in a row that got no generation: a few are harmless, too many are a fall."""

    _in_row: int = 0

    def look(self, *, is_logged: bool, is_known: bool, is_settled: bool) -> Fall | None:
        """A generation is due at this step. Returns why it cannot be made; None: it can.

        Args:
            is_logged: the result of ``may_be_made``.
            is_known: a replacement would get the same batch there, from a loader or by a turn.
            is_settled: the script waits for no call from before the step.
        """
        lacks = Fall.LOG_FULL if not is_logged else None if is_settled else Fall.IN_FLIGHT
        lacks = lacks if is_known else Fall.SCRIPT
        self._in_row = 0 if lacks is None else self._in_row + 1
        return lacks

    @property
    def are_too_many(self) -> bool:
        """Whether no worker can be replaced alone from now on.

        True once, until a generation is made.
        """
        return self._in_row == MISSED_MAX


def is_over(opened: Sequence[int], step: int, newest: Sequence[int]) -> bool:
    """Whether the log before the last two is not needed any more, so that its memory is free.

    A rank in the step of its newest generation may not have completed that copy. Its replacement
    then begins at the generation before.

    Args:
        opened: the steps of the generations of this rank's logs, in order.
        step: the step that begins now.
        newest: the steps of the newest whole generations of all ranks of the node.
    """
    return len(opened) > 1 and step > opened[-1] and min(newest) >= opened[-2]
