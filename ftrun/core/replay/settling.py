"""From which call a group goes on when one of its workers was lost. Pure.

Theory of operation. All ranks number the calls that they make on the group. A rank logs what a call
gave it, in memory that outlives it, and then raises its word ``done``: all calls before it are
complete at this rank, and are in its log. So ``min(done)`` is what all have, it never falls, and
nobody needs the input of a call before it any more (``needed_from``). No call has to be one that
waits for all ranks.

A decree is a number that the agent raises at each death. At a decree every process of the group
does the same, the lost one's replacement as well (``next_step``):

| it sees that                         | it does           |                                       |
|--------------------------------------|-------------------|---------------------------------------|
| its group is that of the decree      | GO_ON             |                                       |
| it has not dropped its former groups | CUT               | so its ``done`` stands from here on   |
| it has not published the number      | PUBLISH           |                                       |
| another rank has not                 | WAIT              | for those ranks (``missing``)         |
| all have                             | CONNECT           | the group of this number              |

No ``done`` moves between the last PUBLISH and the moment at which the group of the decree is
connected, because that takes all ranks. So all read the same *first call*, ``min(done)``, between
the two: each must read it before it begins to connect. A newer decree ends every wait.

Then a process issues each call from the first one on that it had begun, in order, with the inputs
that it has kept, and goes on in its own call (``again``). The replacement runs the script from the
newest generation of the lost worker. Calls before the first one are answered from the log, and the
others are calls like all (``source``). Until it begins to connect, those before ``min(done)`` can
be answered already; from then on the first call alone counts, because for others the group may be
in force before. ``done`` counts what is in the log, not how far a process is: while a process is
behind its log it writes neither.

Not here: what is logged of a call (log_rules.py), decrees (mending.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from ftrun.core.replay.falls import Fall


class Step(Enum):
    """What a process does next about the newest decree. See the module's table."""

    GO_ON = auto()
    CUT = auto()
    PUBLISH = auto()
    WAIT = auto()
    CONNECT = auto()


class Source(Enum):
    """Where the result of a call comes from."""

    LOG = auto()
    LIVE = auto()
    WAIT = auto()


@dataclass(frozen=True, slots=True)
class Board:
    """The words of all ranks: ``number`` of the newest decree, and by rank the others.

    ``published``: the newest decree at which its ``done`` stands. ``done``: so many calls are in
    its log. ``over``: its script has come to its end, with all its results. It stays until that is
    so of all; a worker that dies there is replaced as any other, and is not over again before.
    """

    number: int
    published: Sequence[int]
    done: Sequence[int]
    over: Sequence[bool]


def next_step(board: Board, rank: int, cut: int, group: int) -> Step:
    """What the process of ``rank`` does next.

    Args:
        cut: the newest decree at which it has dropped its groups.
        group: the decree of the group that it is connected to; -1: to none.
    """
    if group == board.number:
        return Step.GO_ON
    if cut < board.number:
        return Step.CUT
    if board.published[rank] < board.number:
        return Step.PUBLISH
    return Step.WAIT if missing(board) else Step.CONNECT


def missing(board: Board) -> list[int]:
    """The ranks that have not published the newest decree."""
    return [rank for rank, number in enumerate(board.published) if number < board.number]


def in_all_logs(done: Sequence[int]) -> int:
    """All calls before this one are in the log of every rank.

    After ``Step.CONNECT``, and before it is carried out, it is the first call of the decree.
    """
    return min(done)


def source(call: int, first: int | None, done: Sequence[int], *, is_open: bool) -> Source:
    """Where the result of a call comes from that the script makes.

    Args:
        first: the first call of the decree whose group this process connects or is connected to;
            None: it connects to none. Others may have this group in force already, and wait for
            this process in each call from the first one on.
        done: of all ranks.
        is_open: the group is in force here, and the calls begun before are issued again.
    """
    if first is None:
        return Source.LOG if call < in_all_logs(done) else Source.WAIT
    if call < first:
        return Source.LOG
    return Source.LIVE if is_open else Source.WAIT


def needed_from(first: int | None, done: Sequence[int], *, is_open: bool) -> int:
    """Nobody needs the inputs of calls before this one. Arguments as those of ``source``."""
    return in_all_logs(done) if first is None or is_open else first


def again(first: int, begun: int, kept: Collection[int]) -> list[int] | Fall:
    """The calls that a process issues again, in this order, before it goes on in its own.

    Those that are complete here give a result that nobody needs; the others are the script's own.

    Args:
        first: the first call of the decree.
        begun: how many calls this process has begun.
        kept: those whose inputs it has.
    """
    calls = [call for call in sorted(kept) if call >= first]
    return calls if calls == list(range(first, begun)) or begun <= first else Fall.INPUT


# ---------------------------------------------------------------- where a replacement begins


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole copy of a rank's state; ``calls``: so many calls were made before it."""

    number: int
    calls: int


@dataclass(frozen=True, slots=True)
class Logged:
    """A log has the results of the calls from ``first`` to before ``end``."""

    first: int
    end: int


def begin(
    generations: Collection[Generation],
    logs: Collection[Logged],
    done: Sequence[int],
    rank: int,
) -> Generation | Fall:
    """The generation from which the replacement of ``rank`` begins.

    That is its newest whole one that was made before the first call, because it must issue each
    call from there on again. Such a one stays right, because the first call never falls. It must be
    chosen before the replacement publishes a decree: later, others may have the group in force and
    be past its first call.

    Args:
        generations: the whole ones of the lost worker's memory.
        logs: that lie there too.
        done: of all ranks, read before the logs.
    """
    if not generations:
        return Fall.NO_GENERATION
    known, by_number = in_all_logs(done), sorted(generations, key=lambda known: known.number)
    older = [generation for generation in by_number if generation.calls <= known]
    if not older:
        return Fall.TOO_NEW
    end = older[-1].calls
    for log in sorted(logs, key=lambda log: log.first):
        if log.first <= end:
            end = max(end, log.end)
    if end >= done[rank]:
        return older[-1]
    return Fall.LOG_FULL if older[-1] is by_number[-1] else Fall.TOO_NEW


def common(generations: Sequence[Collection[Generation]]) -> int | None:
    """The newest call before which each rank has a whole generation; None: there is none.

    Args:
        generations: the whole ones of each rank's memory.
    """
    calls = [{generation.calls for generation in known} for known in generations]
    return max(set.intersection(*calls), default=None)
