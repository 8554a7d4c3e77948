"""Where a replica stands between two places."""

from __future__ import annotations

from dataclasses import replace

from ftrun.inject.zero_edit.frames import NOWHERE, Spot
from ftrun.inject.zero_edit.place import LoaderPlace, Numbers, Place
from ftrun.inject.zero_edit.standing import Standing

LINE = Spot("train.py:main", 7)
EPOCHS = ((Spot("train.py:main", 5), 1),)


def place_at(batch: int) -> Place:
    return Place(
        (LINE,), (LINE,), (LoaderPlace(LINE, 0, 1, batch),), EPOCHS, {LINE.name: {"n": batch}}
    )


def numbers_at(batch: int) -> Numbers:
    return [(LINE, 0, 1, batch, None, NOWHERE, 0)], EPOCHS, (), None


def at_a_place() -> Standing:
    standing = Standing()
    standing.is_at(place_at(3), 0)
    standing.steps += 1
    return standing


def test_a_step_without_a_place_has_its_batches_and_older_counters() -> None:
    standing = at_a_place()
    standing.goes_on(numbers_at(4), 0)
    shown = standing.shown()
    assert shown == replace(place_at(3), loaders=place_at(4).loaders, commits=1)
    assert standing.position()() == (
        "index 1 of the loop at train.py:5, epoch 1, batch 4 of the data loader at train.py:7, "
        "step 0 from there"
    )


def test_a_step_with_the_batches_of_the_one_before_is_counted() -> None:
    standing = at_a_place()
    standing.goes_on(None, 0)
    assert standing.shown() == replace(place_at(3), behind=1)
    assert standing.position()().endswith(
        "batch 3 of the data loader at train.py:7, step 1 from there"
    )


def test_a_newcomer_at_a_second_step_with_one_batch_stands_like_its_peer() -> None:
    there, here = at_a_place(), Standing()
    there.goes_on(None, 0)
    here.is_at(Place.decode(there.shown().encode()), 0)
    assert here.is_like(there.shown()) and here.place.behind == 0
    assert here.position()() == there.position()()
    there.steps, here.steps = there.steps + 1, here.steps + 1
    there.goes_on(numbers_at(4), 0), here.goes_on(numbers_at(4), 0)
    assert here.shown() == there.shown() and there.shown().behind == 0


def test_one_that_is_noted_and_one_that_passes_stand_alike() -> None:
    """One of them has missed the end of the last step, and heals here."""
    passing, noting = at_a_place(), at_a_place()
    passing.goes_on(numbers_at(4), 0)
    noting.is_at(place_at(4), 0)
    assert passing.is_like(noting.shown()) and noting.is_like(passing.shown())
    noting.is_at(place_at(5), 0)
    assert not passing.is_like(noting.shown()) and not noting.is_like(passing.shown())
    assert passing.position()() != noting.position()()


def test_a_loop_of_a_package_has_no_line() -> None:
    standing = at_a_place()
    assert not standing.is_in_package
    standing.is_at(Place((Spot("trainer.py:train", 0), LINE)), 0)
    assert standing.is_in_package


def test_counters_are_compared_where_both_have_them() -> None:
    standing = at_a_place()
    assert standing.is_like(place_at(3))
    assert not standing.is_like(replace(place_at(3), counters={LINE.name: {"n": 4}}))


def test_the_end_is_so_many_steps_after_the_last_place() -> None:
    standing = at_a_place()
    standing.goes_on(numbers_at(4), 0)
    standing.steps += 1
    standing.finish()
    assert standing.shown() == replace(place_at(3), has_finished=True, commits=2)
    assert not standing.is_like(replace(place_at(3), has_finished=True, commits=1))
