"""The replicas of the quorum as a process group of torch.

Not here: the process groups that carry tensors (process_groups/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import AllreduceOptions, ReduceOp, Work

if TYPE_CHECKING:
    from ftrun.training.manager import Manager


class ManagedProcessGroup(dist.ProcessGroup):
    """The replicas of the quorum as a torch process group.

    For FSDP2's all-reduce hook, or code that takes a group.

    Only all-reduce is managed, and only inside a step. ``size()`` is the number of contributors, so
    it may change from step to step; an AVG divides by it.
    """

    def __init__(self, manager: Manager) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]  # torch's stub lacks this overload.
        self._manager = manager

    def allreduce(self, tensors: Any, opts: Any = ReduceOp.SUM) -> Work:  # type: ignore[override]
        """All-reduce one tensor through ``Manager.allreduce``."""
        tensor = _only(tensors)
        op = opts.reduceOp if isinstance(opts, AllreduceOptions) else opts
        return self._manager.allreduce(tensor, reduce_op=op)

    def size(self) -> int:
        """The number of contributors to the step under way."""
        return self._manager.num_participants()

    def rank(self) -> int:
        """The place among the contributors; 0 for a spare or while healing."""
        return self._manager.participating_rank() or 0

    def getBackendName(self) -> str:
        """The name of this backend in torch."""
        return "ftrun-managed"


def _only(tensors: Any) -> torch.Tensor:
    if isinstance(tensors, torch.Tensor):
        return tensors
    (tensor,) = tensors
    assert isinstance(tensor, torch.Tensor)
    return tensor
