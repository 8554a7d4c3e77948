"""What was patched comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftrun.inject.zero_edit.patches import Patches, around


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
