"""What keeps a worker, step by step. (Whole jobs: tests/zero_edit and tests/process.)"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.inject.zero_edit.in_place import InPlace
from ftrun.inject.zero_edit.world.replayed import ReplayedWorld


def test_a_step_whose_quorum_is_interrupted_at_once_has_no_generation() -> None:
    """Seen on a loaded machine: it counted as a fault of the script's, for good."""
    keeper: Any = InPlace.__new__(InPlace)
    machine = SimpleNamespace(in_force=None, seed=lambda: pytest.fail("no quorum is in force"))
    keeper._machine, keeper._engine = machine, SimpleNamespace(lock=threading.RLock())
    keeper.world = SimpleNamespace(fell=None)
    keeper.predecessor = SimpleNamespace(left=lambda: pytest.fail("nobody could begin there"))
    keeper._take(3)


def kept(at: int, *, is_sync: bool, has_left: bool = True) -> list[str]:
    """What becomes of a call of a replacement, whose predecessor had logged five."""
    world: Any = ReplayedWorld.__new__(ReplayedWorld)
    found: list[str] = []
    world.done, world.has_left, world.is_newcomer = 5, lambda: has_left, True
    world.differs = lambda call: found.append("another one")
    world.area = world.board = None
    world._is_full, world.flying, world.given_mark = True, {}, 0
    line = SimpleNamespace(kept={})
    kind = SimpleNamespace(is_in_place=False)
    call: Any = SimpleNamespace(at=at, number=at, is_sync=is_sync, kind=kind)
    world._keep(line, call, is_live=False)
    return [*found, *("kept" for known in line.kept.values() if known is call)]


def test_a_call_that_its_predecessor_waited_in_comes_after_what_that_has_done() -> None:
    """Seen in a script whose counters were not set: its replacement waited in the vote, while the
    others, and it, were to make a call across replicas."""
    assert kept(5, is_sync=True) == ["another one", "kept"]
    assert kept(5, is_sync=False) == ["kept"], "what follows it was not in vain"
    assert kept(6, is_sync=True) == ["kept"], "one before it was under way"
    assert kept(5, is_sync=True, has_left=False) == ["kept"]
