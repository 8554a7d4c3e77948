"""From which call a group resumes when one of its workers is lost. Pure.

Theory of operation. A rank numbers its calls in each of its process groups, and the group's other
members number them alike. It logs the result of each call, in memory that outlives the process and
in the order of its program. Then it raises its word ``done`` of the group: all the group's calls
before that number are complete at this rank, and are in its log. So the least ``done`` of a group's
members is what all of them have. It never falls, and the inputs of the calls before it are not
needed any more (``needed_from``). A call need not be one that waits for all members.

A decree is a number that the agent raises at each death. At a decree every process of the group
does the same, the lost worker's replacement as well (``next_step``):

| the process sees that                | it does           |                                       |
|--------------------------------------|-------------------|---------------------------------------|
| it is in the group of the decree     | GO_ON             |                                       |
| it has not dropped its former groups | CUT               | so its ``done`` is fixed from here on |
| it has not published the number      | PUBLISH           |                                       |
| another rank has not                 | WAIT              | for those ranks (``missing``)         |
| all have                             | CONNECT           | the group of this number              |

No ``done`` changes between the last PUBLISH and the moment at which the groups of the decree are
connected, because one of these groups has all ranks. So all processes read the same *first call* of
each group, the least ``done``, in between. Each must read it before it begins to connect. A newer
decree ends every wait.

Then a process issues again each call that it had begun, from its group's first call on, in the
order of its program, with the inputs that it has kept, and resumes its own call (``again``). The
replacement runs the script from a generation of the lost worker. Its calls before the first call of
their group are answered from the log, and the others are issued like any call (``source``). Calls
of two groups may therefore alternate, and the replacement is back when it has reached the first
call of each group (``is_back``). Until it begins to connect, what all members have can be answered
already. From then on the first call alone counts, because the group may already be in force at
other members. ``done`` counts what is in the log, not a process's progress: while a process is
behind its log, it writes neither.

A *boundary* is the begin of a step, alike at all ranks. A generation belongs to a boundary, and has
the number of calls that its rank had made before it, by group. The script may make further calls
from there to the copy of its state. A replacement gets their results from the log too, and so do
all ranks if all resume there. They are made again only where there is no log, as after a start from
disk.

Not here: what is logged of a call (log_rules.py), decrees (mending.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from typing import TypeAlias

from ftrun.core.replay.falls import Fall

Counts: TypeAlias = Mapping[int, int]
"""For one rank: by process group, a number of calls."""


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
    """The words of all ranks: ``number`` of the newest decree, and the others by rank.

    ``published``: the newest decree for which its ``done`` is fixed. ``done``: the number of calls
    of each of its groups that are in its log. ``over``: its script has ended, with all its results.
    Such a worker stays until all are over. If it dies there, it is replaced like any other, and is
    over again only when its replacement has ended.
    """

    number: int
    published: Sequence[int]
    done: Sequence[Counts]
    over: Sequence[bool]


def next_step(board: Board, rank: int, cut: int, group: int) -> Step:
    """What the process of ``rank`` does next.

    Args:
        cut: the newest decree at which it has dropped its groups.
        group: the decree of the group that it is connected to; -1: none.
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
    """Where the result of a call of the script comes from.

    Args:
        call: its number in its group.
        first: the group's first call of the decree that this process connects or is connected to;
            None: it connects to none. The group may already be in force at other members, which
            then wait for this process in each call from the first one on.
        done: the ``done`` of the group's members.
        is_open: the groups are in force here, and the calls begun before are issued again.
    """
    if first is None:
        return Source.LOG if call < min(done) else Source.WAIT
    if call < first:
        return Source.LOG
    return Source.LIVE if is_open else Source.WAIT


def needed_from(first: int | None, done: Sequence[int], *, is_open: bool) -> int:
    """The inputs of a group's calls before this one are not needed. Arguments: see ``source``."""
    return min(done) if first is None or is_open else first


def again(
    first: Counts, begun: Counts, kept: Sequence[tuple[int, int]]
) -> list[tuple[int, int]] | Fall:
    """The calls that a process issues again, in this order, before it resumes its own call.

    Results of calls that are already complete here are discarded; the others are the script's own.

    Args:
        first: by group, the first call of the decree.
        begun: by group, the number of calls that this process has begun.
        kept: group and number of the calls whose inputs it has, in the order of its program.
    """
    calls = [(group, call) for group, call in kept if call >= first[group]]
    needed = {(group, call) for group in begun for call in range(first[group], begun[group])}
    return calls if needed <= set(calls) else Fall.INPUT


def others_are_ahead(begun: Counts, done: Sequence[Counts]) -> bool:
    """Whether some rank has the result of a call that this one has not begun. Arguments: ``again``.

    A replacement may be at the end of its log although its predecessor had made calls of the next
    step, which other ranks have completed.
    """
    return any(number > begun.get(group, number) for own in done for group, number in own.items())


def is_back(first: Counts, begun: Counts) -> bool:
    """Whether a process has reached the first call of each of its groups. Arguments: ``again``."""
    return all(begun[group] >= first[group] for group in begun)


# ---------------------------------------------------------------- where a replacement begins


@dataclass(frozen=True, slots=True)
class Mark:
    """A generation's digests, to compare with those of the ``mates`` that must have the same ones
    (alike.py). Each is a number; ``mates`` is not 0.
    """

    mates: int
    parameters: int
    settings: int


def are_alike(marks: Iterable[Mark | None]) -> bool:
    """Whether all mates with equal settings have equal parameters."""
    found: dict[int, set[Mark]] = {}
    for mark in filter(None, marks):
        found.setdefault(mark.mates, set()).add(mark)
    return not any(len(x) > 1 and len({y.settings for y in x}) == 1 for x in found.values())


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole copy of a rank's state in ``step``.

    ``before``: by group, the calls made before the step; ``calls``: those made before the copy.
    ``place``, ``copied``: the sums of these over all groups. ``mark``: None: no other rank holds
    the same.
    """

    number: int
    step: int
    calls: Counts = field(default_factory=dict)
    before: Counts = field(default_factory=dict)
    mark: Mark | None = None

    @property
    def place(self) -> int:
        return sum(self.before.values())

    @property
    def copied(self) -> int:
        return sum(self.calls.values())


@dataclass(frozen=True, slots=True)
class Logged:
    """A log has the results of a rank's calls from ``first`` on, up to but not including
    ``end``.
    """

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

    That is its newest whole generation that was made before the first call of each group, because
    the replacement must issue each call from there on again. The choice stays right, because no
    first call ever falls. It must be made before the replacement publishes a decree: later, the
    groups may be in force at other ranks, past their first calls.

    Args:
        generations: the whole ones in the lost worker's memory.
        logs: the logs in the lost worker's memory.
        done: the words of all ranks, read before the logs.
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

    All members of a group must have made the same number of calls in it before that step, and
    before the copy. A step at which ranks have unlike marks is none: one of them is corrupted.

    Args:
        generations: by rank, the whole ones in its memory.
        logs: by rank. A copy may depend on the results of the calls since its place, so a rank that
            resumes there takes them from its log. None: the states are used where there is no log.
        until: later steps do not count.
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
        is_alike = are_alike(own[step].mark for own in ranks)
        if is_alike and all(calls.setdefault(group, n) == n for group, n in counts):
            return step
    return None
