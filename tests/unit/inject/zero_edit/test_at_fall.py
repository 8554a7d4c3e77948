"""A worker leaves its state before it asks that all begin again; if it cannot, a line says why."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftrun.checkpoint.format import pack
from ftrun.core.ids import StateId
from ftrun.inject.zero_edit import at_fall, told
from ftrun.inject.zero_edit.at_fall import AtFall
from ftrun.inject.zero_edit.frames import Spot
from ftrun.inject.zero_edit.place import Place
from ftrun.inject.zero_edit.refusals import Refused
from ftrun.inject.zero_edit.standing import Standing
from ftrun.inject.zero_edit.states import State
from ftrun.inject.zero_edit.values.journal import unpacked
from ftrun.snapshots.group_memory import AT_FALL, GroupMemory
from ftrun.snapshots.states import restored

PLACE = Place(ranges=((Spot("a.py:main", 3), 7),), exchanges=4)


class Left:
    """The launcher's memory, what is told, and a script that has taken 7 steps."""

    def __init__(self, memory: GroupMemory) -> None:
        self.area, self.told, self.calls = memory.area(0), list[str](), 0
        standing = Standing()
        standing.is_at(PLACE, 7)
        machine = SimpleNamespace(healing=False, state=StateId(7, "l"))
        passes = SimpleNamespace(has_passed=lambda: True)
        self.healing = SimpleNamespace(is_unread=False, passes=passes, tree=self.tree)
        session = SimpleNamespace(machine=machine, healing=self.healing)
        self.script: Any = SimpleNamespace(
            made=SimpleNamespace(session=session, current_step=lambda: 7),
            steps=7,
            come_for=7,
            course=SimpleNamespace(now=State.STEPPING),
            ending=SimpleNamespace(is_replaying=False, has_followed=False),
            world=SimpleNamespace(optimizer="", count=9, why_again=""),
            here=SimpleNamespace(replica_id="1", group_rank=0),
            randomness=SimpleNamespace(encoded=lambda: (["it"], [b"seeds", b"states"])),
            standing=standing,
            notes_next=lambda: None,
        )

    def tree(self) -> dict[str, Any]:
        self.calls += 1
        return {"user": {"x": torch.arange(4.0)}}

    def asks(self, since: int | None = None) -> None:
        with pytest.raises(Refused, match="no"):
            AtFall(self.script).gives_up("no", since)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[Left]:
    memory = GroupMemory.make(1, 8 << 20)
    monkeypatch.setenv(AT_FALL, memory.place)
    found = Left(memory)
    monkeypatch.setattr(told, "say", found.told.append)
    yield found
    memory.close()


def place_of(left: Left) -> tuple[int, int, Place]:
    """The number and the step of what is left, and its place."""
    [known] = left.area.generations()
    state = left.area.read(known.number)
    assert state is not None
    head, (_, *random), _ = unpacked(state.head)
    assert head["state"] == [7, "l"] and head["iterators"] == ["it"] and head["random"] == 2
    assert random == [b"seeds", b"states"]
    tree = restored(state, head, pack(left.tree()).leaves)
    assert tree["user"]["x"].tolist() == [0.0, 1.0, 2.0, 3.0] and bool(tree["passed"])
    return known.number, known.step, Place.decode(head["place"])


def test_it_leaves_its_state_with_the_place_of_the_step(left: Left) -> None:
    left.asks()
    number, step, place = place_of(left)
    assert (number, step) == (8, 7) and not left.told
    assert (place.ranges, place.behind, place.again) == (PLACE.ranges, 0, 0)


@pytest.mark.parametrize(("since", "again"), [(None, 5), (6, 2), (1, 0)])
def test_between_two_steps_it_stands_at_the_last_place(
    left: Left, since: int | None, again: int
) -> None:
    """And says how many calls are made until it stands where it is."""
    left.script.course.now = State.BETWEEN
    left.script.standing.is_at(PLACE, 4)
    left.script.standing.steps = 3
    left.asks(since)
    number, step, place = place_of(left)
    assert (number, step, place.behind, place.again) == (5, 7, 3, again)


def test_what_the_script_has_drawn_for_its_next_step_is_its_place(left: Left) -> None:
    left.script.course.now = State.BETWEEN
    left.script.standing.is_at(PLACE, 6)
    left.script.come_for = 6

    def notes_next() -> None:
        left.script.come_for = 7
        left.script.standing.is_at(PLACE, 7)

    left.script.notes_next = notes_next
    left.asks()
    assert place_of(left)[2].behind == 0


def test_a_step_that_was_not_noted_is_gone_through_again(left: Left) -> None:
    left.script.standing.is_at(PLACE, 5)
    left.script.standing.steps = 2
    left.script.standing.goes_on(None, 7)
    left.asks()
    number, step, place = place_of(left)
    assert (number, step, place.behind) == (6, 7, 2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda x: setattr(x.script, "made", None), "it has not trained so far"),
        (lambda x: setattr(x.script.course, "now", State.SET_UP), "it has not trained so far"),
        (lambda x: setattr(x.healing, "is_unread", True), "it is about to take it from others"),
        (lambda x: setattr(x.script.ending, "is_replaying", True), "it is about to take it"),
        (lambda x: setattr(x.script.world, "optimizer", "Adam"), "a step of its optimizer"),
        (lambda x: setattr(x.healing, "tree", lambda: {"x": object()}), "UserError: "),
        (
            lambda x: setattr(x.healing, "tree", lambda: {"x": torch.zeros(1 << 20)}),
            "AreaFull: a state of",
        ),
    ],
)
def test_if_it_cannot_a_line_says_why(left: Left, change: Any, why: str) -> None:
    change(left)
    left.asks()
    assert not left.area.generations()
    [line] = left.told
    assert line.startswith("replica 1 leaves no state in memory, because ") and why in line


def test_where_too_little_memory_is_free_nothing_is_left(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_fall, "free_bytes", lambda left: 100)
    left.asks()
    assert not left.area.generations() and "AreaFull" in left.told[0]


def test_it_leaves_it_once(left: Left) -> None:
    kept = AtFall(left.script)
    for _ in range(2):
        with pytest.raises(Refused):
            kept.gives_up("no")
    assert left.calls == 1
    kept.looks()  # nobody has asked
    left.script.world.why_again = "the others"
    with pytest.raises(Refused, match="the others"):
        kept.looks()


def test_if_the_main_thread_waits_in_a_step_another_one_leaves_the_state(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the main thread waited in a backward pass, and its rank's values were its donor's."""
    asked = threading.Event()

    def asks(reason: str, wait_s: float) -> None:
        assert reason == "no" and threading.current_thread() is not threading.main_thread()
        asked.set()

    monkeypatch.setattr(at_fall, "refuse_away", asks)
    AtFall(left.script)
    left.script.world.why_again = "no"
    left.script.world.on_again()
    assert asked.wait(60.0)
    assert place_of(left)[:2] == (8, 7) and not left.told


def test_what_changes_while_it_is_copied_is_not_left(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = torch.zeros(4)

    def free(left: float) -> int:
        given.add_(1)
        return 1 << 30

    left.healing.tree = lambda: {"x": given}
    monkeypatch.setattr(at_fall, "free_bytes", free)
    left.asks()
    assert not left.area.generations()
    assert left.told[0].endswith("it was changed while it was copied")


def test_without_such_memory_it_asks_alone(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AT_FALL)
    left.asks()
    assert not (left.calls or left.told)


def test_memory_that_is_gone_is_no_claim(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AT_FALL, "here 7@0@/proc/1/fd/none:1:0:1:1:9.9")
    machine, here = SimpleNamespace(state=None), left.script.here
    engine: Any = SimpleNamespace(context=here, machine=machine, healing=None, progress=None)
    assert AtFall(left.script)._claim(engine) is None


def test_after_a_step_that_was_lost_it_stands_at_the_batch_that_is_next(left: Left) -> None:
    """The script is further, at as many commits."""
    left.script.steps, left.script.course.now = 8, State.BETWEEN
    left.script.standing.steps = 1

    def notes_next() -> None:
        left.script.come_for = 8
        left.script.standing.is_at(replace(PLACE, exchanges=6), 7)

    left.script.notes_next = notes_next
    left.asks()
    place = place_of(left)[2]
    assert (place.exchanges, place.behind) == (6, 0)
