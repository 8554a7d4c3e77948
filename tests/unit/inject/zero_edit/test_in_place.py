"""What keeps a worker, step by step. (Whole jobs: tests/zero_edit and tests/process.)"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.inject.zero_edit.in_place import InPlace


def test_a_step_whose_quorum_is_interrupted_at_once_has_no_generation() -> None:
    """Seen on a loaded machine: it counted as a fault of the script's, for good."""
    keeper: Any = InPlace.__new__(InPlace)
    machine = SimpleNamespace(in_force=None, seed=lambda: pytest.fail("no quorum is in force"))
    keeper._machine, keeper._engine = machine, SimpleNamespace(lock=threading.RLock())
    keeper.world = SimpleNamespace(fell=None)
    keeper.predecessor = SimpleNamespace(left=lambda: pytest.fail("nobody could begin there"))
    keeper._take(3)
