"""torchft.ddp: DistributedDataParallel across replica groups."""

from ftrun.training.ddp import DistributedDataParallel, PureDistributedDataParallel

__all__ = ["DistributedDataParallel", "PureDistributedDataParallel"]
