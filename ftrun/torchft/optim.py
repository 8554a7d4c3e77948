"""torchft.optim: the optimizer that steps committed steps only."""

from ftrun.training.optim import OptimizerWrapper

__all__ = ["OptimizerWrapper"]
