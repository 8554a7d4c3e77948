"""One group of the script's: what a call gives, keeps and lets go. Two ranks, in two threads."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import ReduceOp
from torch.utils._python_dispatch import TorchDispatchMode

from ftrun.core.ids import NO_ATTEMPT, Attempt, WorkerKey
from ftrun.core.worker.settling import Position
from ftrun.inject.zero_edit.world import kinds
from ftrun.inject.zero_edit.world.calls import KEPT_BYTES_MAX, Call, State
from ftrun.inject.zero_edit.world.kinds import GATHERED_BYTES_MIN, KINDS, ring_order
from ftrun.inject.zero_edit.world.shell import Shell
from ftrun.inject.zero_edit.world.world import World
from ftrun.training.context import WorkerContext
from ftrun.training.exchanged_tensors import from_bytes
from tests.jobs.process import wait

DEADLINE_S = 60.0
Both = Callable[[Callable[[Shell], Any]], list[Any]]


def group(rank: int, store: str) -> Shell:
    key = WorkerKey(str(rank), "a" * 16, 0)
    here = WorkerContext("job", key, 2, 1, 1, "127.0.0.1", "", "")
    world = World(here, rank, pytest.fail)
    world.members, world.is_open, world.in_set_up = (0, 1), True, False
    limit, cpu = timedelta(seconds=DEADLINE_S), torch.device("cpu")
    shell = Shell(world, "1.0", (0, 1), rank, limit, [cpu], "gloo", None)
    world.add(shell)
    world.connect(shell, lambda: (store, "prefix"), DEADLINE_S)
    return shell


@pytest.fixture
def both() -> Iterator[Both]:
    """Runs a function for both ranks at once; gives both results."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ThreadPoolExecutor(2) as pool:
        address = f"127.0.0.1:{store.port}"
        shells = list(pool.map(lambda rank: group(rank, address), range(2)))
        yield lambda work: list(pool.map(work, shells))
        for shell in shells:
            built, shell.built = shell.built, None
            assert built is not None
            built.shutdown()


def summed(shell: Shell, tensor: torch.Tensor) -> torch.Tensor:
    options = dist.AllreduceOptions()
    options.asyncOp = False
    shell.allreduce([tensor], options).wait()
    return tensor


def test_a_call_that_is_through_holds_no_tensor_and_is_known_to_a_newcomer(both: Both) -> None:
    def work(shell: Shell) -> tuple[bool, list[Any]]:
        tensor = torch.full((3,), shell.own + 1.0)
        summed(shell, tensor)
        gone = threading.Event()  # Gloo's thread lets go of the Work a moment after its end
        weakref.finalize(tensor, gone.set)
        del tensor
        for number in range(2):
            summed(shell, torch.full((1,), float(number)))
        world: Any = shell.world
        first = world.since(0, True)[0]
        return gone.wait(DEADLINE_S), first

    for is_gone, (key, bodies) in both(work):
        assert is_gone
        assert key == "1.0"
        assert from_bytes(b64decode(bodies[0]), torch.zeros(3)).tolist() == [3.0] * 3


def test_an_undisturbed_call_takes_few_frames(both: Both) -> None:
    """Between a script's products they are cold, and cost several times what they cost here."""

    def work(shell: Shell) -> int:
        options, counts = dist.AllreduceOptions(), []
        options.asyncOp = False
        for _ in range(20):  # of a peer that is late the wait has more
            frames: list[Any] = []

            def count(frame: FrameType, event: str, _: Any, frames: list[Any] = frames) -> None:
                if event == "call":
                    frames.append(frame.f_code)

            sys.setprofile(count)
            shell.allreduce([torch.ones(1)], options).wait()
            sys.setprofile(None)
            counts.append(len(frames))
        return min(counts)

    assert max(both(work)) <= 5


def test_a_plain_call_becomes_one_to_be_settled_when_anybody_looks(both: Both) -> None:
    def work(shell: Shell) -> list[Any]:
        world, tensor = shell.world, torch.full((1,), 2.0)
        summed(shell, torch.ones(1))
        if shell.own == 1:
            return []  # it never comes to the next one
        with ThreadPoolExecutor(1) as waits:
            waiting = waits.submit(summed, shell, tensor)
            wait(lambda: shell.next == 2, "the call", DEADLINE_S)
            with world.lock:
                position, (before, call) = shell.position(), shell.calls.values()
                tensor.fill_(-1)
                call.restore()
                found = [position, before.state, before.waited, call.tag, tensor.item()]
                call.take([torch.full((1,), 5.0)], None)
            waiting.result(DEADLINE_S)
        given = [from_bytes(b64decode(x), tensor).item() for _, (x,) in world.since(0, True)]
        return [*found, tensor.item(), given, [*shell.calls]]

    position = Position(2, 0, kept=frozenset({0}))
    expected = [position, State.THROUGH, True, NO_ATTEMPT, 2.0, 5.0, [2.0, 5.0], [1]]
    assert both(work) == [expected, []]


def test_what_a_call_writes_over_is_put_back(both: Both) -> None:
    inputs = (
        torch.arange(4.0),
        torch.arange(6.0).view(2, 3).t(),
        torch.arange(KEPT_BYTES_MAX, dtype=torch.float32),
        torch.zeros(0),
    )

    def work(shell: Shell) -> bool:
        found = []
        for given, is_inference in itertools.product(inputs, (False, True)):
            with torch.inference_mode(is_inference):  # of an evaluation, and not of who restores
                tensor = given.clone()
                options = dist.AllreduceOptions()
                call = Call(shell, KINDS["allreduce"], ([tensor], options), 0, True)
                call.prepare()
                tensor.fill_(-1)
            call.restore()
            found.append(torch.equal(tensor, given) and tensor.is_inference() is is_inference)
            call.write([torch.zeros_like(given)])
        return all(found)

    assert both(work) == [True, True]


def test_a_large_result_is_not_kept(both: Both) -> None:
    def work(shell: Shell) -> list[Any]:
        sizes = (4, KEPT_BYTES_MAX)
        return [summed(shell, torch.ones(size)).sum().item() for size in sizes] + [
            [call.result is not None for call in shell.calls.values()]
        ]

    assert both(work) == [[8.0, 2.0 * KEPT_BYTES_MAX, [False]]] * 2


def started(shell: Shell, tensor: torch.Tensor) -> Call:
    """An all-reduce that torch's backend has carried out, and of which nobody has heard yet."""
    options = dist.AllreduceOptions()
    options.asyncOp = tensor.numel() == 1  # a small one is through when it is begun
    work: Any = shell.allreduce([tensor], options)
    call: Call = work.call
    call.native.wait()
    return call


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64])
@pytest.mark.parametrize("count", [3, GATHERED_BYTES_MIN])
def test_a_gather_of_any_size_gives_what_all_have_given(
    both: Both, dtype: torch.dtype, count: int
) -> None:
    def work(shell: Shell) -> torch.Tensor:
        output = torch.zeros(2 * count, 2, dtype=dtype)
        own = output.chunk(2)[shell.own]  # as FSDP2 gives it
        own.copy_(torch.arange(2 * count).view(count, 2).t().reshape(count, 2) + shell.own)
        for _ in range(2):  # the second time by the same memory
            shell._allgather_base(output, own, options()).wait()
        with Seen() if shell.own else nullcontext():  # one rank alone may be profiled
            shell._allgather_base(output, own.t().contiguous().t(), options()).wait()
        other = output.clone() if shell.own else torch.zeros(2, 2 * count, dtype=dtype).t()
        shell._allgather_base(other, own, options()).wait()
        assert other.equal(output)
        return output

    def options() -> Any:
        found = AllgatherOptions()
        found.asyncOp = False
        return found

    first, second = both(work)
    whole = torch.arange(2 * count).view(count, 2).t().reshape(count, 2)
    expected = torch.cat([whole, whole + 1]).to(dtype)
    assert first.equal(expected)
    assert second.equal(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("count", [3, GATHERED_BYTES_MIN])
def test_a_reduce_scatter_of_any_size_gives_what_torchs_gives(
    both: Both, dtype: torch.dtype, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quicker, tries = kinds._reduce_scatter_by_alltoall, list[bool]()
    counted = lambda *given: [found := quicker(*given), tries.append(found is not None)][0]  # noqa: E731
    monkeypatch.setattr(kinds, "_reduce_scatter_by_alltoall", counted)
    operations = [ReduceOp.SUM, ReduceOp.MAX, *[ReduceOp.AVG] * dtype.is_floating_point]

    def work(shell: Shell) -> bool:
        generator = torch.Generator().manual_seed(shell.own)
        given = torch.randn(2 * count, 2, generator=generator).mul(9).to(dtype)
        # A rank may give its tensors otherwise than the other one does.
        lies = given.t().contiguous().t() if shell.own else given
        plain, found = torch.empty(count, 2, dtype=dtype), []
        for operation in operations:
            native: Any = shell.there.native  # type: ignore[union-attr]
            native._reduce_scatter_base(plain, given, options(operation, False)).wait()
            for is_async in (False, True):
                output = torch.empty(2, count, dtype=dtype).t() if shell.own else plain * 0
                before = given.clone()
                shell._reduce_scatter_base(output, lies, options(operation, is_async)).wait()
                found.append(output.equal(plain) and given.equal(before))
        return all(found)

    def options(operation: Any, is_async: bool) -> Any:
        found = dist.ReduceScatterOptions()
        found.reduceOp, found.asyncOp = operation, is_async
        return found

    assert all(both(work))
    is_large = count > 3 and dtype in (torch.float32, torch.float64)
    assert tries.count(True) == (8 if is_large else 0)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_parts_are_added_up_in_the_order_of_gloos_ring(size: int) -> None:
    store, limit = dist.HashStore(), timedelta(seconds=DEADLINE_S)
    counts = [1, 2, 7, 1001, 65_537, (1 << 20) // size + 3]

    def work(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        group: Any = dist.ProcessGroupGloo(store, rank, size, limit)
        found = []
        generator = torch.Generator()
        for count in counts:
            all_given = torch.randn(size, size, count, generator=generator.manual_seed(1))
            native, own = torch.empty(count), torch.empty(count)
            given = all_given[rank].reshape(-1)
            group._reduce_scatter_base(native, given, dist.ReduceScatterOptions()).wait()
            for begin, end, order in ring_order(size, rank, count, 4):
                own[begin:end] = sum(all_given[giver, rank, begin:end] for giver in order)
            found.append((native, own))
        return found

    with ThreadPoolExecutor(size) as pool:
        for found in pool.map(work, range(size)):
            assert [native.equal(own) for native, own in found] == [True] * len(counts)


def test_nothing_keeps_the_backend_of_a_group_that_is_shut_down(both: Both) -> None:
    """Else its end waits for its threads wherever the last call of it is dropped."""

    def work(shell: Shell) -> tuple[list[Any], list[Path]]:
        built: Any = shell.built
        works = [shell.allreduce([torch.ones(1)]) for _ in range(2)]
        for each in works:
            each.wait()
        shell.world.put(shell, (shell.own,), None)
        built.shutdown()
        shell.built = built
        return works, [Path(f"/proc/self/task/{tid}") for tid in built._tids]

    calls, threads = zip(*both(work), strict=True)
    is_over = lambda: not any(path.exists() for paths in threads for path in paths)  # noqa: E731
    wait(is_over, "the threads' end", DEADLINE_S)
    assert [each.result()[0].item() for works in calls for each in works] == [2.0] * 4


def test_only_what_was_aborted_is_let_go_before_the_next_step(both: Both) -> None:
    """Of the other group peers may still wait for the last bytes."""

    def work(shell: Shell) -> list[bool]:
        built, world = shell.built, shell.world
        assert built is not None and isinstance(world, World)
        if shell.own == 0:
            built.abort()
        world.put(shell, (shell.own,), None)
        world.release(only_aborted=True)
        is_left = [old is built for old in world._old]
        world.release()
        shell.built = built
        return is_left

    assert both(work) == [[], [True]]


def test_a_death_in_the_second_phase_is_told(both: Both) -> None:
    """The result is there: it stands if another rank has passed the second phase."""

    def work(shell: Shell) -> list[Any]:
        tensor = torch.ones(KEPT_BYTES_MAX)
        call, world = started(shell, tensor), shell.world
        with world.lock:
            call.ended(call.native, None)
            states = [call.state]
            call.ended(call.native, RuntimeError("a peer is gone"))
            second = shell.position().second
            states.append(call.state)
            call.take(None, None)
        return [states, second, call.state, tensor.sum().item()]

    expected = [[State.SECOND, State.FAILED], {0}, State.THROUGH, 2.0 * KEPT_BYTES_MAX]
    assert both(work) == [expected] * 2


def test_no_second_phase_begins_in_a_group_that_was_aborted(both: Both) -> None:
    def work(shell: Shell) -> list[Any]:
        call = started(shell, torch.ones(KEPT_BYTES_MAX))
        with shell.world.lock:
            shell.is_stopped = True
            call.stop(call.native)
            return [call.state, shell.position().second]

    assert both(work) == [[State.FAILED, {0}]] * 2


def test_a_wait_of_torch_s_own_code_goes_on_when_the_call_is_settled(both: Both) -> None:
    """C++ states a limit of zero, which means none."""

    def work(shell: Shell) -> Any:
        if shell.own == 1:
            return 3.0  # it never comes
        tensor = torch.zeros(1)
        given: Any = shell.broadcast([tensor], 1)
        waits = ThreadPoolExecutor(1).submit(given.wait, timedelta(0))
        with shell.world.lock:
            given.call.take([torch.full((1,), 3.0)], None)
        waits.result(DEADLINE_S)
        return tensor.item()

    assert both(work) == [3.0, 3.0]


def test_a_call_names_the_connections_that_have_carried_it_out(both: Both) -> None:
    """Not the quorum in force: that changes at another moment at each rank."""

    def work(shell: Shell) -> Any:
        tags = [started(shell, torch.ones(1)).tag]
        shell.world.in_use = Attempt(2, 1)
        return [*tags, started(shell, torch.ones(1)).tag]

    assert both(work) == [[NO_ATTEMPT, NO_ATTEMPT]] * 2


class Seen(TorchDispatchMode):
    """The names of torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_the_call(both: Both) -> None:
    def work(shell: Shell) -> tuple[list[str], float]:
        tensor = torch.ones(1)
        with Seen() as seen:
            summed(shell, tensor)
        return [name for name in seen.names if name.startswith("c10d.")], tensor.item()

    assert both(work) == [(["c10d.allreduce_.default"], 2.0)] * 2


def test_a_call_that_torch_refuses_has_no_number(both: Both) -> None:
    """Its peers refuse it, too, and their next calls are to have the same numbers."""

    def work(shell: Shell) -> tuple[int, int, float]:
        with pytest.raises(RuntimeError, match="root"):
            shell.broadcast([torch.ones(1)], 5)
        world: Any = shell.world
        return shell.next, world.count, summed(shell, torch.ones(1)).item()

    assert both(work) == [(0, 0, 2.0)] * 2
