"""Groups over NCCL, whose Works end when the GPU is done; with a double of torch's backend."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch

from ftrun.base.errors import PeerError
from ftrun.process_groups.built import AbortSignal, BuiltGroup, GroupAborted
from ftrun.process_groups.nccl import ProcessGroupNCCL
from ftrun.process_groups.store import StoreClient
from tests.jobs.process import wait
from tests.unit.process_groups import nccl_double
from tests.unit.process_groups.ranks import HOST, open_store

DEADLINE_S = 60.0
Make = Callable[..., "list[Future[BuiltGroup]]"]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Builds a group of two, by the ranks that come; gives the builds."""
    nccl_double.install(monkeypatch.setattr)
    held, address = open_store()
    signals: list[AbortSignal] = []
    with ThreadPoolExecutor(8) as pool:

        def build(prefix: str, *ranks: int, timeout_s: float = DEADLINE_S) -> list[Any]:
            signals.extend(AbortSignal() for _ in ranks)
            own = zip(ranks, signals[-len(ranks) :], strict=True)
            factory = ProcessGroupNCCL(timedelta(seconds=DEADLINE_S))
            return [
                pool.submit(factory.build, address, prefix, rank, 2, HOST, timeout_s, signal)
                for rank, signal in own
            ]

        yield build
        for signal in signals:
            signal.trigger()
    del held


def built(builds: list[Future[BuiltGroup]]) -> list[BuiltGroup]:
    return [each.result(DEADLINE_S) for each in builds]


def test_a_future_ends_with_the_outcome_and_not_when_the_kernel_is_enqueued(make: Make) -> None:
    one, other = built(make("a", 0, 1))
    tensor = torch.ones(1000)
    work = one.allreduce([tensor])
    native = one.native.allreduce([torch.ones(1)])
    assert native.get_future().done() and native.wait() and not native.is_completed()
    assert not work.get_future().done()
    assert tensor.sum().item() == 1000.0
    for value in (2.0, 1.0):
        other.allreduce([torch.full((1000 if value == 2.0 else 1,), value)])
    work.get_future().wait()
    assert tensor.sum().item() == 3000.0


def test_nothing_is_written_once_a_future_has_its_error(make: Make) -> None:
    """So the inputs of a step may be put back, and reduced again in the next group."""
    one, _ = built(make("a", 0, 1))
    tensor = torch.ones(1000)
    future = one.allreduce([tensor]).get_future()
    one.abort()
    with pytest.raises(GroupAborted):
        future.wait()
    assert math.isnan(tensor[0].item())  # a kernel that was aborted leaves anything
    tensor.fill_(1.0)
    again, other = built(make("b", 0, 1))
    works = [again.allreduce([tensor]), other.allreduce([torch.ones(1000)])]
    for work in works:
        work.get_future().wait()
    assert tensor.sum().item() == 2000.0


def test_a_group_that_was_aborted_is_dead(make: Make) -> None:
    one, _ = built(make("a", 0, 1))
    one.abort()
    with pytest.raises(GroupAborted):
        one.allreduce([torch.ones(1)]).get_future().wait()


@pytest.mark.parametrize("rank", [0, 1])
def test_only_an_abort_ends_a_build_whose_peer_never_comes(
    rank: int, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it waits for the id that rank 0 is to give."""
    signal, asks = AbortSignal(), threading.Event()
    plain = StoreClient.get
    monkeypatch.setattr(StoreClient, "get", lambda *args: (asks.set(), plain(*args))[1])
    factory = ProcessGroupNCCL(timedelta(seconds=DEADLINE_S))
    held, address = open_store()
    with ThreadPoolExecutor(1) as pool:
        build = pool.submit(factory.build, address, "alone", rank, 2, HOST, DEADLINE_S, signal)
        wait(lambda: asks.is_set() or held.num_keys() > 1, "the build", DEADLINE_S)
        signal.trigger()
        with pytest.raises(GroupAborted):
            build.result(DEADLINE_S / 2)


def test_a_build_ends_by_its_deadline(make: Make) -> None:
    (build,) = make("late", 0, timeout_s=0.5)
    with pytest.raises(PeerError, match="rank 0 of 2 could not connect"):
        build.result(DEADLINE_S)
