"""The ledger against one that books every single microsecond by hand, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.books.bands import BANDS_MAX, Bands
from ftrun.core.books.ledger import CHARGED_MAX, ENTRIES_KEPT, Ledger
from ftrun.core.books.uses import LOST, Use

SLOTS = ("0", "1", "2")
USES = (Use.TRAINING, Use.WAITING, Use.REPAIRING, Use.ABSENT)


@dataclass
class Dumb:
    """A list with one (use, charge) for each microsecond of each slot, from 100 on.

    ``bounds``: the beginnings of the entries that the ledger keeps, as far as this one knows them.
    """

    now: int = 100
    kept: dict[str, list[tuple[Use, int]]] = field(default_factory=lambda: {x: [] for x in SLOTS})
    present: dict[str, tuple[Use, int]] = field(
        default_factory=lambda: dict.fromkeys(SLOTS, (Use.ABSENT, 0))
    )
    opened: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SLOTS, 100))

    def advance(self, now: int) -> None:
        for slot in SLOTS:
            self.kept[slot] += [self.present[slot]] * (now - self.now)
        self.now = now

    def change(self, slot: str, use: Use, charge: int, at: int) -> None:
        at = min(max(at, self.opened[slot]), self.now)
        for moment in range(at - 100, self.now - 100):
            self.kept[slot][moment] = (use, charge)
        self.present[slot], self.opened[slot] = (use, charge), at

    def rebook(self, slot: str, since: int, uses: set[Use], to: Use, charge: int) -> None:
        for moment in range(max(since, 100) - 100, self.now - 100):
            if self.kept[slot][moment][0] in uses:
                self.kept[slot][moment] = (to, charge)
        self.opened[slot] = self.now

    def total(self, use: Use) -> int:
        return sum(of == use for slot in SLOTS for of, _ in self.kept[slot])

    def cost(self, incident: int) -> int:
        every = [x for slot in SLOTS for x in self.kept[slot]]
        return sum(use in LOST and charge == incident for use, charge in every)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.integers(0, 7)),
        st.tuples(
            st.just("change"),
            st.sampled_from(SLOTS),
            st.sampled_from(USES),
            st.integers(0, 2),
            st.integers(-9, 2),
        ),
        st.tuples(
            st.just("rebook"),
            st.sampled_from(SLOTS),
            st.integers(0, 6),
            st.sets(st.sampled_from((Use.TRAINING, Use.WAITING)), min_size=1),
            st.sampled_from((Use.REPAIRING, Use.STOPPED)),
            st.integers(0, 2),
        ),
    ),
    max_size=ENTRIES_KEPT,  # so that no entry is forgotten, which the dumb one cannot know
)


@given(ACTIONS)
def test_it_books_as_one_who_books_every_microsecond(actions: list[tuple[object, ...]]) -> None:
    ledger, dumb = Ledger(SLOTS, 100), Dumb()
    ledger.bands.width = 4
    for action in actions:
        match action:
            case ("advance", int(by)):
                ledger.advance(ledger.now + by)
                dumb.advance(dumb.now + by)
            case ("change", str(slot), Use() as use, int(charge), int(back)):
                ledger.change(slot, use, charge, ledger.now + back)
                dumb.change(slot, use, charge, dumb.now + back)
            case ("rebook", str(slot), int(back), set(uses), Use() as to, int(charge)):
                ledger.rebook(slot, ledger.now - back, uses, to, charge)
                dumb.rebook(slot, dumb.now - back, uses, to, charge)
        ledger.check()
        for use in Use:
            assert ledger.total(ledger.now).get(use, 0) == dumb.total(use)
        for slot in SLOTS:
            seconds = ledger.books[slot].seconds(ledger.now)
            assert sum(seconds.values()) == dumb.now - 100
            for use in USES:
                assert seconds.get(use, 0) == sum(of is use for of, _ in dumb.kept[slot])
        for incident in (1, 2):
            assert ledger.cost(incident, ledger.now) == dumb.cost(incident)
    row = ledger.bands.by_use.get(Use.TRAINING, [])
    moments = range(dumb.now - 100)
    for index, value in enumerate(row):
        inside = [at for at in moments if at // ledger.bands.width == index]
        assert value == sum(
            dumb.kept[slot][at][0] is Use.TRAINING for slot in SLOTS for at in inside
        )


def test_a_view_ahead_adds_the_open_time_without_booking_it() -> None:
    ledger = Ledger(SLOTS, 0)
    ledger.advance(10)
    ledger.change("0", Use.TRAINING, 0, 4)
    assert ledger.total(30) == {Use.TRAINING: 26, Use.ABSENT: 4 + 60}
    bands = ledger.bands.until(30, ledger.ahead(30))
    assert sum(sum(row) for row in bands.by_use.values()) == 30 * len(SLOTS)
    assert ledger.total(10) == {Use.TRAINING: 6, Use.ABSENT: 24}
    ledger.check()


def test_what_is_booked_again_belongs_to_one_incident() -> None:
    ledger = Ledger(("0",), 0, Use.TRAINING)
    ledger.advance(10)
    ledger.change("0", Use.WAITING, 1, 4)
    ledger.advance(20)
    ledger.rebook("0", 2, {Use.WAITING}, Use.STOPPED, 2)
    assert ledger.cost(1, 20) == 0
    assert ledger.cost(2, 20) == 16
    ledger.advance(25)  # the slot still waits, and its charge is still the first incident
    assert ledger.cost(1, 25) == 5
    ledger.check()


def test_bands_are_joined_in_pairs_and_lose_nothing() -> None:
    bands = Bands(0, 10)
    for index in range(5 * BANDS_MAX):
        bands.add(Use.TRAINING, 10 * index, 10 * index + 10, 3)
        bands.add_steps(2, 10 * index + 10)
    assert bands.width == 80
    assert len(bands.by_use[Use.TRAINING]) == 5 * BANDS_MAX // 8
    assert set(bands.by_use[Use.TRAINING]) == {240}
    assert bands.sum_of(Use.TRAINING) == 5 * BANDS_MAX * 30
    assert sum(bands.steps) == 2 * 5 * BANDS_MAX


def test_its_memory_is_bounded() -> None:
    ledger = Ledger(("0",), 0)
    for number in range(1, CHARGED_MAX + 50):
        ledger.advance(10 * number)
        ledger.change("0", Use.BACKOFF if number % 2 else Use.ABSENT, number, 10 * number)
    assert len(ledger.books["0"].past) == ENTRIES_KEPT
    assert ledger.cost(1, ledger.now) == 0  # long forgotten
    assert ledger.cost(CHARGED_MAX + 40, ledger.now) == 10
    ledger.check()


def test_a_second_that_is_dropped_is_found() -> None:
    ledger = Ledger(("0",), 0)
    ledger.advance(10)
    ledger.books["0"].opened += 1
    with pytest.raises(AssertionError, match="A1"):
        ledger.check()
