"""Process groups that can be built beside one another and aborted at once.

``base`` says what one is, ``gloo`` and ``nccl`` are those that users construct and hand to the
Manager. Not here: when a group is built, swapped or given up (the Manager,
``core/worker/machine.py``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftrun.process_groups.gloo import ProcessGroupGloo
    from ftrun.process_groups.nccl import ProcessGroupNCCL

_HOMES = {
    "ProcessGroupGloo": "ftrun.process_groups.gloo",
    "ProcessGroupNCCL": "ftrun.process_groups.nccl",
}

__all__ = ["ProcessGroupGloo", "ProcessGroupNCCL"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ftrun.process_groups' has no attribute {name!r}")
    return getattr(import_module(home), name)
