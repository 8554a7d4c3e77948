"""Groups in a process of their own, between two group objects of one process."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed import ReduceOp

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.compat.child_groups import messages
from ftrun.compat.child_groups.group import ChildGroup, ProcessGroupBabyGloo
from ftrun.torchft.process_group import reconfigure_with_store

LIMIT = timedelta(seconds=60)


class Pair:
    """Two groups of two ranks, each in a process of its own."""

    def __init__(self) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.groups = [ProcessGroupBabyGloo(LIMIT) for _ in range(2)]
        self._count = 0

    def connect(self) -> None:
        self._count += 1
        place = f"127.0.0.1:{self.store.port}/{self._count}"
        self.run(lambda rank, group: reconfigure_with_store(group, place, rank, 2))

    def run(self, call: Callable[[int, ProcessGroupBabyGloo], Any]) -> list[Any]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(call, range(2), self.groups))

    def child(self, rank: int) -> ChildGroup:
        built = self.groups[rank].current()
        assert isinstance(built, ChildGroup)
        return built


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    both = Pair()
    yield both
    for group in both.groups:
        group.shutdown()
    pids = [group._host._process.pid for group in both.groups]
    both.groups.clear()
    del group
    gc.collect()
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists(), "the host has ended with its owner"


@pytest.fixture
def connected(pair: Pair) -> Pair:
    pair.connect()
    return pair


def _sum(rank: int, group: ProcessGroupBabyGloo) -> list[float]:
    tensor = torch.full((3,), rank + 1.0)
    group.allreduce([tensor], ReduceOp.SUM).wait()
    return tensor.tolist()


def test_results_are_in_the_caller_s_tensors(connected: Pair) -> None:
    def collect(rank: int, group: ProcessGroupBabyGloo) -> list[Any]:
        own = torch.tensor([float(rank + 1)])
        gathered = [torch.zeros(1), torch.zeros(1)]
        group.allgather([gathered], [own]).wait()
        sent = own.clone()
        group.broadcast_one(sent, 1).wait()
        column = torch.arange(6.0).view(2, 3).t()[1:]  # strided, with an offset
        group.allreduce([column], ReduceOp.MAX).get_future().wait()
        group.barrier(dist.BarrierOptions()).wait()
        return [[t.item() for t in gathered], sent.item(), column.flatten().tolist()]

    assert connected.run(collect) == [[[1.0, 2.0], 2.0, [1.0, 4.0, 2.0, 5.0]]] * 2
    assert [group.num_active_work() for group in connected.groups] == [0, 0]


def test_the_next_group_has_a_new_process_and_the_old_one_is_gone(connected: Pair) -> None:
    before = [connected.child(rank).pid for rank in range(2)]
    connected.connect()
    assert connected.run(_sum) == [[3.0] * 3] * 2
    assert not set(before) & {connected.child(rank).pid for rank in range(2)}
    assert not any(Path(f"/proc/{pid}").exists() for pid in before)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=["killed", "crashed"])
def test_a_child_that_dies_fails_its_collectives_only(connected: Pair, number: int) -> None:
    work = connected.groups[0].allreduce([torch.ones(2)], ReduceOp.SUM)
    os.kill(connected.child(0).pid, number)
    with pytest.raises(RuntimeError, match="the process of this group has ended"):
        work.wait()
    with pytest.raises(RuntimeError):
        connected.groups[0].allreduce([torch.ones(2)], ReduceOp.SUM).get_future().wait()
    connected.connect()
    assert connected.run(_sum) == [[3.0] * 3] * 2


def test_a_child_that_stands_still_is_ended_at_the_deadline(connected: Pair) -> None:
    child = connected.child(0)
    connected.groups[0].current().set_timeout(timedelta(seconds=0.5))
    os.kill(child.pid, signal.SIGSTOP)
    began = clock.now()
    work = connected.groups[0].allreduce([torch.ones(2)], ReduceOp.SUM)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.5 s"):
        work.wait()
    assert clock.now() - began < 30
    connected.connect()
    assert connected.run(_sum) == [[3.0] * 3] * 2


def test_an_abort_wakes_a_waiter_at_once(connected: Pair) -> None:
    work = connected.groups[0].allreduce([torch.ones(2)], ReduceOp.SUM)
    began = clock.now()
    connected.groups[0].abort()
    with pytest.raises(RuntimeError):
        work.wait()
    assert clock.now() - began < 10


def test_after_the_end_its_handle_is_closed(connected: Pair) -> None:
    for group in connected.groups:
        group.shutdown()
    with pytest.raises(OSError, match="handle is closed"):
        connected.groups[0].allreduce([torch.ones(1)])


def test_arguments_travel_without_pickle() -> None:
    fds: list[int] = []
    options = dist.ReduceScatterOptions()
    options.reduceOp = ReduceOp.MIN  # type: ignore[assignment]
    tensor = torch.arange(4)
    packed = messages.pack([[tensor], options, ReduceOp.SUM, 3, None], fds)
    tensors, read, op, number, nothing = messages.unpack(packed, fds)
    tensors[0][0] = 9  # the same memory
    assert tensor.tolist() == [9, 1, 2, 3]
    assert (read.reduceOp, op, number, nothing) == (ReduceOp.MIN, ReduceOp.SUM, 3, None)
    with pytest.raises(UserError, match="a set cannot"):
        messages.pack({1}, fds)
