"""The process group that torch sees of the replicas."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ftrun.training.managed_group import ManagedProcessGroup
from ftrun.training.manager import WorldSizeMode
from tests.unit.training.replicas import Ring, StandIn


def test_modes_have_torchft_s_values() -> None:
    assert [(mode.name, mode.value) for mode in WorldSizeMode] == [
        ("DYNAMIC", 0),
        ("FIXED_WITH_SPARES", 1),
    ]


def test_torch_s_all_reduce_goes_through_the_manager() -> None:
    def reduce(number: int, manager: StandIn) -> tuple[float, float, int]:
        group = ManagedProcessGroup(manager)  # type: ignore[arg-type]
        mean, total = torch.tensor([number]), torch.tensor([float(number)])
        mean = mean.float()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
        work = dist.all_reduce(total, group=group, async_op=True)
        assert work is not None
        work.wait()
        assert group.getBackendName() == "ftrun-managed" and group.rank() == 0
        return mean.item(), total.item(), group.size()

    assert Ring(3).run(reduce) == [(1.0, 3.0, 3)] * 3
