"""A place travels as JSON, and its counters are those that have changed."""

from __future__ import annotations

from dataclasses import replace

from ftrun.inject.zero_edit.frames import GENERATOR, Spot
from ftrun.inject.zero_edit.place import LoaderPlace, Place, digest, summary

AT = Spot("train.py:epoch", 41)
PLACE = Place(
    entry=(AT,),
    stack=(AT, Spot("train.py:main", 80)),
    loaders=(LoaderPlace(AT, 0, 3, 17),),
    ranges=((Spot("train.py:main", 79), 3),),
    counters={AT.name: {"step": 76, "best": float("inf"), "name": "ä", "none": None}},
    begun_with={"train.py:main": {"step": 77}},
    exchanges=2,
    has_finished=True,
    commits=1,
)


def test_a_place_can_be_read_again() -> None:
    assert Place.decode(PLACE.encode()) == PLACE
    assert Place.decode(Place().encode()) == Place()


def test_words() -> None:
    assert PLACE.words() == "the end of the script"
    going = replace(PLACE, has_finished=False)
    assert going.words() == (
        "index 3 of the loop at train.py:79, epoch 3, batch 17 of the data loader at train.py:41"
    )
    assert summary(going) == going.words()
    assert "data loader" not in going.words(going.loaders), "it says that these are not restored"
    assert Place().words() == "its training loop"


def test_a_digest_tells_stacks_apart() -> None:
    assert digest(PLACE.stack) == digest(tuple(PLACE.stack))
    assert digest(PLACE.stack) != digest(PLACE.stack[:1])
    assert digest((AT,)) != digest((Spot(AT.name, 42),))


def test_a_digest_begins_where_the_script_draws_from_its_generators() -> None:
    shows, at = Spot("train.py:shown", 7, GENERATOR), Spot("train.py:epoch", 41, 8)
    assert digest((shows, at)) == digest((AT,)) != digest((shows, Spot(AT.name, 42, 8)))
    assert digest((AT, shows)) != digest((AT,))
    assert digest((shows,)) != digest((Spot("train.py:shown", 8, GENERATOR),))


def test_a_place_among_another_number_of_replicas_is_behind_as_many_samples() -> None:
    going = replace(PLACE, loaders=(LoaderPlace(AT, 0, 3, 31), LoaderPlace(AT, 1, None, 0)))
    assert going.among(2, 2) is going
    assert [x.drawn for x in going.among(2, 3).loaders] == [20, 0]  # 62 batches: 20 x 3, and 2
    assert [x.drawn for x in going.among(3, 1).loaders] == [93, 0]
    assert going.among(2, 3).loaders[0].epoch == 3 and going.among(2, 3).stack == going.stack
