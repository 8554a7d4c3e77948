"""What was patched comes back."""

from __future__ import annotations

from ftrun.inject.zero_edit.patches import Patches


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
