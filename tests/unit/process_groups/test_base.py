"""The abort signal, works that have ended, the group of one, and what every build does."""

from __future__ import annotations

import pytest
import torch

from ftrun.base.errors import PeerError
from ftrun.process_groups.base import Place, ProcessGroup
from ftrun.process_groups.built import AbortSignal, BuiltGroup, FinishedWork, GroupAborted
from ftrun.process_groups.nccl import ProcessGroupNCCL
from ftrun.process_groups.solo import SoloGroup


def test_a_signal_calls_each_subscriber_once() -> None:
    signal, calls = AbortSignal(), []
    signal.subscribe(lambda: calls.append("first"))
    signal.subscribe(lambda: calls.append("second"))
    signal.check()
    signal.trigger()
    signal.trigger()
    assert calls == ["first", "second"]
    assert signal.triggered
    with pytest.raises(GroupAborted):
        signal.check()


def test_a_late_subscriber_is_called_at_once_and_one_that_left_is_not() -> None:
    signal, calls = AbortSignal(), []
    leave = signal.subscribe(lambda: calls.append("left"))
    leave()
    leave()
    signal.trigger()
    signal.subscribe(lambda: calls.append("late"))()
    assert calls == ["late"]


def test_finished_works() -> None:
    tensor = torch.ones(2)
    good = FinishedWork([tensor])
    assert good.wait() and good.is_success() and good.get_future().value()[0] is tensor
    bad = FinishedWork(error=GroupAborted("gone"))
    assert bad.is_completed() and not bad.is_success()
    with pytest.raises(GroupAborted, match="gone"):
        bad.wait()


def test_a_group_of_one_copies() -> None:
    group = SoloGroup(AbortSignal())
    tensor, output = torch.arange(4.0), torch.zeros(4)
    group.allgather([[output]], [tensor]).wait()
    assert torch.equal(output, tensor)
    group.reduce_scatter([output.zero_()], [[tensor]]).wait()
    assert torch.equal(output, tensor)
    group.alltoall_base(output.zero_(), tensor, [], []).wait()
    assert torch.equal(output, tensor)
    for work in (group.broadcast([tensor]), group.barrier(), group.allreduce_coalesced([tensor])):
        assert work.wait()
    with pytest.raises(ValueError, match="no peer"):
        group.send([tensor], 1)


def test_a_group_of_one_can_be_aborted() -> None:
    group = SoloGroup(AbortSignal())
    group.abort()
    assert group.aborted
    with pytest.raises(GroupAborted):
        group.allreduce([torch.ones(1)]).wait()
    group.shutdown()


def test_nccl_needs_no_cuda_until_a_group_of_two_is_built() -> None:
    factory = ProcessGroupNCCL()
    assert factory.getBackendName() == "ftrun-nccl" and not factory.caller_waits
    assert factory.build("nowhere:1", "x", 0, 1, "127.0.0.1", 1).size() == 1


class Third(ProcessGroup):
    """A group for a backend of the test's own. ``error``: why its ranks do not connect."""

    def __init__(self, error: Exception | None = None, aborts: bool = False) -> None:
        super().__init__()
        self.built: list[BuiltGroup] = []
        self._error = error
        self._aborts = aborts

    def _connect(self, place: Place) -> BuiltGroup:
        assert place.remaining().total_seconds() <= 60
        if self._aborts:
            place.signal.trigger()
        if self._error is not None:
            raise self._error
        self.built.append(BuiltGroup(place.rank, place.world_size, object(), place.signal))
        return self.built[0]


def build(group: ProcessGroup, world_size: int, signal: AbortSignal | None = None) -> BuiltGroup:
    return group.build("nowhere:1", "x", 0, world_size, "127.0.0.1", 60, signal)


def test_a_group_of_one_is_built_without_its_backend() -> None:
    assert build(Third(RuntimeError("not called")), 1).size() == 1


def test_an_error_of_the_backend_names_the_rank() -> None:
    with pytest.raises(PeerError, match="rank 0 of 2 could not connect: no route"):
        build(Third(RuntimeError("no route")), 2)


@pytest.mark.parametrize("error", [None, RuntimeError("no route"), PeerError("gone")])
def test_a_build_that_is_aborted_leaves_nothing(error: Exception | None) -> None:
    third = Third(error, aborts=True)
    with pytest.raises(GroupAborted):
        build(third, 2)
    assert all(built.native is None for built in third.built)


def test_a_group_that_was_given_up_is_not_built() -> None:
    signal, third = AbortSignal(), Third()
    signal.trigger()
    with pytest.raises(GroupAborted):
        build(third, 2, signal)
    assert not third.built
