"""A newcomer on its way past loops that its peers have left."""

from __future__ import annotations

import io
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from ftrun.base.errors import UserError
from ftrun.inject.zero_edit import around, passing
from ftrun.inject.zero_edit.around import Loop
from ftrun.inject.zero_edit.frames import Spot
from ftrun.inject.zero_edit.passing import Passing
from ftrun.inject.zero_edit.place import Details, Place
from ftrun.inject.zero_edit.world.kept import GIVEN_EACH_MAX, GIVEN_SENT_MAX, Given

MAIN, TRAIN, DRAW = "a.py:main", "a.py:train", "a.py:draw"


class Mates:
    """One worker, of rank 2."""

    is_lead = True


def newcomer(peers: Place, modules: Any = (), begins: Callable[[], None] = lambda: None) -> Passing:
    script: Any = SimpleNamespace(
        peers=SimpleNamespace(place=peers, now=lambda: peers, unlike_loops=lambda place: []),
        here=SimpleNamespace(replica_id="2"),
        mates=Mates(),
        world=SimpleNamespace(given=Given(), is_passing=False),
        loop=SimpleNamespace(passes=begins),
        models=SimpleNamespace(wrapped=modules),
    )
    return Passing(script)


def place(*entry: tuple[str, int], ranges: tuple[tuple[str, int], ...] = ()) -> Place:
    return Place(
        stack=tuple(Spot(*x) for x in entry),
        entry=tuple(Spot(*x) for x in entry),
        ranges=tuple((Spot(*spot), 3) for spot in ranges),
    )


def left(
    here: list[tuple[str, int]], peers: Place, loops: list[tuple[str, int]], *unlike: Loop
) -> list[tuple[str, int]]:
    """Those of ``loops`` that are to end."""
    is_left = passing._left([Spot(*x) for x in here], peers, unlike)
    return [loop for loop in loops if is_left(Spot(*loop))]


def test_a_function_that_is_called_twice() -> None:
    """``train`` is left at the first call, although its peers stand in the same loop of it."""
    peers = place((TRAIN, 12), (MAIN, 34), ranges=((TRAIN, 11),))
    loops = [(TRAIN, 11), (MAIN, 29), (DRAW, 5)]
    assert left([(TRAIN, 12), (MAIN, 30)], peers, loops) == [(TRAIN, 11), (MAIN, 29)]


def test_a_loop_around_both_goes_on() -> None:
    peers = place((MAIN, 34), ranges=((MAIN, 20), (MAIN, 33)))
    loops = [(MAIN, 20), (MAIN, 28)]
    assert left([(DRAW, 3), (MAIN, 30)], peers, [*loops, (DRAW, 2)]) == [(MAIN, 28), (DRAW, 2)]


def test_another_function_from_the_same_line() -> None:
    """``train`` or ``draw`` is called at one line of ``main``, whose loop goes on."""
    peers = place((TRAIN, 12), (MAIN, 30), ranges=((TRAIN, 11), (MAIN, 29)))
    loops = [(DRAW, 2), (MAIN, 29)]
    assert left([(DRAW, 3), (MAIN, 30)], peers, loops) == [(DRAW, 2)]


def test_a_loop_that_cannot_be_set_goes_on_and_what_is_in_it_ends() -> None:
    peers = place((TRAIN, 12), (MAIN, 30), ranges=((TRAIN, 11), (MAIN, 20), (MAIN, 29)))
    stages = Loop(MAIN, 25, 31, "its loop over stages")
    loops = [(TRAIN, 11), (MAIN, 20), (MAIN, 29), (MAIN, 40)]
    ended = left([(TRAIN, 12), (MAIN, 30)], peers, loops, stages)
    assert ended == [(TRAIN, 11), (MAIN, 29)]


def test_the_way_begins_with_what_the_peers_were_given() -> None:
    peer = Given()
    peer.keep("0.0 a.py:7 of uint8 6", [b"chosen"])
    details = Details(given=peer.encoded())
    ours = newcomer(replace(place((MAIN, 9)), details=lambda: details))
    ours.pass_over([])
    world = ours._world
    assert (world.given.at("0.0 a.py:7 of uint8 6"), world.is_passing) == ([b"chosen"], True)
    ours.joined()
    assert not world.is_passing


def test_a_value_that_a_rank_had_already_is_foreseen() -> None:
    """Not if it is the last one, which memory that is used again may still have."""
    last, at = Given(), "0.0 a.py:7 of uint8 6"
    last.keep(at, [b"a"], [b"a"])
    assert not last.foresees(at), "the first one may be there by chance"
    last.keep(at, [b"a"], [b"a"])
    assert not last.foresees(at)
    last.keep(at, [b"b"], [b"b"])
    last.keep(at, [b"c"])
    assert last.foresees(at)
    last.keep(at, [b"d"], [b"c"])
    assert not last.foresees(at) and last.at(at) == [b"d"]


def test_what_is_sent_of_broadcasts_has_a_limit() -> None:
    last = Given()
    last.keep("large", [bytes(GIVEN_EACH_MAX + 1)])
    for number in range(8):
        last.keep(str(number), [bytes(GIVEN_EACH_MAX)])
    assert list(last.encoded()) == [str(x) for x in range(GIVEN_SENT_MAX // GIVEN_EACH_MAX)]


def test_a_loop_without_an_end_is_the_scripts_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "GHOSTS_MAX", 2)
    begun: list[int] = []
    ours = newcomer(place((MAIN, 9)), begins=lambda: begun.append(1))
    drawn: Any = Iterator(3)
    for _ in range(2):
        ours.pass_over([drawn])
    with pytest.raises(UserError, match=r"the loop around a.py:3, which does not end"):
        ours.pass_over([drawn])
    assert begun == [1]


class Iterator:
    """A loader's."""

    def __init__(self, line: int = 77) -> None:
        self.entry = (Spot(MAIN, line),)
        self.cursor = SimpleNamespace(has_ended=False)
        self.is_training = self.is_fresh = True


def test_a_loop_in_which_the_peers_are_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen in a loop that draws from another loader in each second turn."""
    said, drawn = io.StringIO(), cast(Any, Iterator(3))
    monkeypatch.setattr(sys, "__stderr__", said)
    monkeypatch.setattr(around, "holds_both", lambda frames, there: True)
    ours = newcomer(place((MAIN, 9)))
    ours.pass_over([drawn])
    ours.before_draw(drawn)
    assert not drawn.cursor.has_ended
    assert "goes through turns of the loop at a.py:3, until it reaches its peers" in (
        said.getvalue()
    )


def test_a_loader_has_one_batch_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", said)
    model, iterator, other = torch.nn.Linear(2, 1), Iterator(), Iterator()
    drawn: Any = iterator
    ours = newcomer(place((MAIN, 9)), modules=[model])
    model(torch.ones(2)).sum().backward()
    ours.pass_over([drawn])
    ours.pass_over([drawn])
    assert drawn in ours._over
    ours.before_draw(other)  # type: ignore[arg-type]
    assert not other.cursor.has_ended
    ours.before_draw(drawn)
    assert (iterator.cursor.has_ended, iterator.is_training) == (True, False)
    ours.joined()
    assert not ours.is_on
    assert all(parameter.grad is None for parameter in model.parameters())
    assert said.getvalue().count("replica 2 skips the loop at a.py:77") == 1
    reference = weakref.ref(iterator)
    del iterator, drawn
    assert reference() is None
