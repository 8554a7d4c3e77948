"""How the words of a group's ranks get to the boards of its other nodes. Pure.

Theory of operation. Each node has a board. Workers write the words of their own ranks there; the
words of other nodes' ranks are copies. Without a death nothing is sent. A node sends the words of a
rank when one of them has changed since it was sent last, and those of all its ranks at each new
decree. The rank's progress (``done``) is sent along, but its change alone is no reason to send. So
the ``done`` of a rank on another node is right here once that rank has published the decree in
force here (settling.py). It is read only then.

| event                         | result                                                          |
|-------------------------------|-----------------------------------------------------------------|
| a look at the own ranks       | words that the other nodes lack are sent, in order, to the lead |
| words arrive, of the decree   | they are written; the lead forwards them to the other nodes     |
| in force here                 |                                                                 |
| ... of an older one           | they are dropped, because their node sends them again           |
| ... of a newer one            | they wait: this node replaces a lost one, and has no memory yet |
| a decree                      | words that waited for it are written; all own words are resent  |

Not here: the meaning of the words (settling.py), how they travel (agent/team/boards.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from ftrun.core.replay.settling import Board, missing


@dataclass(frozen=True, slots=True)
class RankWords:
    """The words of a rank. They are read in this order, but ``done`` is read after ``published``.
    Agents send them to each other (core/messages/in_a_team.py).

    The words are those of settling.py and mending.py. ``done`` belongs to the group at the same
    place in ``groups``. ``appends``: the files to which they are appended (snapshots/board.py).
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
    """The mirror of one node and one incarnation. ``number``: the decree in force here."""

    own: Collection[int]
    number: int = 0
    _sent: dict[int, RankWords] = field(default_factory=dict)
    _early: dict[int, tuple[int, RankWords]] = field(default_factory=dict)

    def news(self, rows: Sequence[RankWords]) -> list[RankWords]:
        """The words of own ranks that the other nodes lack. They are sent under ``number``."""
        found = [row for row in rows if self._sent.get(row.group_rank) != _without_done(row)]
        self._sent |= {row.group_rank: _without_done(row) for row in found}
        return found

    def came(self, number: int, rows: Sequence[RankWords]) -> list[RankWords]:
        """Words have arrived that were sent under a decree. Returns those to write now."""
        others = [row for row in rows if row.group_rank not in self.own and number >= self.number]
        if number == self.number:
            return others
        self._early |= {row.group_rank: (number, row) for row in others}
        return []

    def raised(self, number: int) -> list[RankWords]:
        """A decree is in force here. Returns the words to write now."""
        self.number = number
        self._sent.clear()
        found = [row for known, row in self._early.values() if known == number]
        self._early = {rank: x for rank, x in self._early.items() if x[0] > number}
        return found


def has_all(board: Board) -> bool:
    """Whether the words of all ranks are final, so that a replacement may choose where it begins.

    The replacement must have published the decree itself: until it connects, no ``done`` of the
    decree changes. A rank that is over may have left, with all its results.
    """
    return all(board.over[rank] for rank in missing(board))


def _without_done(row: RankWords) -> RankWords:
    return replace(row, groups=(), done=())


@dataclass(slots=True)
class Elsewhere:
    """What members on other nodes have logged of a group's calls, as far as it is known here.

    Their words are not sent unless a worker dies. But a call that waits for all members is complete
    only after each member has begun it, and each had waited before for as many of its earlier calls
    as this rank has. All members run one script, so their calls match. If they do not, an input may
    be missing at a death, which is a fall (``Fall.INPUT``).

    ``logged``: all members have the calls before this one.
    """

    logged: int = 0
    _window: int = 0
    _before: int = 0

    def begins(self, call: int, awaited: int) -> None:
        """This rank begins a call. It has waited for all calls before ``awaited``."""
        self._window = max(self._window, call - awaited)

    def completes(self, call: int) -> None:
        """A call that waits for all members is complete here."""
        self.logged = max(self.logged, call - self._window)

    def step_begins(self, call: int) -> None:
        """A step begins with this call. In the step before, all members have met in some group."""
        self.logged, self._before = max(self.logged, self._before), call
