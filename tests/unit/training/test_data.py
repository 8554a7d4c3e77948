"""One shard for each worker of each replica group."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from ftrun.training.data import DistributedSampler


def test_all_workers_of_all_groups_share_the_samples() -> None:
    dataset = TensorDataset(torch.arange(24))
    shards = [
        list(DistributedSampler(dataset, replica, 3, worker, 2, shuffle=False))
        for replica in range(3)
        for worker in range(2)
    ]
    assert sorted(sample for shard in shards for sample in shard) == list(range(24))
    assert shards[3] == list(range(3, 24, 6))  # group_rank 1 + 2 workers * replica_rank 1


def test_a_group_of_one_worker_needs_no_more_than_its_place() -> None:
    sampler = DistributedSampler(TensorDataset(torch.arange(10)), 1, 2, shuffle=True, seed=4)
    assert (sampler.global_rank, sampler.global_world_size) == (1, 2)
    sampler.set_epoch(1)
    first = list(sampler)
    sampler.set_epoch(2)
    assert len(first) == 5 and list(sampler) != first


@pytest.mark.parametrize("place", [(3, 3, 0, 1), (-1, 3, 0, 1), (0, 3, 2, 2)])
def test_ranks_out_of_range_are_refused(place: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="is not in"):
        DistributedSampler(TensorDataset(torch.arange(3)), *place)
