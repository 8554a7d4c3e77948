"""What classes, functions and objects of the script's own modules keep, wherever they are."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftrun.inject.zero_edit.frames import OF_MODULE, module_frames
from ftrun.inject.zero_edit.values.counters import Counters, Read
from ftrun.inject.zero_edit.values.frameworks import Frameworks
from ftrun.inject.zero_edit.values.kinds import GONE
from ftrun.inject.zero_edit.values.walk import CLASS, Reached, Walk
from ftrun.inject.zero_edit.values.writing import is_removed, lacks, write_values
from tests.unit.inject.zero_edit.values.counted import counters_of

LOGGER = """
from collections import defaultdict, deque
from itertools import count

class Logger:
    CURRENT, rows, limits = None, 0, {"a": 1, "b": {"deep": 2}}
    def __init__(self):
        self.means = defaultdict(float)

class Pool:
    one, is_made, size = None, False, 0
    @classmethod
    def get(cls):
        if cls.one is None:
            cls.one, cls.is_made = cls(), True
            cls.one.used = 0
        return cls.one

class Base: pass
class Child(Base): pass

class Meta(type): made = 0
class Of(metaclass=Meta): pass

def step(by=1): pass

ring, ids = deque([Base(), Base()]), count(3, 2)
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Imports a module of this text, or imports it once more."""
    monkeypatch.syspath_prepend(tmp_path)

    def imported(name: str, text: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        module = importlib.import_module(name)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return imported


def frame_of(name: str) -> Any:
    return next(x for x in module_frames([]) if x.f_code.co_name == OF_MODULE + name)


def of(walk: Walk, name: str) -> Reached:
    return walk.walk([frame_of(name)])[0]


def test_what_classes_keep_is_found_once_and_at_once(made: Callable[..., Any]) -> None:
    """Seen: guided-diffusion's logger keeps its means in an object of a class attribute."""
    logger, walk = made("my_logger", LOGGER), Walk()
    names = "Logger, Pool, Base, Child, Of, Meta, step"
    made("others", f"from my_logger import {names}\nREGISTRY = {{'a': Logger}}\n")
    assert not of(walk, "others").values
    assert of(walk, "my_logger").values["Logger.rows"] == 0
    walk.begin()
    for number in (1, 2):
        logger.Logger.rows, logger.Logger.limits["a"] = number, 7 * number
        logger.Logger.limits["b"]["deep"] = 9 * number
        logger.Child.calls, logger.Of.made, logger.Meta.made = number, number, number
        logger.step.calls, logger.ring[1].n = number, number
        now = of(walk, "my_logger").values
        assert (now["Logger.rows"], now["Logger.limits[a]"]) == (number, 7 * number)
        assert of(walk, "my_logger").containers["Logger.limits[b]"] == {"deep": 9 * number}
        assert now["Child.calls"] == now["Of.made"] == now["Meta.made"] == number
        assert now["ring[1].n"] == number
    assert not of(walk, "others").values
    again, ids = made("my_logger", LOGGER), logger.ids
    next(ids)
    changed = {**of(walk, "my_logger").values, "step.calls": 2, "Child.calls": 2, "ring[0].n": 4}
    changed["ids"] = {"kind": "count", "values": ["count(5, 2)"]}
    write_values(frame_of("my_logger"), changed)
    assert (again.step.calls, again.Child.calls, again.ring[0].n, next(again.ids)) == (2, 2, 4, 5)
    write_values(frame_of("my_logger"), changed)
    assert next(again.ids) == 5  # it had gone on
    assert not hasattr(again.Base, "calls")


def begun(made: Callable[..., Any]) -> tuple[Any, Counters, Callable[[], Read]]:
    """A logger, and the counters of a replica that has it."""
    logger = made("my_logger", LOGGER)
    logger.Logger.CURRENT = logger.Logger()
    counters = counters_of(Frameworks())

    def read() -> Read:
        return counters.read([of(counters.walk, "my_logger")])

    counters.begin(read())
    return logger, counters, read


def test_a_key_that_the_script_removes_is_gone_for_a_newcomer(made: Callable[..., Any]) -> None:
    """Seen: a logger clears its sums when it writes them, and its newcomer got the old ones."""
    logger, counters, read = begun(made)
    logger.Logger.CURRENT.means["loss"] = 0.5
    counters.note(read(), ())
    logger.Logger.CURRENT.means.clear()
    values, _ = counters.note(read(), ())
    (name,) = values
    assert values[name]["Logger.CURRENT.means[loss]"] == GONE
    assert counters.note(read(), ())[0] == values
    logger.Logger.CURRENT.means.update(loss=2.0, kept=3.0)
    assert write_values(frame_of("my_logger"), values[name]) == [
        "Logger.CURRENT.means[loss] removed"
    ]
    assert {**logger.Logger.CURRENT.means} == {"kept": 3.0}
    assert not write_values(frame_of("my_logger"), values[name])
    logger.Logger.CURRENT.means["loss"] = 4.0
    assert counters.note(read(), ())[0][name]["Logger.CURRENT.means[loss]"] == 4.0


def test_what_an_object_of_a_removed_key_had_is_not_removed_from_another_one(
    made: Callable[..., Any],
) -> None:
    """Seen in MAE: meters that each epoch makes anew. A newcomer's meter lost its attributes."""
    logger, counters, read = begun(made)
    logger.Logger.CURRENT.means["loss"] = logger.Pool()
    logger.Logger.CURRENT.means["loss"].used = 3
    counters.note(read(), ())
    logger.Logger.CURRENT.means.clear()
    (values,) = counters.note(read(), ())[0].values()
    assert values["Logger.CURRENT.means[loss].used"] == GONE
    logger.Logger.CURRENT.means["loss"] = logger.Pool()
    logger.Logger.CURRENT.means["loss"].used = 4
    assert write_values(frame_of("my_logger"), values) == []
    assert logger.Logger.CURRENT.means["loss"].used == 4
    assert not is_removed("a[b][#3].used", {"a": {"b": 1}, "a[b]": {3: 1}})
    assert is_removed("a[b][#4].used", {"a": {"b": 1}, "a[b]": {3: 1}})


def test_an_object_that_a_class_makes_in_training_is_made(made: Callable[..., Any]) -> None:
    logger, walk = made("my_logger", LOGGER), Walk()
    of(walk, "my_logger")
    walk.begin()
    logger.Pool.get().used = 3
    there = of(walk, "my_logger").values
    assert there[f"Pool.one.{CLASS}"] == "my_logger:Pool" and there["Pool.is_made"] is True
    logger.Pool.one.lock = object()  # which no newcomer can be given
    kept = of(walk, "my_logger").values
    assert "Pool.is_made" not in kept and f"Pool.one.{CLASS}" not in kept
    again = made("my_logger", LOGGER)
    assert lacks(frame_of("my_logger"), kept) == ["Pool.one"]
    write_values(frame_of("my_logger"), there)
    assert (again.Pool.one.used, again.Pool.is_made) == (3, True)
    assert lacks(frame_of("my_logger"), there) == []
    other = Walk()
    of(other, "my_logger")
    other.begin([(of(other, "my_logger").function, "Pool.one")])
    assert f"Pool.one.{CLASS}" in of(other, "my_logger").values  # for the next newcomer


def test_modules_that_python_does_not_list(made: Callable[..., Any], tmp_path: Path) -> None:
    text = "count = 0\nclass State:\n  total = 0\n  def add(self): pass\none = State()\n"
    (tmp_path / "cfg.py").write_text(text)
    spec = importlib.util.spec_from_file_location("cfg", tmp_path / "cfg.py")
    assert spec is not None and spec.loader is not None
    cfg: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cfg)
    cfg.one.n = 4
    values = Walk().walk([sys._getframe()])[0].values
    assert (values["cfg.count"], values["cfg.State.total"], values["cfg.one.n"]) == (0, 0, 4)
    write_values(sys._getframe(), {"cfg.count": 5, "cfg.State.total": 6, "cfg.one.n": 7})
    assert (cfg.count, cfg.State.total, cfg.one.n) == (5, 6, 7)
    listed = "import sys\nclass Settings:\n  def __init__(self): self.n = 1\n"
    (tmp_path / "my_settings.py").write_text(f"{listed}sys.modules[__name__] = Settings()\n")
    my_settings: Any = importlib.import_module("my_settings")
    found = Walk().walk([sys._getframe()])[0].values
    del sys.modules["my_settings"]
    assert found["my_settings.n"] == 1 == my_settings.n


def test_a_module_that_is_imported_late_has_changed_nothing(made: Callable[..., Any]) -> None:
    counters = counters_of(Frameworks())
    counters.begin([])
    late = made("late_module", "count, limit = 0, 5\n")
    assert counters.note(counters.read([of(counters.walk, "late_module")]), ())[0] == {}
    late.count = 2
    (values,) = counters.note(counters.read([of(counters.walk, "late_module")]), ())[0].values()
    assert values == {"count": 2}


def test_what_only_says_that_it_is_a_module_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: cffi's libraries in ``sys.modules``. Any script with one ended with ftrun's error."""

    class Library:
        __class__ = types.ModuleType  # type: ignore[assignment]
        __file__ = __file__

    library: Any = Library()
    assert isinstance(library, types.ModuleType)
    monkeypatch.setitem(sys.modules, "library_of_c", library)
    assert not [x for x in module_frames([]) if x.f_code.co_name == OF_MODULE + "library_of_c"]
