"""What ftrun does not follow in one replica group is told by its name, and runs on."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ftrun.core.replay.falls import Fall
from ftrun.inject.zero_edit.one_group import FRAMEWORKS, _watch, trained_by_hand
from ftrun.inject.zero_edit.patches import Patches


@pytest.mark.parametrize(("module", "name", "reason"), FRAMEWORKS)
def test_a_framework_is_told_when_the_script_calls_it(module: str, name: str, reason: Fall) -> None:
    fallen, calls, patches = list[Fall](), list[Any](), Patches()
    owner, _, function = name.rpartition(".")
    there = ModuleType(module)
    kind: Any = type(owner, (), {}) if owner else there
    setattr(kind, function, lambda *args: calls.append(args))
    if owner:
        setattr(there, owner, kind)
    world: Any = SimpleNamespace(falls=fallen.append)
    _watch(patches, world, name, reason, there)
    assert not fallen
    getattr(kind, function)("model", 4)
    assert (fallen, calls) == ([reason], [("model", 4)])
    patches.undo()
    getattr(kind, function)("again")
    assert len(fallen) == 1


@pytest.mark.parametrize("row", [x for x in FRAMEWORKS if x[0].startswith("torch.")])
def test_torch_has_these_names(row: tuple[str, str, Fall]) -> None:
    found: Any = importlib.import_module(row[0])
    for part in row[1].split("."):
        found = getattr(found, part)


def test_a_model_that_is_trained_by_hand_is_told_at_its_second_step() -> None:
    fallen = list[tuple[Any, ...]]()
    models: Any = SimpleNamespace(wrapped=[])
    world: Any = SimpleNamespace(falls=lambda *why: fallen.append(why), is_open=False)
    stepped = trained_by_hand(models, world)
    for _ in range(3):
        stepped()
    assert not fallen  # it has no process group
    world.is_open = True
    stepped()
    assert not fallen
    stepped()
    stepped()
    assert fallen == [(Fall.NO_MODEL,)]
