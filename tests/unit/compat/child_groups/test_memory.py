"""Groups in a process of their own whose tensors are copied to blocks, as NCCL's are on a GPU.

Here the blocks are in host memory and the backend is Gloo: all but CUDA's own calls is the same.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
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
from ftrun.compat.child_groups.memory import (
    Blocks,
    CudaMemory,
    MappedBlocks,
    Staging,
    as_json,
    from_json,
    map_file,
)
from ftrun.compat.child_groups.nccl import ProcessGroupBabyNCCL
from ftrun.process_groups.codec import CODECS
from ftrun.torchft.process_group import reconfigure_with_store

LIMIT = timedelta(seconds=60)
DEADLINE_S = 60.0
CPU = torch.device("cpu")


class Counting:
    """Host memory, by the names of files; it counts what is released."""

    kind = "host"

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.released: list[Any] = []

    def allocate(self, nbytes: int, device: torch.device) -> tuple[torch.Tensor, list[Any]]:
        fd, path = tempfile.mkstemp(prefix="ftrun-block-", dir="/dev/shm")
        os.ftruncate(fd, nbytes)
        os.close(fd)
        self.made.append([path, nbytes])
        return map_file(path, nbytes), [path, nbytes]

    def settle(self, device: torch.device) -> None:
        """Do nothing: host memory is written at once."""

    def aside(self, device: torch.device) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def release(self, handle: list[Any]) -> None:
        with contextlib.suppress(OSError):
            os.unlink(handle[0])
        self.released.append(handle)


class InBlocks(ProcessGroupBabyGloo):
    """Gloo in a process of its own, by blocks."""

    def __init__(self) -> None:
        self.memory = Counting()
        super().__init__(LIMIT)


class Pair:
    """Two such groups."""

    def __init__(self) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.groups = [InBlocks() for _ in range(2)]
        self._count = 0

    def connect(self) -> None:
        self._count += 1
        place = f"127.0.0.1:{self.store.port}/{self._count}"
        self.run(lambda rank, group: reconfigure_with_store(group, place, rank, 2))

    def run(self, call: Callable[[int, InBlocks], Any]) -> list[Any]:
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
        assert len(group.memory.released) == len(group.memory.made) > 0  # type: ignore[union-attr]
        assert not any(Path(path).exists() for path, _ in group.memory.made)  # type: ignore[union-attr]
    both.groups.clear()
    del group
    gc.collect()


@pytest.fixture
def connected(pair: Pair) -> Pair:
    pair.connect()
    return pair


def _sum(rank: int, group: InBlocks) -> list[float]:
    tensor = torch.full((3,), rank + 1.0)
    group.allreduce([tensor], ReduceOp.SUM).wait()
    assert not tensor.is_shared(), "the script's tensor stays where it is"
    return tensor.tolist()


def test_results_come_back_to_the_caller_s_tensors(connected: Pair) -> None:
    def collect(rank: int, group: InBlocks) -> list[Any]:
        own = torch.tensor([float(rank + 1)])
        gathered = [torch.zeros(1), torch.zeros(1)]
        value = group.allgather([gathered], [own]).get_future().wait()
        assert value[0][0] is gathered[0]
        column = torch.arange(6.0).view(2, 3).t()[1:]  # strided, with an offset
        group.allreduce([column], ReduceOp.MAX).wait()
        whole = torch.arange(4.0) * (rank + 1)
        part = whole[2 * rank : 2 * rank + 2]  # an output that lies in the input
        group.reduce_scatter([part], [[whole[:2].clone(), whole[2:].clone()]]).wait()
        if rank == 0:
            group.send([own], 1, 5).wait()
        else:
            group.recv([own], 0, 5).wait()
        group.barrier(dist.BarrierOptions()).wait()
        return [[t.item() for t in gathered], column.flatten().tolist(), part.tolist(), own.item()]

    same = [[1.0, 2.0], [1.0, 4.0, 2.0, 5.0]]
    assert connected.run(collect) == [[*same, [0.0, 3.0], 1.0], [*same, [6.0, 9.0], 1.0]]


def test_blocks_are_mapped_once_and_used_again(connected: Pair) -> None:
    assert connected.run(_sum) == [[3.0] * 3] * 2
    before = [len(group.memory.made) for group in connected.groups]  # type: ignore[union-attr]
    for _ in range(3):
        assert connected.run(_sum) == [[3.0] * 3] * 2
    assert [len(group.memory.made) for group in connected.groups] == before  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=["killed", "crashed"])
def test_a_child_that_dies_leaves_the_tensor_and_frees_its_blocks(
    connected: Pair, number: int
) -> None:
    assert connected.run(_sum) == [[3.0] * 3] * 2
    group, child, tensor = connected.groups[0], connected.child(0), torch.ones(2)
    work = group.allreduce([tensor], ReduceOp.SUM)
    os.kill(child.pid, number)
    with pytest.raises(RuntimeError, match="the process of this group has ended"):
        work.wait()
    with pytest.raises(RuntimeError):
        group.allreduce([tensor], ReduceOp.SUM).get_future().wait()
    assert tensor.tolist() == [1.0, 1.0]
    child.shutdown()
    assert len(group.memory.released) == len(group.memory.made)  # type: ignore[union-attr]
    connected.connect()
    assert connected.run(_sum) == [[3.0] * 3] * 2


def test_a_child_that_stands_still_is_ended_at_the_deadline(connected: Pair) -> None:
    child = connected.child(0)
    child.set_timeout(timedelta(seconds=0.5))
    os.kill(child.pid, signal.SIGSTOP)
    began = clock.now()
    work = connected.groups[0].allreduce([torch.ones(2)], ReduceOp.SUM)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.5 s"):
        work.wait()
    assert clock.now() - began < DEADLINE_S
    connected.connect()
    assert connected.run(_sum) == [[3.0] * 3] * 2


def test_an_abort_wakes_a_waiter_at_once(connected: Pair) -> None:
    work = connected.groups[0].allreduce([torch.ones(2)], ReduceOp.SUM)
    connected.groups[0].abort()
    with pytest.raises(RuntimeError):
        work.wait(LIMIT)


def test_a_quantised_reduction_is_refused(connected: Pair) -> None:
    with pytest.raises(ValueError, match="offers no quantised reductions"):
        connected.child(0).allreduce_quantized(torch.ones(2), 1.0, CODECS["int8"])


# ------------------------------------------------------------ messages and blocks


def test_a_tensor_travels_by_a_block_s_number() -> None:
    memory = Counting()
    blocks, mapped, fds = Blocks(memory), MappedBlocks(), list[int]()
    for value in (1.0, 2.0):
        staging = Staging(blocks)
        tensor = torch.full((2, 3), value, dtype=torch.float16)
        packed = json.loads(json.dumps(messages.pack([[tensor], 3], fds, staging)))
        [[found], number] = messages.unpack(packed, fds, mapped)
        assert (found.dtype, found.shape, number) == (tensor.dtype, tensor.shape, 3)
        assert torch.equal(found, tensor)
        found.fill_(9.0)
        staging.collect(1)
        assert tensor.flatten().tolist() == [9.0] * 6
    assert not fds and len(memory.made) == 1
    blocks.close()
    with pytest.raises(RuntimeError, match="has ended"):
        blocks.take(1, CPU)


def test_a_block_of_a_failed_collective_is_not_used_again() -> None:
    blocks = Blocks(Counting())
    Staging(blocks).put(torch.ones(3))
    number, _, _ = blocks.take(12, CPU)
    assert number == 1
    blocks.give_back([number])
    assert blocks.take(12, CPU)[0] == 1
    blocks.close()


def test_cuda_s_handles_are_json_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = (0, b"\x00handle\xff", 4096, 512, b"/counter", 3, b"", True)
    assert from_json(json.loads(json.dumps(as_json(fields)))) == list(fields)
    released: list[Any] = []

    def note(*arguments: Any, device: int) -> None:
        released.append((*arguments, device))

    monkeypatch.setattr(torch.UntypedStorage, "_release_ipc_counter", note)
    CudaMemory().release(as_json(fields))
    assert released == [(b"/counter", 3, 0)]


def test_without_a_gpu_nccl_says_so_when_it_is_made() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: scripts/gpu_check.sh")
    with pytest.raises(UserError, match="ProcessGroupBabyNCCL needs a CUDA device"):
        ProcessGroupBabyNCCL()
