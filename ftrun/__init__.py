"""ftrun: an elastic launcher for PyTorch whose replica groups heal per step.

What training scripts import is here by name; torch is imported on first use of what needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftrun.base.errors import LaunchError
    from ftrun.checkpoint.transport import CheckpointTransport, HTTPTransport
    from ftrun.process_groups import ProcessGroupGloo, ProcessGroupNCCL
    from ftrun.tools.launching.api import launch
    from ftrun.training.context import stop_requested
    from ftrun.training.data import DistributedSampler
    from ftrun.training.ddp import DistributedDataParallel, PureDistributedDataParallel
    from ftrun.training.diloco import DiLoCo
    from ftrun.training.elastic_loader import ElasticLoader
    from ftrun.training.elastic_sampler import ElasticSampler
    from ftrun.training.injected import manager
    from ftrun.training.join import Join, Joinable, JoinHook
    from ftrun.training.leaving import Interrupted
    from ftrun.training.local_sgd import LocalSGD
    from ftrun.training.managed_group import ManagedProcessGroup
    from ftrun.training.manager import Drained, Manager
    from ftrun.training.optim import GradScaler, Optimizer, OptimizerWrapper
    from ftrun.training.pauses import heartbeat, paused
    from ftrun.training.sharded import replicate

    __version__: str

_HOMES = {
    "CheckpointTransport": "ftrun.checkpoint.transport",
    "DiLoCo": "ftrun.training.diloco",
    "DistributedDataParallel": "ftrun.training.ddp",
    "DistributedSampler": "ftrun.training.data",
    "Drained": "ftrun.training.manager",
    "ElasticLoader": "ftrun.training.elastic_loader",
    "ElasticSampler": "ftrun.training.elastic_sampler",
    "GradScaler": "ftrun.training.optim",
    "HTTPTransport": "ftrun.checkpoint.transport",
    "Interrupted": "ftrun.training.leaving",
    "Join": "ftrun.training.join",
    "JoinHook": "ftrun.training.join",
    "Joinable": "ftrun.training.join",
    "LaunchError": "ftrun.base.errors",
    "LocalSGD": "ftrun.training.local_sgd",
    "ManagedProcessGroup": "ftrun.training.managed_group",
    "Manager": "ftrun.training.manager",
    "Optimizer": "ftrun.training.optim",
    "OptimizerWrapper": "ftrun.training.optim",
    "ProcessGroupGloo": "ftrun.process_groups",
    "ProcessGroupNCCL": "ftrun.process_groups",
    "PureDistributedDataParallel": "ftrun.training.ddp",
    "WorldSizeMode": "ftrun.training.manager",
    "heartbeat": "ftrun.training.pauses",
    "launch": "ftrun.tools.launching.api",
    "manager": "ftrun.training.injected",
    "paused": "ftrun.training.pauses",
    "replicate": "ftrun.training.sharded",
    "stop_requested": "ftrun.training.context",
}

__all__ = [
    "CheckpointTransport",
    "DiLoCo",
    "DistributedDataParallel",
    "DistributedSampler",
    "Drained",
    "ElasticLoader",
    "ElasticSampler",
    "GradScaler",
    "HTTPTransport",
    "Interrupted",
    "Join",
    "JoinHook",
    "Joinable",
    "LaunchError",
    "LocalSGD",
    "ManagedProcessGroup",
    "Manager",
    "Optimizer",
    "OptimizerWrapper",
    "ProcessGroupGloo",
    "ProcessGroupNCCL",
    "PureDistributedDataParallel",
    "WorldSizeMode",
    "heartbeat",
    "launch",
    "manager",
    "paused",
    "replicate",
    "stop_requested",
]


def __getattr__(name: str) -> Any:
    if name == "errors":  # so that ``except ftrun.errors.UserError`` needs no further import
        return import_module("ftrun.errors")
    if name == "__version__":
        value = import_module("importlib.metadata").version("ftrun")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'ftrun' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
