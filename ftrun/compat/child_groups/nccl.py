"""NCCL in a separate process: a hang or a crash of NCCL takes down only that process.

The child is forked by a host that has never used a GPU, so it can initialise CUDA. Its CUDA context
takes some hundred MiB of the GPU's memory. A collective costs two copies on the device and waits on
the host, because the script's tensors are copied to blocks (memory.py).

Not here: the owner and its child (group.py), NCCL's group itself (process_groups/nccl.py).
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from ftrun.base.errors import UserError
from ftrun.compat.child_groups.group import ProcessGroupBaby
from ftrun.compat.child_groups.memory import CudaMemory


class ProcessGroupBabyNCCL(ProcessGroupBaby):
    """NCCL in a separate process, on the GPU that is current when a group is built.

    Raises:
        UserError: this machine has no CUDA device, or torch no NCCL.
    """

    backend = "nccl"
    memory = CudaMemory()

    def __init__(self, timeout: float | timedelta = 60.0) -> None:
        if not torch.cuda.is_available() or not dist.is_nccl_available():
            raise UserError(
                f"{type(self).__name__} needs a CUDA device and a torch that is built with NCCL, "
                "which this machine lacks. No process was started; use ProcessGroupGloo on CPUs"
            )
        super().__init__(timeout)

    def getBackendName(self) -> str:
        return "ftrun-baby-nccl"

    def _device(self) -> int | None:
        return torch.cuda.current_device()
