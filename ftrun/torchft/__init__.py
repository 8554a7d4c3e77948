"""torchft's names and signatures on ftrun's parts: what ``import torchft`` loads in a worker.

Names, arguments and results are those of torchft-nightly 2026.10.26. The packages ``training``,
``process_groups`` and ``checkpoint`` do the work. A submodule is loaded when it is used. In
workers, ``inject/torchft_names.py`` provides these modules under the name ``torchft``; elsewhere
they are ``ftrun.torchft``.

Not here: anything specific to ftrun (``import ftrun``), and any decision.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import ftrun.compat.threads  # noqa: F401  # gives the Managers of this process their seats

if TYPE_CHECKING:
    from ftrun.torchft.data import DistributedSampler
    from ftrun.torchft.ddp import DistributedDataParallel
    from ftrun.torchft.manager import Manager
    from ftrun.torchft.optim import OptimizerWrapper as Optimizer
    from ftrun.torchft.process_group import (
        ProcessGroupBabyNCCL,
        ProcessGroupBabyXCCL,
        ProcessGroupGloo,
        ProcessGroupNCCL,
        ProcessGroupXCCL,
    )

_HOMES = {
    "DistributedDataParallel": ("ddp", "DistributedDataParallel"),
    "DistributedSampler": ("data", "DistributedSampler"),
    "Manager": ("manager", "Manager"),
    "Optimizer": ("optim", "OptimizerWrapper"),
    "ProcessGroupBabyNCCL": ("process_group", "ProcessGroupBabyNCCL"),
    "ProcessGroupBabyXCCL": ("process_group", "ProcessGroupBabyXCCL"),
    "ProcessGroupGloo": ("process_group", "ProcessGroupGloo"),
    "ProcessGroupNCCL": ("process_group", "ProcessGroupNCCL"),
    "ProcessGroupXCCL": ("process_group", "ProcessGroupXCCL"),
}

__all__ = [
    "DistributedDataParallel",
    "DistributedSampler",
    "Manager",
    "Optimizer",
    "ProcessGroupBabyNCCL",
    "ProcessGroupBabyXCCL",
    "ProcessGroupGloo",
    "ProcessGroupNCCL",
    "ProcessGroupXCCL",
]

LOADED_BY_TORCHFT = (
    "checkpointing", "data", "ddp", "futures", "manager", "multiprocessing", "optim", "otel",
    "process_group", "utils", "work",
)  # fmt: skip
"""Submodules that torchft's own ``__init__`` loads: scripts access them as attributes."""


def __getattr__(name: str) -> Any:
    if name in LOADED_BY_TORCHFT:
        return import_module(f"{__name__}.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = home
    value = getattr(import_module(f"{__name__}.{module}"), own)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *LOADED_BY_TORCHFT})
