"""How the words of a group's ranks come to the boards of its other nodes. Pure.

Theory of operation. Each node has a board. The words of its own ranks there are the truth, which
its workers write, and those of other nodes' ranks are copies. While nobody dies nothing travels. A
node sends the words of a rank when one of them has changed since it was sent last, and those of all
its ranks at each new decree; how far a rank is (``done``) goes with them, and does not count as a
change. So what a rank of another node has done is right here once the decree is published that is
in force here (settling.py), which is when it is read.

| event                         | it follows                                                      |
|-------------------------------|-----------------------------------------------------------------|
| a look at the own ranks       | those that the other nodes lack are sent, in order, to the lead |
| words come, of the decree in  | they are written; the lead sends them on to the other nodes      |
| force here                    |                                                                 |
| ... of an older one           | they are dropped, because the node sends them again             |
| ... of a newer one            | they wait: this node has come for a lost one, and has no memory |
| a decree                      | what has waited for it is written; all own words are sent again |

Not here: the words themselves (settling.py), how they travel (agent/team/boards.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from ftrun.core.replay.settling import Board, missing


@dataclass(frozen=True, slots=True)
class RankWords:
    """The words of a rank, read in this order but for ``done``, which is read after ``published``.
    Agents send them to each other (core/messages/in_a_team.py).

    As of settling.py and mending.py; ``done`` by the group of the same place in ``groups``.
    ``appends``: to which files (snapshots/board.py).
    """

    group_rank: int
    published: int
    joined: int
    over: bool
    fall: int
    broken: int
    groups: tuple[int, ...] = ()
    done: tuple[int, ...] = ()
    appends: int = 0


@dataclass
class Mirror:
    """Of one node, and one incarnation. ``number``: of the decree in force here."""

    own: Collection[int]
    number: int = 0
    _sent: dict[int, RankWords] = field(default_factory=dict)
    _early: dict[int, tuple[int, RankWords]] = field(default_factory=dict)

    def news(self, rows: Sequence[RankWords]) -> list[RankWords]:
        """Which of its own ranks' words the other nodes lack. They are sent as of ``number``."""
        found = [row for row in rows if self._sent.get(row.group_rank) != _without_done(row)]
        self._sent |= {row.group_rank: _without_done(row) for row in found}
        return found

    def came(self, number: int, rows: Sequence[RankWords]) -> list[RankWords]:
        """Words have come that were sent as of a decree: those to write now."""
        others = [row for row in rows if row.group_rank not in self.own and number >= self.number]
        if number == self.number:
            return others
        self._early |= {row.group_rank: (number, row) for row in others}
        return []

    def raised(self, number: int) -> list[RankWords]:
        """A decree is in force here: the words to write now."""
        self.number = number
        self._sent.clear()
        found = [row for known, row in self._early.values() if known == number]
        self._early = {rank: x for rank, x in self._early.items() if x[0] > number}
        return found


def has_all(board: Board) -> bool:
    """Whether the words of all ranks stand, so that a replacement may choose where it begins.

    It has published the decree itself: until it connects no ``done`` of the decree moves. One that
    is over may have left, with all its results.
    """
    return all(board.over[rank] for rank in missing(board))


def _without_done(row: RankWords) -> RankWords:
    return replace(row, groups=(), done=())


@dataclass(slots=True)
class Elsewhere:
    """What the members of a group on other nodes have logged of its calls, as far as is known here.

    No word of theirs comes while nobody dies. But a call that waits for all members is complete
    only after each has begun it, and before that it has waited for as many of its former calls as
    this rank has. Members of one script make alike calls. If they do not, an input may be missing
    at a death, which is a fall (``Fall.INPUT``).

    ``logged``: they all have the calls before this one.
    """

    logged: int = 0
    _window: int = 0
    _before: int = 0

    def begins(self, call: int, awaited: int) -> None:
        """This rank begins a call. It has waited for all before ``awaited``."""
        self._window = max(self._window, call - awaited)

    def completes(self, call: int) -> None:
        """One that waits for all members is complete here."""
        self.logged = max(self.logged, call - self._window)

    def step_begins(self, call: int) -> None:
        """A step begins with this call. In the step before, all have met in some group."""
        self.logged, self._before = max(self.logged, self._before), call
