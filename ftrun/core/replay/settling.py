"""From which call a group goes on when one of its workers was lost. Pure.

Theory of operation. A rank numbers the calls that it makes in each process group that it is in, as
the group's other members do. It logs what each call gave it, in memory that outlives it and in the
order of its own program, and then raises its word ``done`` of the group: all the group's calls
before it are complete at this rank, and are in its log. So the least ``done`` of a group's members
is what all of them have, it never falls, and nobody needs the input of a call before it any more
(``needed_from``). No call has to be one that waits for all members.

A decree is a number that the agent raises at each death. At a decree every process of the group
does the same, the lost one's replacement as well (``next_step``):

| it sees that                         | it does           |                                       |
|--------------------------------------|-------------------|---------------------------------------|
| its group is that of the decree      | GO_ON             |                                       |
| it has not dropped its former groups | CUT               | so its ``done`` stands from here on   |
| it has not published the number      | PUBLISH           |                                       |
| another rank has not                 | WAIT              | for those ranks (``missing``)         |
| all have                             | CONNECT           | the group of this number              |

No ``done`` moves between the last PUBLISH and the moment at which the groups of the decree are
connected, because one of them is of all ranks. So all read the same *first call* of each group, the
least ``done``, between the two: each must read it before it begins to connect. A newer decree ends
every wait.

Then a process issues each call from its group's first one on that it had begun, in the order of its
program, with the inputs that it has kept, and goes on in its own call (``again``). The replacement
runs the script from a generation of the lost worker. Calls before the first one of their group are
answered from the log, and the others are calls like all (``source``); so those of two groups may
take turns, and it is back when it is at the first call of each (``is_back``). Until it begins to
connect, what all members have can be answered already; from then on the first call alone counts,
because for others the group may be in force before. ``done`` counts what is in the log, not how far
a process is: while a process is behind its log it writes neither.

A *boundary* is the begin of a step, alike at all ranks. A generation is of one, and has the calls
that its rank had made before, by group. The script may make others from there to the copy of its
state: a replacement is given those from the log, too. So are all, if all begin there; they make
them again only where no log is, as from a disk.

Not here: what is logged of a call (log_rules.py), decrees (mending.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from typing import TypeAlias

from ftrun.core.replay.falls import Fall

Counts: TypeAlias = Mapping[int, int]
"""By process group, for those of one rank: so many calls."""


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

    ``published``: the newest decree at which its ``done`` stands. ``done``: so many calls of each
    of its groups are in its log. ``over``: its script has come to its end, with all its results. It
    stays until that is so of all; a worker that dies there is replaced as any other, and is not
    over again before.
    """

    number: int
    published: Sequence[int]
    done: Sequence[Counts]
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


def in_all_logs(done: Sequence[Counts]) -> dict[int, int]:
    """By group: all its calls before this one are in the log of each member.

    After ``Step.CONNECT``, and before it is carried out, these are the first calls of the decree.
    """
    found: dict[int, int] = {}
    for own in done:
        for group, number in own.items():
            found[group] = min(number, found.get(group, number))
    return found


def source(call: int, first: int | None, done: Sequence[int], *, is_open: bool) -> Source:
    """Where the result of a call comes from that the script makes.

    Args:
        call: its number in its group.
        first: the group's first call of the decree whose groups this process connects or is
            connected to; None: it connects to none. Others may have the group in force already, and
            wait for this process in each call from the first one on.
        done: of the group's members.
        is_open: the groups are in force here, and the calls begun before are issued again.
    """
    if first is None:
        return Source.LOG if call < min(done) else Source.WAIT
    if call < first:
        return Source.LOG
    return Source.LIVE if is_open else Source.WAIT


def needed_from(first: int | None, done: Sequence[int], *, is_open: bool) -> int:
    """Nobody needs the inputs of a group's calls before this one. Arguments as of ``source``."""
    return min(done) if first is None or is_open else first


def again(
    first: Counts, begun: Counts, kept: Sequence[tuple[int, int]]
) -> list[tuple[int, int]] | Fall:
    """The calls that a process issues again, in this order, before it goes on in its own.

    Those that are complete here give a result that nobody needs; the others are the script's own.

    Args:
        first: by group, the first call of the decree.
        begun: how many calls this process has begun.
        kept: group and number of those whose inputs it has, in the order of its program.
    """
    calls = [(group, call) for group, call in kept if call >= first[group]]
    needed = {(group, call) for group in begun for call in range(first[group], begun[group])}
    return calls if needed <= set(calls) else Fall.INPUT


def others_are_ahead(begun: Counts, done: Sequence[Counts]) -> bool:
    """Whether a rank has the result of a call that this one has not begun. As for ``again``.

    A replacement may have come to the end of its log, and its predecessor may still have made
    calls of the next step, which others have completed.
    """
    return any(number > begun.get(group, number) for own in done for group, number in own.items())


def is_back(first: Counts, begun: Counts) -> bool:
    """Whether a process has come to the first call of each of its groups. As for ``again``."""
    return all(begun[group] >= first[group] for group in begun)


# ---------------------------------------------------------------- where a replacement begins


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole copy of a rank's state in ``step``.

    ``before``: the calls made before the step; ``calls``: those made before the copy. ``place``,
    ``copied``: how many these are, of all groups.
    """

    number: int
    step: int
    calls: Counts = field(default_factory=dict)
    before: Counts = field(default_factory=dict)

    @property
    def place(self) -> int:
        return sum(self.before.values())

    @property
    def copied(self) -> int:
        return sum(self.calls.values())


@dataclass(frozen=True, slots=True)
class Logged:
    """A log has the results of a rank's calls from its ``first`` to before its ``end``-th."""

    first: int
    end: int

    def leads_to(self, generation: Generation) -> bool:
        """Whether it has all calls between the place of a generation and its copy."""
        return self.first <= generation.place and generation.copied <= self.end


def begin(
    generations: Collection[Generation],
    logs: Collection[Logged],
    done: Sequence[Counts],
    rank: int,
    full: Collection[int] = (),
) -> Generation | Fall:
    """The generation from which the replacement of ``rank`` begins.

    That is its newest whole one that was made before the first call of each group, because it must
    issue each call from there on again. Such a one stays right, because no first call ever falls.
    It must be chosen before the replacement publishes a decree: later, others may have the groups
    in force and be past their first calls.

    Args:
        generations: the whole ones of the lost worker's memory.
        logs: that lie there too.
        done: of all ranks, read before the logs.
        full: the words of all ranks about their logs (log_rules.py).
    """
    if not generations:
        return Fall.NO_GENERATION
    if any(full):
        return Fall.LOG_FULL
    first, by_number = in_all_logs(done), sorted(generations, key=lambda known: known.number)
    older = [x for x in by_number if all(first.get(g, 0) >= x.calls[g] for g in x.calls)]
    if not older:
        return Fall.TOO_NEW
    end = older[-1].place
    for log in sorted(logs, key=lambda log: log.first):
        if log.first <= end:
            end = max(end, log.end)
    if end >= sum(done[rank].values()):
        return older[-1]
    return Fall.LOG_FULL if older[-1] is by_number[-1] else Fall.TOO_NEW


def common(
    generations: Sequence[Collection[Generation]],
    logs: Sequence[Collection[Logged]] | None = None,
    until: float = inf,
) -> int | None:
    """The newest step at whose begin each rank has a whole generation; None: there is none.

    All members of a group must have made as many calls in it before that step, and before the copy.

    Args:
        generations: the whole ones of each rank's memory.
        logs: of each rank: what is copied may show what the calls since the place have given, so
            whoever begins there has them from its log. None: the states go where no log is.
        until: no later step counts.
    """
    ranks = [
        {
            x.step: x
            for x in sorted(known, key=lambda x: x.number)
            if x.step <= until
            and (logs is None or x.place == x.copied or any(y.leads_to(x) for y in logs[rank]))
        }
        for rank, known in enumerate(generations)
    ]
    for step in sorted(set.intersection(*map(set, ranks)), reverse=True):
        calls: dict[tuple[str, int], int] = {}
        counts = [(("place", g), n) for own in ranks for g, n in own[step].before.items()]
        if logs is not None:
            counts += [(("copy", g), n) for own in ranks for g, n in own[step].calls.items()]
        if all(calls.setdefault(group, number) == number for group, number in counts):
            return step
    return None
