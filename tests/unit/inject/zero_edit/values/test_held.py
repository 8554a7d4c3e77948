"""Values in objects that lists, tuples and dicts hold: how they are found, and set."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from types import FrameType
from typing import Any

import pytest

from ftrun.inject.zero_edit.frames import Values, variables_of
from ftrun.inject.zero_edit.values.held import OBJECTS_MAX, Held
from ftrun.inject.zero_edit.values.histories import packed_values
from ftrun.inject.zero_edit.values.writing import lacks, write_values


class Meter:
    def __init__(self, count: int = 0) -> None:
        self.values: list[Any] = []
        self.count, self.local_rank = count, 7


class Plain:
    def __init__(self, count: int = 0) -> None:
        self.count, self.values = count, [count]


class Trainer:
    def __init__(self) -> None:
        self.callbacks: Any = [Meter(1), {"inner": Meter(2)}]
        self.parent = self


def found_in(frame: FrameType, held: Held, step: int = 0) -> tuple[Values, dict[str, Any]]:
    values: Values = {}
    containers: dict[str, Any] = {}
    held.read("f", variables_of(frame), step, values, containers)
    return values, containers


def test_objects_in_collections_of_any_kind() -> None:
    meters, pair, by_number = {"loss": Meter(3)}, (Meter(4), 1), {5: Meter(5)}
    trainer, nested = Trainer(), [[Meter(6)]]
    values, containers = found_in(sys._getframe(), Held())
    assert {path: x for path, x in values.items() if path.endswith("count")} == {
        "meters[loss].count": 3,
        "pair[0].count": 4,
        "by_number[#5].count": 5,
        "trainer.callbacks[0].count": 1,
        "trainer.callbacks[1][inner].count": 2,
        "nested[0][0].count": 6,
    }
    assert containers["meters[loss].values"] == []
    assert (meters, pair, by_number, trainer, nested) is not None


def test_an_object_that_is_met_again_is_read_once() -> None:
    one = Meter(1)  # a variable may name it too: at a newcomer it may be unbound
    both = [one, one]
    values, _ = found_in(sys._getframe(), Held())
    assert [path for path in values if path.endswith("count")] == ["both[0].count"]
    assert both


def test_too_many_objects_are_left_out() -> None:
    many = [Meter() for _ in range(OBJECTS_MAX + 1)]
    assert found_in(sys._getframe(), Held()) == ({}, {})
    assert many


def test_a_batch_does_not_count_and_a_collection_that_stays_does() -> None:
    held = Held()
    batch, meters = [Meter()], {}
    meters["loss"] = Meter()
    found_in(sys._getframe(), held)
    held.begin()
    callbacks: list[Any] = []
    assert "meters[loss].count" in found_in(sys._getframe(), held, 1)[0]
    kept = [batch]
    for step in range(2, 6):
        batch = [Meter(step)]
        kept.append(batch)
        values, _ = found_in(sys._getframe(), held, step)
        assert "batch[0].count" not in values
        assert "kept[0][0].count" in values or step == 2
        if step == 2:
            callbacks.append(Meter())  # it was there empty at the draw before
        else:
            assert "callbacks[0].count" in values


def test_a_batch_with_the_address_of_another() -> None:
    held = Held()
    held.begin()
    batch = [Meter(0)]
    for step in range(1, 4):
        batch[0] = Meter(step)  # the list stays, as one at the same address would
        values, _ = found_in(sys._getframe(), held, step)
        assert "batch[0].count" not in values


def test_values_are_set_in_the_objects_that_are_there() -> None:
    trainer, by_number = Trainer(), {5: Meter()}
    values = {
        "trainer.callbacks[0].count": 11,
        "trainer.callbacks[1][inner].count": 12,
        "by_number[#5].count": 13,
        "trainer.callbacks[7].count": 14,
    }
    lists = {"by_number[#5].values": packed_values(list, [1, 2])}
    words = write_values(sys._getframe(), values, lists)
    assert trainer.callbacks[0].count == 11
    assert trainer.callbacks[1]["inner"].count == 12
    assert (by_number[5].count, by_number[5].values) == (13, [1, 2])
    assert "trainer.callbacks[0].count 1→11" in words
    assert lacks(sys._getframe(), values) == ["trainer.callbacks[7]"]


def test_objects_that_a_newcomer_lacks_are_made() -> None:
    def donor() -> tuple[Values, dict[str, Any]]:
        meters, plain, some = defaultdict(Meter), {"loss": Plain(3)}, [Plain(4)]
        meters["loss"] = Meter(2)
        found = found_in(sys._getframe(), Held())
        assert meters
        assert plain
        assert some
        return found

    values, containers = donor()
    meters: Any = defaultdict(Meter)
    plain: Any = {}
    some: Any = []
    lists = {path: packed_values(list, x) for path, x in containers.items()}
    words = write_values(sys._getframe(), values, lists)
    assert (meters["loss"].count, meters["loss"].local_rank) == (2, 7)
    assert (type(plain["loss"]), vars(plain["loss"])) == (Plain, {"count": 3, "values": [3]})
    assert (type(some[0]), vars(some[0])) == (Plain, {"count": 4, "values": [4]})
    assert "plain[loss] made" in words
    assert lacks(sys._getframe(), [*values, *lists]) == []


class AttributeDict(dict[str, int]):
    """As people write it."""


class Record:
    def __init__(self) -> None:
        self.metrics = {"loss": 1.0}


def test_an_object_that_cannot_be_made_from_its_values_is_not_made() -> None:
    some: Any = [AttributeDict(), Record()]
    some[0].x = 1
    values, _ = found_in(sys._getframe(), Held())
    assert not [path for path in values if path.endswith("__class__")]
    name = f"{__name__}:AttributeDict"
    made: Any = {}
    words = write_values(sys._getframe(), {"made[x].__class__": name, "made[x].x": 1})
    assert (words, made) == ([], {})
    assert some


def test_a_number_stays_a_number_as_a_key() -> None:
    values: dict[str, Any] = {"meters[#3].__class__": f"{__name__}:Meter"}
    meters: dict[Any, Any] = {}
    factory: defaultdict[Any, Any] = defaultdict(Meter)
    values |= {"meters[#3].count": 4, "factory[#5].count": 6}
    write_values(sys._getframe(), values)
    assert [(key, x.count) for key, x in meters.items()] == [(3, 4)]
    assert [(key, x.count) for key, x in factory.items()] == [(5, 6)]


@pytest.mark.parametrize("value", [deque([1], maxlen=2), object()], ids=["deque", "object"])
def test_an_object_with_what_does_not_heal_is_not_made(value: object) -> None:
    meters = {"loss": Plain()}
    meters["loss"].values = value  # type: ignore[assignment]
    values, _ = found_in(sys._getframe(), Held())
    assert "meters[loss].__class__" not in values
    assert "meters[loss].count" in values


class Slotted:
    __slots__ = ("count",)


def test_objects_with_slots_are_left_out() -> None:
    some, item = [Slotted(), Meter(2)], Slotted()
    some[0] = item
    values, _ = found_in(sys._getframe(), Held())
    assert list(values) == ["some[1].count"]


def test_an_object_that_fails_ends_the_search_and_not_the_script(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Odd(Meter):
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("odd")

    odd, held = [Odd()], Held()
    assert found_in(sys._getframe(), held) == ({}, {})
    assert found_in(sys._getframe(), held) == ({}, {})
    assert capfd.readouterr().err.count("looking for them failed: RuntimeError: odd") == 1
    assert odd


def test_a_class_of_another_package_is_not_made() -> None:
    made: Any = {}
    values = {"made[x].__class__": "collections:OrderedDict", "made[x].count": 1}
    assert write_values(sys._getframe(), values) == []
    assert made == {}
    assert lacks(sys._getframe(), values) == ["made[x]"]
