"""What was patched comes back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

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
