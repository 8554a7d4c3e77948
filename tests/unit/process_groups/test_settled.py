"""Groups on GPUs whose Works end on the host; with a double of torch's NCCL backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ftrun.process_groups import settled
from ftrun.process_groups.built import AbortSignal, BuiltGroup, FinishedWork
from ftrun.process_groups.nccl import ProcessGroupNCCL
from ftrun.process_groups.settled import SettledGroup
from ftrun.process_groups.writers import wait_for_writers
from tests.unit.process_groups import nccl_double
from tests.unit.process_groups.ranks import HOST, open_store

DEADLINE_S = 60.0
LIMIT = timedelta(seconds=DEADLINE_S)
Make = Callable[[str], "list[SettledGroup]"]


class Host(BuiltGroup):
    """Stands in for connections in host memory, and notes what goes there."""

    def __init__(self) -> None:
        super().__init__(0, 2, self, AbortSignal())
        self.calls: list[str] = []
        self.is_shut_down = False

    def allreduce(self, *_: Any) -> Any:
        self.calls.append("allreduce")
        return FinishedWork()

    def threads_sleep(self) -> bool | None:
        return True

    def shutdown(self) -> None:
        self.is_shut_down = True


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Builds both ranks of a group; all tensors are as on a GPU, but those of integers."""
    nccl_double.install(monkeypatch.setattr)
    monkeypatch.setattr(settled, "is_on_host", lambda x: x.dtype == torch.int64)
    held, address = open_store()
    signals: list[AbortSignal] = []
    with ThreadPoolExecutor(8) as pool:

        def build(prefix: str) -> list[SettledGroup]:
            own = [AbortSignal(), AbortSignal()]
            signals.extend(own)
            given = (address, prefix)
            builds: list[Future[Any]] = [
                pool.submit(
                    ProcessGroupNCCL(LIMIT).build, *given, rank, 2, HOST, DEADLINE_S, own[rank]
                )
                for rank in range(2)
            ]
            found = [x.result(DEADLINE_S) for x in builds]
            return [SettledGroup(x, Host(), y) for x, y in zip(found, own, strict=True)]

        yield build
        for signal in signals:
            signal.trigger()
    del held


@pytest.mark.parametrize("is_async", [True, False])
def test_a_work_ends_when_the_result_is_there(make: Make, is_async: bool) -> None:
    """Also of a call that torch's class would give no Work of. The options stay as they were."""
    one, other = make("a")
    tensor, options = torch.ones(1000), dist.AllreduceOptions()
    options.asyncOp = is_async
    work: Any = one.native.allreduce([tensor], options)
    assert options.asyncOp is is_async
    assert not work.is_completed() and not work.get_future().done()
    with pytest.raises(RuntimeError, match=r"not ended within 0\.01 s"):
        work.wait(timedelta(seconds=0.01))
    assert one.threads_sleep() is False
    other.native.allreduce([torch.full((1000,), 2.0)], options)
    assert work.wait(LIMIT) and work.is_completed()
    assert tensor.sum().item() == 3000.0 and work.result()[0] is tensor
    work.get_future().wait()
    assert one.is_idle and one.threads_sleep() is True


def test_after_an_abort_all_end_with_an_error_and_nothing_writes(make: Make) -> None:
    one, _ = make("a")
    tensor = torch.ones(1000)
    work: Any = one.native.allreduce([tensor])
    one.abort()
    assert wait_for_writers([work], one.threads_sleep)
    assert one.is_idle and math.isnan(tensor[0].item())
    with pytest.raises(RuntimeError, match="aborted"):
        work.wait(LIMIT)
    tensor.fill_(1.0)
    late: Any = one.native.allreduce([tensor])
    assert late.is_completed() and tensor.sum().item() == 1000.0
    with pytest.raises(RuntimeError, match="aborted"):
        late.get_future().wait()


def test_an_error_of_the_backend_is_in_the_work_and_a_wrong_call_is_raised(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL tells of a peer that is gone where a call is issued: that is no error of the script."""
    one, _ = make("a")

    def fails(error: Exception) -> Callable[..., Any]:
        def call(*_: Any) -> Any:
            raise error

        return call

    native: Any = one._device.native
    monkeypatch.setattr(native, "_collective", fails(dist.DistBackendError("remote error")))
    work: Any = one.native.allreduce([torch.ones(1)])
    with pytest.raises(RuntimeError, match="remote error"):
        work.wait(LIMIT)
    monkeypatch.setattr(native, "_collective", fails(ValueError("sizes differ")))
    with pytest.raises(ValueError, match="sizes differ"):
        one.native.allreduce([torch.ones(1)])
    assert one.is_idle


def test_calls_go_where_their_tensors_are(make: Make) -> None:
    one, other = make("a")
    host: Any = one._host
    one.native.allreduce([torch.ones(1, dtype=torch.int64)]).wait()
    assert host.calls == ["allreduce"]
    works = [group.native.barrier() for group in (one, other)]
    whole = [torch.zeros(4) for _ in range(2)]
    for rank, group in enumerate((one, other)):
        works.append(group.native._allgather_base(whole[rank], torch.full((2,), float(rank))))
    for work in works:
        work.wait(LIMIT)
    assert [x.tolist() for x in whole] == [[0.0, 0.0, 1.0, 1.0]] * 2
    assert host.calls == ["allreduce"]
    one._device.device = torch.device("cuda", 1)
    with pytest.raises(RuntimeError, match="on cpu in a process group of cuda:1: its backend"):
        one.native.allreduce([torch.ones(1)])
    one.shutdown()
    assert host.is_shut_down and one.aborted and one._device.native is None
