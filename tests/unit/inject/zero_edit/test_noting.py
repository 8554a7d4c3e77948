"""Which iterators give training batches, and where a newcomer is set to."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from ftrun.inject.zero_edit.frames import Spot, stack
from ftrun.inject.zero_edit.loaders import OPEN, LoaderIterator
from ftrun.inject.zero_edit.noting import PHASE_STEPS, TURN_MAX, Noting, matched
from ftrun.inject.zero_edit.place import LoaderPlace, Place
from ftrun.inject.zero_edit.randomness import Randomness
from ftrun.inject.zero_edit.sparing import Sparing
from ftrun.inject.zero_edit.values.frameworks import Frameworks
from ftrun.inject.zero_edit.values.tensors import Tensors
from tests.unit.inject.zero_edit.values.counted import counters_of


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Noting]:
    gc.collect()
    monkeypatch.setattr(OPEN, "_held", {})
    frameworks = Frameworks()
    script: Any = SimpleNamespace(
        own=SimpleNamespace(leave=lambda step: None),
        frameworks=frameworks,
        counters=counters_of(frameworks),
        tensors=Tensors(lambda: ()),
        world=SimpleNamespace(count=0),
        memory=None,
        predecessor=None,
        sparing=Sparing(lambda: True, lambda: 0),
        file=lambda _: tmp_path / "random",
        mates=SimpleNamespace(rank=0),
        committed=lambda: 0,
        life=lambda: "life",
    )
    script.randomness = Randomness(script)
    made = Noting(script)
    monkeypatch.setattr(OPEN, "before_draw", made.draw)
    yield made
    OPEN.ended_ones.clear()


def iterator_of(count: int) -> LoaderIterator:
    loader: Any = DataLoader(list(range(count)), 1)  # type: ignore[arg-type]
    return LoaderIterator(loader, lambda: DataLoader.__iter__(loader))


def step(noting: Noting) -> Place | None:
    """A forward pass in training, and its step."""
    draws = noting.training()
    noted = (draws[0].noted if draws else None) or noting.note()
    place = noting.place(draws, noted)
    noting.commit()
    return place


def test_each_step_has_the_place_of_its_first_draw(noting: Noting) -> None:
    batches = iterator_of(6)
    for number in range(3):
        _ = next(batches), next(batches)
        place = step(noting)
        assert place is not None
        assert [x.drawn for x in place.loaders] == [2 * number]
        assert place.entry == batches.entry


def test_a_second_step_with_the_same_batch_has_no_place(noting: Noting) -> None:
    batches = iterator_of(3)
    for _ in range(2):
        _ = next(batches)
        assert step(noting) is not None
        assert step(noting) is None


def in_turns(batches: LoaderIterator, noting: Noting, *, ends: int = 9) -> list[Place | None]:
    """Turns of two steps: the batches of the second one are drawn at another line."""
    places: list[Place | None] = []
    while len(places) < ends:
        for _ in range(2):
            _ = next(batches)
        places.append(step(noting))
        if len(places) == ends:
            break
        _ = next(batches)
        places.append(step(noting))
    return places


def test_a_draw_within_a_turn_is_no_place_to_join(noting: Noting) -> None:
    """A newcomer of the second step joins where the turn begins. Seen: it was set to the second
    step's batch at the first one's line."""
    places = in_turns(iterator_of(20), noting)
    assert [x is None for x in places] == [False, True] * 4 + [False]
    assert [x.loaders[0].drawn for x in places if x is not None] == [0, 3, 6, 9, 12]
    last = places[-1]
    assert last is not None and [first for _, first in last.inner] == [last.entry]
    assert Place.decode(last.encode()).inner == last.inner


def test_an_iterator_that_begins_within_a_turn_is_joined_where_the_turn_begins(
    noting: Noting,
) -> None:
    loader: Any = DataLoader(list(range(5)), 1)  # type: ignore[arg-type]

    def cycle() -> Iterator[Any]:
        while True:
            yield from LoaderIterator(loader, lambda: DataLoader.__iter__(loader))

    batches: Any = cycle()
    places = in_turns(batches, noting, ends=15)
    assert [x is None for x in places] == [False, True] * 7 + [False]
    assert len({x.entry for x in places if x is not None}) == 1


def test_a_loop_that_does_not_come_back_to_its_first_draw_has_a_place_at_each_other(
    noting: Noting,
) -> None:
    batches = iterator_of(40)
    pair = next(batches), next(batches)
    places = []
    while pair[0] is not None:
        places.append(step(noting))
        pair = next(batches, None), next(batches, None)
    found = [x is not None for x in places]
    assert found == [True] + [False] * TURN_MAX + [True] * (19 - TURN_MAX)


def test_a_long_way_back_to_the_first_draw_is_no_turn(noting: Noting) -> None:
    """As of epochs that share one iterator, each with a first draw before its loop."""
    batches, places = iterator_of(90), list[bool]()
    for epoch in range(3):
        pair = next(batches), next(batches)
        for _ in range(TURN_MAX + 2):
            places.append(step(noting) is not None)
            pair = next(batches), next(batches)
        assert pair, epoch
    assert places == [True] + [False] * TURN_MAX + [True] * (2 * TURN_MAX + 5)


def test_all_look_at_the_first_draws_and_at_those_of_turns(
    noting: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at those that are not noted: else one would take a step for one with a place."""
    monkeypatch.setattr(noting, "_sparing", Sparing(lambda: False, lambda: 1, 0.0))
    batches, found = iterator_of(200), list[bool]()

    def passes() -> None:
        found.append(noting.numbers(noting.training(), ()) is None)
        noting.commit()

    for _ in range(100):
        _ = next(batches)
        passes()
        _ = next(batches)
        passes()
    assert found == [False, True] * 100


def test_a_loss_that_some_turns_compute_and_all_read_is_a_value(noting: Noting) -> None:
    one, found = torch.ones((), requires_grad=True), []
    penalty = one * 0
    for turn in range(2):
        if not turn:
            penalty = one * 3
        loss = one * turn + penalty
        found.append(dict(noting.note().read)[stack()[0].name])
        assert loss.requires_grad
    assert [x["penalty"]["values"][2] for x in found] == [[3.0], [3.0]]
    assert not any("loss" in x or "one" in x for x in found), "each turn computes it; a parameter"


def test_a_step_without_a_draw_has_no_numbers_of_its_own(noting: Noting) -> None:
    """As the first one after a loop over a loader, whose last draw has found the end."""
    batches = iterator_of(3)
    for is_last in (False, False, False, True):
        assert (next(batches, None) is None) is is_last
        assert (noting.numbers(noting.training(), ()) is None) is is_last
        noting.commit()


@pytest.mark.parametrize("happens", ["a draw", "a reduction", "a draw within the step before"])
def test_a_pass_is_idle_if_the_step_has_another_batch(noting: Noting, happens: str) -> None:
    """As of a loss that is looked at after the step."""
    batches, idle = iterator_of(9), []
    for _ in range(3):
        _ = next(batches)
        noting.training()
        if happens == "a draw within the step before":
            _ = next(batches)
        noting.commit()
        idle.append((stack() in noting.idle, noting.stands(noting.training()))[0])  # at one line
        if happens == "a reduction":
            noting.begun_at = ()
        _ = next(batches)
        noting.passes_again(noting.training())
        noting.commit()
    assert idle == ([False, True, True] if happens == "a draw" else [False] * 3)


def test_batches_for_an_evaluation_are_not_for_training(noting: Noting) -> None:
    checks, batches = iterator_of(6), iterator_of(6)
    _ = next(checks)
    OPEN.evaluated()
    _ = next(batches)
    assert noting.training() == [batches]


def test_a_helper_that_iterates_over_all_loaders_does_not_make_an_evaluation_training(
    noting: Noting,
) -> None:
    """Without a model that says that it evaluates: the script calls the wrapped module itself."""

    def through(count: int) -> Iterator[Any]:
        batches = iterator_of(count)
        while (batch := next(batches, None)) is not None:
            yield batch

    for epoch in range(2):
        for _ in through(3):
            place = step(noting)
            assert place is not None and len(place.loaders) == 1, epoch
        for _ in through(2):
            pass


def test_of_loaders_that_have_ended_the_last_one_gave_the_batch(noting: Noting) -> None:
    early, late = iterator_of(1), iterator_of(1)
    assert len(list(early)) == len(list(late)) == 1
    assert noting.training() == [late]
    noting.commit()
    assert noting.training() == []


def test_a_loop_that_draws_seldom_is_joined_where_it_draws(noting: Noting) -> None:
    batches = iterator_of(1)
    _ = next(batches)
    assert step(noting) is not None
    del batches
    places = [step(noting) for _ in range(PHASE_STEPS + 1)]
    assert places[:-2] == [None] * (PHASE_STEPS - 1)
    assert places[-1] is not None and not places[-1].loaders


def test_a_newcomers_loaders_are_counted_from_the_one_it_draws_from(noting: Noting) -> None:
    checks, first, second = iterator_of(4), iterator_of(4), iterator_of(4)
    assert [x.number for x in (checks, first, second)] == [0, 1, 2]
    peers = [LoaderPlace(first.spot, number, None, 5 + number) for number in (0, 1)]
    elsewhere = LoaderPlace(Spot("other.py:main", 3), 0, None, 1)
    found, without = matched([*peers, elsewhere], first)
    assert found == [(peers[0], first), (peers[1], second)] and without == [elsewhere]
    assert matched(peers, None) == ([(peers[0], checks), (peers[1], first)], [])
    assert matched([], first) == ([], [])


def test_a_loader_whose_iterator_the_peers_began_at_another_line_is_found(noting: Noting) -> None:
    outer, inner = iterator_of(4), iterator_of(4)
    outer.made, inner.made = (Spot("a.py:main", 1), 0), (Spot("a.py:main", 2), 0)
    first = LoaderPlace(outer.spot, outer.number, 1, 5, None, *outer.made)
    again = LoaderPlace(Spot("a.py:main", 9), 0, 3, 2, None, *inner.made)
    assert matched([first, again], outer) == ([(first, outer), (again, inner)], [])
    made_later = LoaderPlace(Spot("a.py:main", 9), 0, 3, 2, None, inner.made[0], 7)
    assert matched([first, made_later], outer)[0] == [(first, outer), (made_later, inner)]


def test_a_loader_that_begins_behind_the_first_draw_is_begun_by_a_newcomer_too(
    noting: Noting,
) -> None:
    """A place has what was open there: also an iterator that has ended since, behind which a
    newcomer begins the next one as its peers have. Seen: no step used the last batch of an epoch,
    and the batches of the next one were named as not carried."""
    batches, beside = iterator_of(4), iterator_of(3)
    noting.begin(noting.note())
    for number in range(5):
        _ = next(batches, None)
        if number < 2:
            step(noting)
    following = iterator_of(3)
    _drawn = next(beside), next(following)
    place = step(noting)
    assert place is not None
    assert {x.number for x in (*place.loaders, *place.others)} == {batches.number, beside.number}


def test_a_batch_of_the_next_epoch_that_was_drawn_in_the_last_step_is_for_the_next(
    noting: Noting,
) -> None:
    """The script has dropped the iterator that ended; it is forgotten after the step only."""
    loader: Any = DataLoader(list(range(1)), 1)  # type: ignore[arg-type]
    ended = LoaderIterator(loader, lambda: DataLoader.__iter__(loader))
    assert len(list(ended)) == 1
    noting.training()
    del ended
    following = LoaderIterator(loader, lambda: DataLoader.__iter__(loader))
    _ = next(following)
    noting.commit()
    assert following.is_fresh


def test_a_loader_that_was_warmed_is_no_training_one(noting: Noting) -> None:
    """Seen: that of an evaluation, of which a batch was thrown away before the loop."""
    numbers: Any = list(range(4))
    warmed, other = (
        LoaderIterator(x, lambda x=x: DataLoader.__iter__(x))  # type: ignore[misc]
        for x in (DataLoader(numbers, 1), DataLoader(numbers, 1))
    )
    next(warmed)
    batch = next(other)
    assert len(batch) and noting.training() == [other]
