"""pytest plugin: torchft's Python runs on our coordination classes, in place of its compiled ones.

Not here: the tests, which are in torchft's wheel (test_on_ours.py runs them).
"""

from __future__ import annotations

import sys

import pytest

from ftrun.torchft import _torchft


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest, before a test module imports torchft."""
    assert "torchft" not in sys.modules
    sys.modules["torchft._torchft"] = _torchft
    import torchft.manager

    assert torchft.manager.ManagerServer is _torchft.ManagerServer
