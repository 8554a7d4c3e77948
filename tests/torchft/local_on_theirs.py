"""pytest plugin: torchft's own Manager drives our LocalSGD and DiLoCo.

Its tests of local training make several Managers in one process, which ours do not allow; so here
only ``torchft.local_sgd`` is ours. What that asks of a Manager beyond torchft's does nothing: a
batch is not repaired there.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.torchft import local_sgd


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest, before a test module imports torchft."""
    import torchft.manager

    manager: Any = torchft.manager.Manager
    manager.batch = lambda self: nullcontext()
    manager.session = SimpleNamespace(train_locally=lambda: None)
    manager.watch_buffers = lambda self, module: None
    sys.modules["torchft.local_sgd"] = local_sgd
