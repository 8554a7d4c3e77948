"""From which call a group goes on when one of its workers was lost. Pure.

Theory of operation. All ranks number the calls that they make on the group. A rank logs what a call
gave it, in memory that outlives it, and then raises its word ``done``: all calls before it are
complete at this rank, and are in its log. So ``min(done)`` is what all have, it never falls, and
nobody needs the input of a call before it any more (``in_all_logs``). No call has to be one that
waits for all ranks.

A decree is a number that the agent raises at each death. At a decree every process of the group
does the same, the lost one's replacement as well (``next_step``):

| it sees that                         | it does           |                                       |
|--------------------------------------|-------------------|---------------------------------------|
| the script of every rank is over     | LEAVE             | no call is missing anywhere           |
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
others are calls like all (``source``). It never lowers ``done``, because that counts what is in the
log, not how far a process is: while it is behind its log it writes neither.

| call of a process               | group of the decree is there | is not          |
|---------------------------------|------------------------------|-----------------|
| before ``min(done)``            | from the log, if also before the first call; else LIVE | from the log |
| from there on                   | LIVE                         | WAIT            |

Not here: what is logged of a call (log_rules.py), decrees (mending.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from ftrun.core.replay.falls import Fall


class Step(Enum):
    """What a process does next about the newest decree. See the module's table."""

    LEAVE = auto()
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
    its log. ``over``: its script has come to its end, and has all its results.
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
    if all(board.over):
        return Step.LEAVE
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
    """All calls before this one are in the log of every rank: no input of theirs is needed.

    After ``Step.CONNECT``, and before it is carried out, it is the first call of the decree.
    """
    return min(done)


def source(call: int, first: int | None, done: Sequence[int]) -> Source:
    """Where the result of a call comes from that the script makes.

    Args:
        first: the first call of the group in force; None: there is no group in force.
        done: of all ranks.
    """
    if first is None:
        return Source.LOG if call < in_all_logs(done) else Source.WAIT
    return Source.LOG if call < first else Source.LIVE


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


def raised(done: int, through: Collection[int]) -> int:
    """The word ``done`` when the calls ``through`` are complete and in the log, perhaps not in order.

    It is ``done`` itself in a process that is behind its log.
    """
    while done in through:
        done += 1
    return done


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
    generations: Collection[Generation], logs: Collection[Logged], done: int
) -> Generation | Fall:
    """The generation from which a lost worker's replacement begins: its newest whole one.

    Args:
        generations: the whole ones of the lost worker's memory.
        logs: that lie there too.
        done: its word.
    """
    newest = max(generations, key=lambda known: known.number, default=None)
    if newest is None:
        return Fall.NO_GENERATION
    end = newest.calls
    for log in sorted(logs, key=lambda known: known.first):
        if log.first <= end:
            end = max(end, log.end)
    return newest if end >= done else Fall.LOG_FULL
