"""What of a program travels to workers by name, what by value, and what not at all."""

from __future__ import annotations

import functools
import os
import pickle
import sys
import threading
import types
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.tools.launching.function import pack


def a_function(x: int) -> int:
    """A function at the top of a module."""
    return x


class Callable:
    """An object that can be called, with a method."""

    def __call__(self) -> None:
        """Nothing."""

    def method(self) -> None:
        """Nothing."""


def test_a_function_of_a_module_travels_by_its_name() -> None:
    call = pack(functools.partial(a_function), (1,), {"x": 2})
    assert call.name == f"{__name__}:a_function"
    assert call.source == __file__
    assert (call.around.main_name, call.around.main_path) == ("", "")
    assert call.around.argv == sys.argv and "" not in call.around.path
    function, args, kwargs = pickle.loads(call.data)  # noqa: S301
    assert (function.func, args, kwargs) == (a_function, (1,), {"x": 2})
    assert pack(Callable().method, (), {}).name == f"{__name__}:Callable.method"
    assert pack(Callable(), (), {}).name == f"{__name__}:Callable"


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A ``__main__`` with a function, as a script has it."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec("def work(): pass", module.__dict__)
    return module


def test_the_main_module_is_run_again_only_if_it_is_needed(
    main: types.ModuleType, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    main.__dict__["__file__"] = os.path.relpath(script)
    assert pack(main.__dict__["work"], (), {}).around.main_path == str(script)
    assert pack(a_function, (main.__dict__["work"],), {}).around.main_path == str(script)
    assert pack(a_function, (1,), {}).around.main_path == ""
    main.__dict__["__spec__"] = types.SimpleNamespace(name="package.tool")
    around = pack(main.__dict__["work"], (), {}).around
    assert (around.main_name, around.main_path) == ("package.tool", "")


def test_what_has_no_name_needs_cloudpickle(
    main: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(UserError, match=r"__main__:work cannot be sent.*of a notebook.*started"):
        pack(main.__dict__["work"], (), {})
    with pytest.raises(UserError, match=r"<lambda> cannot be sent.*pip install cloudpickle"):
        pack(lambda: 1, (), {})
    with pytest.raises(UserError, match="3 is not a function"):
        pack(3, (), {})  # type: ignore[arg-type]


def test_cloudpickle_sends_cells_and_lambdas_and_names_what_it_cannot(
    main: types.ModuleType,
) -> None:
    pytest.importorskip("cloudpickle")
    cell = pack(main.__dict__["work"], (), {})
    assert (cell.around.main_name, cell.around.main_path) == ("", "")
    lock = threading.Lock()
    with pytest.raises(UserError, match=r"one of its arguments cannot be sent.*lock"):
        pack(lambda: lock, (), {})
