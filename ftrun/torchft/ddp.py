"""torchft.ddp: DistributedDataParallel across replica groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from ftrun.training import ddp
from ftrun.training.ddp import PureDistributedDataParallel

if TYPE_CHECKING:
    from ftrun.training.manager import Manager

__all__ = ["DistributedDataParallel", "PureDistributedDataParallel"]


class DistributedDataParallel(ddp.DistributedDataParallel):
    """ftrun's class, with unused parameters of a step detected, as torchft always does."""

    def __init__(self, manager: Manager, module: nn.Module, **kwargs: Any) -> None:
        super().__init__(manager, module, **{"find_unused_parameters": True, **kwargs})
