"""The samples that a worker reads: one shard for each worker of each replica group.

Not here: anything that depends on membership; shards never move.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler as TorchSampler


class DistributedSampler(TorchSampler[Any]):
    """torch's DistributedSampler over all workers of all replica groups.

    The shards are fixed by ``num_replica_groups``. While a group is away its shard is not read, so
    an epoch with losses leaves samples out.

    Args:
        dataset: the samples.
        replica_rank: the number of this replica group, 0 to ``num_replica_groups`` - 1.
        num_replica_groups: how many replica groups the complete job has.
        group_rank: this worker's rank within its group.
        num_replicas: workers per group.
        kwargs: ``shuffle``, ``seed``, ``drop_last``.

    Raises:
        ValueError: a rank is out of range.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        replica_rank: int,
        num_replica_groups: int,
        group_rank: int | None = None,
        num_replicas: int | None = None,
        **kwargs: Any,
    ) -> None:
        workers = num_replicas if num_replicas is not None else 1
        worker = group_rank if group_rank is not None else 0
        if not 0 <= replica_rank < num_replica_groups:
            raise ValueError(f"replica_rank {replica_rank} is not in 0..{num_replica_groups - 1}")
        if not 0 <= worker < workers:
            raise ValueError(f"group_rank {worker} is not in 0..{workers - 1}")
        self.global_rank = worker + workers * replica_rank
        self.global_world_size = workers * num_replica_groups
        super().__init__(
            dataset, num_replicas=self.global_world_size, rank=self.global_rank, **kwargs
        )
