"""What objects hold beside plain attributes is found, and set."""

from __future__ import annotations

import ctypes
import importlib
import sys
from multiprocessing import Array, Value
from multiprocessing.sharedctypes import RawValue
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ftrun.inject.zero_edit.frames import module_frames, script_frames
from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.histories import see
from ftrun.inject.zero_edit.values.holders import attributes_of
from ftrun.inject.zero_edit.values.tensors import Tensors
from ftrun.inject.zero_edit.values.walk import Reached, Walk
from ftrun.inject.zero_edit.values.writing import write_values

MODULE = "tests.zero_edit.scripts.keeping"
NAME = f"keeping.py:<module>{MODULE}"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that nothing has used so far."""
    for name in [name for name in sys.modules if name.endswith("scripts.keeping")]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module(MODULE)


def reached(walk: Walk) -> Reached:
    frames = [x for x in walk.frames() if x.f_code.co_name.endswith("scripts.keeping")]
    (found,) = walk.walk(frames)
    return found


def test_what_a_module_keeps_in_any_way_is_found_and_set(module: Any) -> None:
    walk = Walk()
    reached(walk)
    at_first = module.values()
    for number in range(9):
        module.note(0.5 / (number + 1))
    now = reached(walk)
    values = now.values | {x: see(y).packed() for x, y in now.containers.items()}
    units = {path: torch.as_tensor(x).clone() for path, x in now.units.items() if _is_one(x)}
    assert now.function == NAME
    last = module.values()

    name = module.__name__
    del sys.modules[name]
    again: Any = importlib.import_module(name)
    assert again.values() == at_first
    (frame,) = [x for x in module_frames([]) if x.f_locals is vars(again)]
    write_values(frame, values)
    tensors: dict[str, dict[str, Any]] = {
        f"{NAME} {path}": {"value": x if torch.is_tensor(now.units[path]) else x.numpy()}
        for path, x in units.items()
    }
    for entry in tensors.values():
        entry["device"] = "cpu"
    held = Tensors(list, walk=Walk())
    held.load({"units": tensors})
    assert held.lacking == []
    again.draws.bit_generator.state = module.draws.bit_generator.state
    assert again.values() == last


def _is_one(unit: Any) -> bool:
    return torch.is_tensor(unit) or hasattr(unit, "dtype")


def test_flags_of_a_module_that_has_made_an_object_are_its_own(module: Any) -> None:
    """As of a plugin that is compiled at its first call: a newcomer would take it as there."""
    walk = Walk()
    module.is_compiled, module.compiled, module.calls = False, None, 0
    assert reached(walk).values["is_compiled"] is False
    walk.begin()
    module.calls = 1
    assert "is_compiled" in reached(walk).values
    module.is_compiled, module.compiled = True, object()
    found = reached(walk).values
    assert "is_compiled" not in found and found["calls"] == 1


def test_modules_on_the_stack_are_there_once(module: ModuleType) -> None:
    frames = script_frames()
    names = [x.f_code.co_name.removeprefix("<module>") for x in module_frames(frames)]
    assert module.__name__ in names and __name__ in names
    assert len(names) == len(set(names))


def test_a_slot_is_set_past_the_classes_own_setters() -> None:
    class Frozen:
        __slots__ = ("a", "b")

        def __setattr__(self, name: str, value: Any) -> None:
            raise TypeError

    frozen: Any = Frozen()
    held = attributes_of(frozen)
    assert held is not None and held == {}
    held["a"] = 3
    assert frozen.a == 3 and attributes_of(frozen) == {"a": 3}


class Collate:
    """Counts batches, also those of a loader's processes."""

    def __init__(self) -> None:
        self.count, self.plain = Value("i", -1), RawValue("d", 0.5)
        self.limits, self.large = Array("d", 2), Array("d", limits.ITEMS + 1)
        self.number = ctypes.c_long(7)


def test_what_processes_share_is_found_and_set_past_its_lock() -> None:
    collate = Collate()
    collate.count.value, collate.limits[1], collate.number.value = 4, 0.25, 9
    walk = Walk()
    (found,) = [x for x in walk.walk(walk.frames()) if "past_its_lock" in x.function]
    values = {path: x for path, x in found.values.items() if path.startswith("collate.")}
    assert values == {
        "collate.count.value": 4,
        "collate.plain.value": 0.5,
        "collate.limits.0": 0.0,
        "collate.limits.1": 0.25,
        "collate.number.value": 9,
    }
    collate = Collate()
    assert collate.count.get_lock().acquire()  # as of a process that died with it
    changed = write_values(sys._getframe(), values)
    assert "collate.count.value -1→4" in changed and "collate.limits.1 0.0→0.25" in changed
    assert (collate.count.get_obj().value, collate.limits[1], collate.number.value) == (4, 0.25, 9)


def test_who_holds_nothing(module: Any) -> None:
    assert attributes_of(int) is None
    assert attributes_of(module.Phase) is None
    assert attributes_of(lambda: None) == {}
    assert attributes_of(SimpleNamespace(x=1)) == {"x": 1}
    assert attributes_of(nn.Module.forward) is None
