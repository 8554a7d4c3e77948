"""lm-resiliency's adapter for PyTorch, on Gloo: ``adapter = "on_cpu:make"`` in the worker policy.

Its own adapter makes an NCCL group for DDP, even if only checkpoints are on.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lm_resiliency.integrations.pytorch import enable_resiliency
from lm_resiliency.integrations.torchrun import NativePyTorchAdapter
from lm_resiliency.integrations.torchrun.worker_adapter import _feature_options, _recovery_options

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class OnCPU(NativePyTorchAdapter):
    """The native adapter with a Gloo group in the place of the NCCL group."""

    def _enable(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        checkpoint, replay, root = _feature_options(self._options, self._context)
        group = dist.new_group(backend="gloo")
        return enable_resiliency(
            model,
            optimizer,
            interval=root["interval"],
            enable_checkpoint=root["enable_checkpoint"],
            enable_detection=root["enable_detection"],
            checkpoint=checkpoint,
            replay=replay,
            group=group,
            nccl_group=group,
            device=torch.device("cpu"),
            recovery_mode=self._context.recovery_mode,
            **_recovery_options(self._context),
        )


def make(context: Any) -> OnCPU:
    """The adapter for a worker; called by lm-resiliency."""
    policy = tomllib.loads(Path(context.config_path).read_text())
    policy.pop("adapter", None)
    return OnCPU(policy)
