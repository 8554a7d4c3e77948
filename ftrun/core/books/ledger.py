"""The books of the job's time: each microsecond of each slot has exactly one use (A1).

Integers only, so that the sums are exact. A slot has one open entry: its present use, since when,
and the incident that its lost time is charged to. A change closes the entry and opens another. It
may lie a little in the past, as far back as the open entry reaches. The last few closed entries of
a slot are kept, so that time which proves to be lost later can be booked again.

The sums over all slots grow as ``count of slots × time`` for each use. So the cost of an event
depends on what has changed, not on the number of slots. Not here: the use of a slot (uses.py), when
it is asked for (account.py), the sums over time (bands.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ftrun.core.books.bands import Bands
from ftrun.core.books.uses import LOST, Use

ENTRIES_KEPT = 8
CHARGED_MAX = 200
"""The number of incidents whose cost is kept; the oldest is dropped."""


def microseconds(seconds: float) -> int:
    """A time in the unit of the books."""
    return round(seconds * 1_000_000)


class Entry(NamedTuple):
    """A past time of a slot. ``charge``: the number of the incident; 0: none."""

    use: Use
    began: int
    ended: int
    charge: int


@dataclass(slots=True)
class SlotBook:
    """One slot. ``since``: when its use began; ``opened``: when the open entry began.

    ``spent``: by use, up to ``opened``. ``lost_before``: before the job's first quorum.
    """

    use: Use
    since: int
    opened: int
    charge: int = 0
    spent: dict[Use, int] = field(default_factory=dict)
    lost_before: int = 0
    past: deque[Entry] = field(default_factory=lambda: deque(maxlen=ENTRIES_KEPT))

    def seconds(self, now: int) -> dict[Use, int]:
        """The time by use until now, in microseconds."""
        spent = dict(self.spent)
        spent[self.use] = spent.get(self.use, 0) + now - self.opened
        return spent


class Ledger:
    """All times are in microseconds. ``now``: the time up to which the sums are carried forward."""

    def __init__(self, slots: Iterable[str], began: int, use: Use = Use.ABSENT) -> None:
        self.began = self.now = began
        self.books = {slot: SlotBook(use, began, began) for slot in slots}
        self.counts = {use: len(self.books)}
        self.spent: dict[Use, int] = {}
        self.bands = Bands(began)
        self._costs: dict[int, int] = {}
        self._charged: set[str] = set()

    @property
    def wall(self) -> int:
        """The time since the books were opened."""
        return self.now - self.began

    def advance(self, now: int) -> None:
        """Carry the sums forward."""
        if now <= self.now:
            return
        for use, count in self.counts.items():
            if count:
                self._add(use, self.now, now, count)
        self.now = now

    def change(self, slot: str, use: Use, charge: int, at: int) -> None:
        """The slot has had this use since ``at``, or since its open entry began, if that is
        later.
        """
        book = self.books[slot]
        at = min(max(at, book.opened), self.now)
        self._close(book, at)
        if use is not book.use:
            self._add(book.use, at, self.now, -1)
            self._add(use, at, self.now, 1)
            self.counts[book.use] -= 1
            self.counts[use] = self.counts.get(use, 0) + 1
            book.use, book.since = use, at
        book.charge = charge
        (self._charged.add if charge else self._charged.discard)(slot)

    def rebook(
        self, slot: str, since: int, uses: Collection[Use], to: Use, charge: int = 0
    ) -> None:
        """Book time since then again as ``to`` that was booked as one of ``uses`` and is still
        kept.
        """
        book = self.books[slot]
        self._close(book, self.now)
        pieces = [
            p for entry in book.past for p in self._again(book, entry, since, uses, to, charge)
        ]
        book.past = deque(pieces, maxlen=ENTRIES_KEPT)

    def cost(self, incident: int, now: int) -> int:
        books = (self.books[slot] for slot in self._charged)
        still = [now - b.opened for b in books if b.charge == incident and b.use in LOST]
        return self._costs.get(incident, 0) + sum(still)

    def costs(self, now: int) -> dict[int, int]:
        """The costs of all incidents that are kept."""
        numbers = [*self._costs, *(self.books[slot].charge for slot in self._charged)]
        return {number: self.cost(number, now) for number in dict.fromkeys(numbers)}

    def restore_costs(self, costs: Mapping[int, int]) -> None:
        """Set the costs of an earlier life."""
        self._costs = dict(list(costs.items())[-CHARGED_MAX:])

    @property
    def charged(self) -> frozenset[str]:
        """The slots whose lost time is charged to an incident now."""
        return frozenset(self._charged)

    def total(self, now: int) -> dict[Use, int]:
        """The time of all slots by use until ``now``, which must not be before the last event."""
        ahead = {use: count * (now - self.now) for use, count in self.counts.items()}
        uses = [use for use in Use if self.spent.get(use) or ahead.get(use)]
        return {use: self.spent.get(use, 0) + ahead.get(use, 0) for use in uses}

    def ahead(self, now: int) -> dict[Use, tuple[int, int]]:
        """By use: since when the sums lack it, and for how many slots."""
        return {use: (self.now, count) for use, count in self.counts.items() if now > self.now}

    def check(self) -> None:
        """Assert A1: the sum over all uses is the wall time times the slots, exactly.

        Raises:
            AssertionError: it is not, or the sums and the slots do not agree.
        """
        assert sum(self.spent.values()) == self.wall * len(self.books), "A1: the sum"
        by_slot: dict[Use, int] = {}
        for slot, book in self.books.items():
            seconds = book.seconds(self.now)
            assert sum(seconds.values()) == self.wall, f"A1: slot {slot}"
            assert min(seconds.values()) >= 0, f"A1: less than nothing in slot {slot}: {seconds}"
            for use, spent in seconds.items():
                by_slot[use] = by_slot.get(use, 0) + spent
        for use in Use:
            spent = self.spent.get(use, 0)
            assert spent == by_slot.get(use, 0), f"A1: {use.value} of all slots"
            assert spent == self.bands.sum_of(use), f"A1: {use.value} over time"
            assert self.counts.get(use, 0) == sum(b.use is use for b in self.books.values())
        lost = sum(spent for use, spent in by_slot.items() if use in LOST)
        charged = {b.charge for b in self.books.values()} | set(self._costs)
        costs = sum(self.cost(number, self.now) for number in charged if number)
        assert 0 <= costs <= lost, "A1: a lost second is charged twice"

    # ------------------------------------------------------------ inside

    def _add(self, use: Use, began: int, ended: int, slots: int) -> None:
        if ended > began:
            self.spent[use] = self.spent.get(use, 0) + slots * (ended - began)
            self.bands.add(use, began, ended, slots)

    def _close(self, book: SlotBook, at: int) -> None:
        """Close the open entry at ``at``. The next one begins there."""
        if at > book.opened:
            entry = Entry(book.use, book.opened, at, book.charge)
            book.spent[book.use] = book.spent.get(book.use, 0) + at - book.opened
            self._charge(entry, 1)
            book.past.append(entry)
            book.opened = at

    def _charge(self, entry: Entry, sign: int) -> None:
        if entry.charge and entry.use in LOST and (sign > 0 or entry.charge in self._costs):
            cost = self._costs.pop(entry.charge, 0) + sign * (entry.ended - entry.began)
            self._costs[entry.charge] = cost  # the newest is the last one
            if len(self._costs) > CHARGED_MAX:
                del self._costs[next(iter(self._costs))]

    def _again(
        self,
        book: SlotBook,
        entry: Entry,
        since: int,
        uses: Collection[Use],
        to: Use,
        charge: int,
    ) -> Iterable[Entry]:
        """A closed entry, or its parts before and after ``since``, the latter booked again."""
        began = max(entry.began, since)
        if entry.use not in uses or entry.ended <= began:
            return [entry]
        former = Entry(entry.use, began, entry.ended, entry.charge)
        latter = Entry(to, began, entry.ended, charge)
        for part, sign in ((former, -1), (latter, 1)):
            self._add(part.use, began, entry.ended, sign)
            self._charge(part, sign)
            book.spent[part.use] = book.spent.get(part.use, 0) + sign * (entry.ended - began)
        before = Entry(entry.use, entry.began, began, entry.charge)
        return [before, latter] if began > entry.began else [latter]
