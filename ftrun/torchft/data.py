"""torchft.data: the sampler that shards a data set over replica groups."""

from ftrun.training.data import DistributedSampler

__all__ = ["DistributedSampler"]
