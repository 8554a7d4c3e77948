"""The process group that torch sees of the replicas, on real Managers (scripted_agent.py)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from ftrun.training.managed_group import ManagedProcessGroup
from ftrun.training.manager import Manager, WorldSizeMode
from tests.unit.training.scripted_agent import Job, job


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Job]:
    """Two replicas, of which one is enough."""
    with job(tmp_path, 2, min_replicas=1) as both:
        both.add("0")
        both.add("1")
        yield both


def test_modes_have_torchft_s_values() -> None:
    assert [(mode.name, mode.value) for mode in WorldSizeMode] == [
        ("DYNAMIC", 0),
        ("FIXED_WITH_SPARES", 1),
    ]


def test_torch_s_all_reduce_goes_through_the_manager_within_a_step(pair: Job) -> None:
    def reduce(slot: str, manager: Manager) -> tuple[float, float, list[float], int]:
        group = ManagedProcessGroup(manager)
        manager.start_quorum()
        mean, total = torch.tensor([float(slot)]), torch.tensor([float(slot) + 1])
        dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
        work = dist.all_reduce(total, group=group, async_op=True)
        assert work is not None
        work.wait()
        many = [torch.tensor([float(slot)]), torch.tensor([2.0])]
        assert group.allreduce_coalesced(many).wait()
        assert group.getBackendName() == "ftrun-managed" and group.rank() == int(slot)
        assert manager.should_commit()
        return mean.item(), total.item(), [t.item() for t in many], group.size()

    assert pair.run(reduce) == [(0.5, 3.0, [1.0, 4.0], 2)] * 2


def _between(slot: str, manager: Manager, steps: int = 3) -> list[Any]:
    """All collectives after each of ``steps`` steps, and what they give."""
    group, found = ManagedProcessGroup(manager), []
    own = float(slot) + 1
    for _ in range(steps):
        manager.start_quorum()
        manager.allreduce(torch.ones(1)).wait()
        assert manager.should_commit()
        loss = torch.tensor([own])
        dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=group)
        sent = torch.tensor([own, own])
        group.broadcast([sent], 1)
        gathered = [torch.zeros(1), torch.zeros(1)]
        group.allgather([gathered], [torch.tensor([own])])
        part = torch.zeros(1)
        group.reduce_scatter([part], [[torch.tensor([own]), torch.tensor([10 * own])]])
        group.barrier()
        found.append([loss.item(), sent.tolist(), [t.item() for t in gathered], part.item()])
        assert manager.errored() is None
    return found


def test_between_two_steps_collectives_are_exchanges_of_the_quorum(pair: Job) -> None:
    zero, one = pair.run(_between)
    assert zero == [[1.5, [2.0, 2.0], [1.0, 2.0], 3.0]] * 3
    assert one == [[1.5, [2.0, 2.0], [1.0, 2.0], 30.0]] * 3


def test_torch_s_newer_names_of_collectives_are_exchanges_too(pair: Job) -> None:
    def collect(slot: str, manager: Manager) -> list[Any]:
        group, own = ManagedProcessGroup(manager), float(slot) + 1
        parts = torch.tensor([own, 10 * own])
        pairs, ones = torch.zeros(2, 2), [torch.zeros(1) for _ in range(3)]
        whole = torch.zeros(2)
        group.all_gather_single(pairs, parts)
        group.reduce_scatter_single(ones[0], parts)
        group.all_gather_single_coalesced([pairs], [parts])
        group.reduce_scatter_single_coalesced([ones[1]], [parts])
        group.all_to_all_single(whole, parts)
        if hasattr(dist, "all_gather_single"):
            dist.all_gather_single(pairs.view(-1), parts, group=group)
            dist.reduce_scatter_single(ones[2], parts, group=group)
            dist.all_to_all_single(whole, parts, group=group)
        total = torch.tensor([own])
        dist.reduce(total, group_dst=1, group=group)
        return [pairs.tolist(), ones[0].item(), ones[1].item(), whole.tolist(), total.item()]

    pair.step()
    zero, one = pair.run(collect)
    assert zero == [[[1.0, 10.0], [2.0, 20.0]], 3.0, 3.0, [1.0, 2.0], 1.0]
    assert one == [[[1.0, 10.0], [2.0, 20.0]], 30.0, 30.0, [10.0, 20.0], 3.0]


def test_what_cannot_be_exchanged_is_refused_or_keeps_the_own_value(
    pair: Job, caplog: pytest.LogCaptureFixture
) -> None:
    pair.step()
    manager = pair.managers["0"]
    group, large = ManagedProcessGroup(manager), torch.ones(4 << 20)
    for _ in range(2):
        assert group.broadcast([large], 1).wait() and large[0] == 1
    error = manager.errored()
    assert error is not None and "16777216 bytes" in str(error)
    assert caplog.text.count("the replica's own value is the result") == 1
    with pytest.raises(ValueError, match="2 equal parts"):
        group.alltoall_base(torch.zeros(3), torch.zeros(3), [], [])
    for call in (group.alltoall, group.gather, group.scatter):
        with pytest.raises(NotImplementedError, match=r"does not support .* call"):
            call([], [])


def test_a_step_that_is_made_once_more_has_the_same_exchanges(pair: Job) -> None:
    """Nobody else comes to what follows a step that was not committed: one's own value counts."""
    rounds = 4

    def train(slot: str, manager: Manager) -> tuple[list[float], list[float]]:
        means: list[float] = []
        alone: list[float] = []
        group = ManagedProcessGroup(manager)
        while manager.current_step() < rounds:
            manager.start_quorum()
            inside = torch.tensor([float(slot)])
            gathered = [torch.zeros(1), torch.zeros(1)]
            group.allgather([gathered], [inside])  # within the step, while a newcomer heals
            manager.allreduce(torch.ones(1)).wait()
            if manager.current_step() == 1 and slot == "0" and not alone:
                manager.report_error(RuntimeError("this step is to be made once more"))
            committed = manager.should_commit()
            loss = torch.tensor([float(slot)])
            dist.all_reduce(loss, op=dist.ReduceOp.MAX, group=group)
            (means if committed else alone).append(loss.item())
            assert manager.errored() is None or not manager.session.machine.in_step
        return means, alone

    (zero, alone), (one, _) = pair.run(train)
    assert set(zero) == set(one) == {1.0}
    assert zero[-rounds + 1 :] == one[-rounds + 1 :]
    assert alone[:1] == [0.0], "slot 0 alone has voted against its step"


def test_integers_have_no_average(pair: Job) -> None:
    group = ManagedProcessGroup(pair.managers["0"])
    with pytest.raises(ValueError, match="floating point"):
        group.allreduce([torch.ones(2, dtype=torch.int64)], dist.ReduceOp.AVG)


def test_a_peer_that_does_not_come_costs_its_value_only(tmp_path: Path) -> None:
    with job(tmp_path, 2, min_replicas=1) as both:
        for slot in ("0", "1"):
            both.add(slot, timeout=timedelta(seconds=2))
        assert both.step() == [True, True]
        manager = both.managers["0"]
        group, loss = ManagedProcessGroup(manager), torch.tensor([7.0])
        assert dist.all_reduce(loss, group=group) is None
        gathered = [torch.zeros(1), torch.zeros(1)]
        group.allgather([gathered], [loss])
        assert [loss.item(), *(t.item() for t in gathered)] == [7.0, 7.0, 7.0]
        error = manager.errored()
        assert error is not None and isinstance(error.original_exception, TimeoutError)
        assert "replica 1 did not come" in str(error)
        assert both.step() == [True, True], "the next step forgets it"


def test_functional_collectives_find_a_registered_group(pair: Job) -> None:
    """As torchtitan does for its loss: it sums by name, and divides by ``size()``."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        groups = {
            slot: ManagedProcessGroup(manager).register(f"replicas_{slot}")
            for slot, manager in pair.managers.items()
        }
        pair.step()

        def mean(slot: str, manager: Manager) -> float:
            loss = torch.tensor(float(slot) + 1)
            summed = functional.all_reduce(loss, "sum", groups[slot])
            return summed.item() / groups[slot].size()

        assert pair.run(mean) == [1.5, 1.5]
        assert groups["0"].group_name != groups["1"].group_name
        for group in groups.values():
            group.unregister()
    finally:
        dist.destroy_process_group()


def test_one_peer_can_be_sent_to(pair: Job) -> None:
    def pass_on(slot: str, manager: Manager) -> float:
        group, value = ManagedProcessGroup(manager), torch.tensor([float(slot)])
        manager.start_quorum()
        if slot == "0":
            assert group.send([value + 5], 1).wait()
        else:
            assert group.recv([value], 0).wait()
        manager.allreduce(torch.ones(1)).wait()
        assert manager.should_commit()
        return value.item()

    assert pair.run(pass_on) == [0.0, 5.0]
