"""Process groups of which several can exist at once, and which can be aborted at any moment.

Users construct the classes of ``gloo`` and ``nccl`` and pass them to the Manager. The docstring of
``base.ProcessGroup`` is the contract of a process group; ``built`` is one quorum's connections.

Not here: when a group is built, used or aborted (training/groups.py, core/worker/machine.py).
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
