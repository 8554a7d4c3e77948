"""What was patched comes back."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

from ftrun.inject.zero_edit import headers
from ftrun.inject.zero_edit.counting import RANGES
from ftrun.inject.zero_edit.patches import Patches, _names, around


class Base:
    def act(self) -> str:
        return "base"


class Kind(Base):
    own = 1


def test_everything_comes_back() -> None:
    patches = Patches()
    before = dict(vars(Kind))
    patches.put(Kind, "own", 2)
    patches.put(Kind, "own", 3)
    patches.put(Kind, "act", lambda kind: "patched")
    assert (Kind.own, Kind().act()) == (3, "patched")
    patches.undo()
    assert dict(vars(Kind)) == before
    assert Kind().act() == "base"
    patches.undo()  # nothing more
    assert Kind.own == 1


def test_arguments_may_have_the_names_of_the_plain_function() -> None:
    def plain(module: str, mesh: str = "none", *, depth: int = 0) -> str:
        return f"{module} {mesh} {depth}"

    def ours(plain: Callable[..., str], model: str, *args: Any, **kwargs: Any) -> str:
        return "ours: " + plain(model, *args, **kwargs)

    made = around(plain, ours)
    assert made("a", depth=1) == made(module="a", depth=1) == "ours: a none 1"
    assert made("a", "b") == made("a", mesh="b") == made(mesh="b", module="a") == "ours: a b 0"


def test_the_names_of_parameters_are_those_of_the_signature() -> None:
    def plain(a: int, /, b: int, *c: int, d: int = 1, **e: int) -> None:
        """Of each kind of parameter."""

    wrapped = functools.wraps(plain)(lambda *args, **kwargs: None)
    functions = plain, wrapped, functools.partial(plain, 1), Kind, Kind().act, Kind.act, dict, len
    places = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    for function in functions:
        try:
            every = inspect.signature(function).parameters.values()
        except ValueError:
            every = ()  # type: ignore[assignment]
        assert _names(function) == [x.name for x in every if x.kind in places]


@pytest.mark.parametrize("text", ["import nothing_such", "1 / 0", "x = ("])
def test_an_error_of_an_import_has_no_frame_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Seen: "patches.py, in exec_module" four times in the traceback of a missing package."""
    (tmp_path / "imported_once.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(SourceFileLoader, "get_code", SourceFileLoader.get_code)  # put back
    monkeypatch.setattr(RANGES, "is_on", True)
    headers.install(is_on=True)
    patches = Patches()
    for name in ("one", "two"):
        patches.when_imported(f"never_imported_{name}", pytest.fail)
    try:
        with pytest.raises((ImportError, ArithmeticError, SyntaxError)) as raised:
            import_it()
    finally:
        patches.undo()
    files = {Path(x.filename).name for x in traceback.extract_tb(raised.value.__traceback__)}
    assert files <= {"test_patches.py", "imported_once.py"}


def import_it() -> None:
    import imported_once  # type: ignore[import-not-found]  # noqa: F401
