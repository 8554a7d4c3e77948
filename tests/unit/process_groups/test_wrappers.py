"""torchft's wrappers, handles, and which groups a Manager takes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import ReduceOp

from ftrun.base.errors import UserError
from ftrun.process_groups import ProcessGroupGloo
from ftrun.process_groups.adapted import adapt, own_error
from ftrun.process_groups.handles import (
    HandleStore,
    ReconfigureOptions,
    meet,
    split_store_address,
)
from ftrun.process_groups.reconfigurable import ReconfigurableGroup
from ftrun.process_groups.wrappers import (
    ErrorSwallowingProcessGroupWrapper,
    FakeProcessGroupWrapper,
    ProcessGroupDummy,
    ProcessGroupWrapper,
)
from ftrun.torchft.process_group import (
    ProcessGroupBabyGloo,
    ProcessGroupXCCL,
    reconfigure_with_store,
)

LIMIT = timedelta(seconds=60)


def _options(*handles: str, uuid: int = 7) -> ReconfigureOptions:
    options = ReconfigureOptions()
    options.uuid, options.handles = uuid, list(handles)
    return options


@contextmanager
def pair(*groups: Any) -> Any:
    """Connect groups with each other by a store."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def connect(rank: int) -> None:
        place = f"127.0.0.1:{store.port}/pair"
        reconfigure_with_store(groups[rank], place, rank, len(groups), LIMIT)

    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(connect, range(len(groups))))
        yield pool
    for group in groups:
        group.abort()
        group.shutdown()


# ------------------------------------------------------------ handles


def test_a_handle_names_a_place_and_a_rank() -> None:
    stores = HandleStore(), HandleStore()
    handles = [stores[0].handle(3), stores[1].handle(5)]
    meeting = meet(_options(*handles), stores[1].handle_id)
    first = json.loads(handles[0])["store"]
    assert (meeting.rank, meeting.world_size, meeting.global_ranks) == (1, 2, [3, 5])
    assert meeting.store_addr == f"{first}/torchft/7"
    assert meet(_options(handles[1], stores[0].handle(None)), stores[0].handle_id).rank == 1


@pytest.mark.parametrize(
    "handles",
    [["no json"], ['{"id": 1}'], ["[]"], [], {"a set"}],
    ids=["text", "half", "list", "none", "unordered"],
)
def test_handles_that_cannot_be_used_are_refused(handles: Any) -> None:
    options = ReconfigureOptions()
    options.handles = handles
    with pytest.raises(ValueError, match="handle"):
        meet(options, "mine")


def test_a_store_s_address_may_be_ipv6() -> None:
    assert split_store_address("::1:29521/a/b") == ("::1", 29521, "a/b")
    assert split_store_address("[::1]:80/a") == ("::1", 80, "a")
    assert split_store_address("host:80") == ("host", 80, "")


def test_a_peer_that_does_not_come_is_an_error_in_time() -> None:
    group = ProcessGroupGloo(timedelta(seconds=0.05))
    handle = group.get_reconfigure_handle()
    missing = json.dumps({"id": "missing", "store": "unused", "global_rank": None})
    with pytest.raises(RuntimeError, match="timeout after 50ms"):
        group.reconfigure(_options(handle, missing))


def test_a_group_is_connected_again_and_again() -> None:
    groups = [ProcessGroupGloo(LIMIT) for _ in range(2)]
    with pair(*groups) as pool:
        tensors = [torch.ones(2) * rank for rank in range(2)]
        list(pool.map(lambda r: groups[r].allreduce([tensors[r]], ReduceOp.SUM).wait(), range(2)))
        assert tensors[0].tolist() == [1.0, 1.0]
        outputs = [torch.zeros(4), torch.zeros(4)]

        def gather(rank: int) -> None:
            given = [torch.full((2,), float(rank))]
            groups[rank].allgather_into_tensor_coalesced([outputs[rank]], given).wait()

        list(pool.map(gather, range(2)))
        assert outputs[1].tolist() == [0.0, 0.0, 1.0, 1.0]


def _by_both(group: Any, rank: int) -> list[list[float]]:
    """torch's collectives of two ranks, also under its other names; what rank 1 gets."""
    own, pair_of = torch.tensor([rank + 1.0]), torch.tensor([rank + 1.0, 10.0 * (rank + 1)])
    total, part, half, given = own.clone(), torch.zeros(1), torch.zeros(1), torch.zeros(1)
    lists = [[torch.zeros(1), torch.zeros(1)]] if rank == 1 else []
    whole, swapped = torch.zeros(2), torch.zeros(2)
    group.reduce([total], 1).wait()
    group.gather(lists, [own], 1).wait()
    group.scatter([part], [[own, own * 5]] if rank == 1 else [], 1).wait()
    group.all_gather_single(whole, own).wait()
    group._reduce_scatter_base(half, pair_of).wait()
    group.all_to_all_single(swapped, pair_of).wait()
    work = group.send([own], 1, 3) if rank == 0 else group.recv([given], 0, 3)
    work.wait()
    group.barrier().wait()
    got = [total, *(lists[0] if lists else ()), part, whole, half, swapped, given]
    return [tensor.tolist() for tensor in got]


@pytest.mark.parametrize(
    "make",
    [
        ProcessGroupGloo,
        ProcessGroupBabyGloo,
        lambda limit: ProcessGroupWrapper(limit, ProcessGroupGloo(limit)),
    ],
    ids=["gloo", "baby", "wrapped"],
)
def test_torch_s_collectives_under_all_their_names(make: Any) -> None:
    groups = [make(LIMIT) for _ in range(2)]
    with pair(*groups) as pool:
        _, second = pool.map(_by_both, groups, range(2))
    results = [[3.0], [1.0], [2.0], [10.0], [1.0, 2.0], [30.0], [10.0, 20.0], [1.0]]
    assert second == results


# ------------------------------------------------------------ torchft's groups in a child


def test_a_baby_group_can_be_aborted_and_connected_again_where_it_is() -> None:
    groups = [ProcessGroupBabyGloo(LIMIT) for _ in range(2)]
    for _ in range(2):
        with pair(*groups):
            work = groups[0].allreduce([torch.ones(2)], ReduceOp.SUM)
            assert groups[0].num_active_work() == 1
            groups[0].abort()
            with pytest.raises(RuntimeError):
                work.wait()
            assert groups[0].num_active_work() == 0
    with pytest.raises(OSError, match="handle is closed"):
        groups[0].allreduce([torch.ones(1)])


def test_a_baby_group_tells_torchft_s_words_if_a_peer_does_not_come() -> None:
    group = ProcessGroupBabyGloo(0.01)
    handles = group.get_reconfigure_handle(), HandleStore().handle(1)
    with pytest.raises(TimeoutError, match=r"timed out after 0\.01 seconds"):
        group.reconfigure(_options(*handles))


# ------------------------------------------------------------ wrappers


def test_a_wrapper_passes_everything_on() -> None:
    dummy = ProcessGroupDummy(0, 1)
    wrapper = ProcessGroupWrapper(pg=dummy)
    wrapper.set_rank_info("a", 0, 1, 4)
    wrapper.reconfigure(_options(wrapper.get_reconfigure_handle()))
    assert dummy.reconfigure_count == 1 and wrapper.parent is dummy
    assert json.loads(dummy.get_reconfigure_handle())["global_rank"] == 4
    assert (wrapper.size(), wrapper.getBackendName()) == (1, "ftrun-dummy")
    assert repr(wrapper) == "ProcessGroupWrapper(pg=ProcessGroupDummy())"
    into = torch.zeros(2)
    wrapper.allgather_into_tensor_coalesced([into], [torch.ones(2)], None).wait()
    assert into.tolist() == [1.0, 1.0]


def test_errors_are_swallowed_until_the_next_group() -> None:
    groups = [ErrorSwallowingProcessGroupWrapper(ProcessGroupGloo(LIMIT)) for _ in range(2)]
    with pair(*groups):
        work = groups[0].allreduce([torch.ones(2)], dist.AllreduceOptions())
        groups[1].abort()
        assert work.wait() and groups[0].error() is not None
        skipped = groups[0].allreduce([torch.ones(2)], dist.AllreduceOptions())
        assert skipped.wait() and skipped.get_future().wait()[0].tolist() == [1.0, 1.0]
    with pair(*groups):
        assert groups[0].error() is None


def test_an_error_can_be_injected_once() -> None:
    group = FakeProcessGroupWrapper(ProcessGroupDummy(0, 1))
    group.report_future_error(RuntimeError("injected"))
    with pytest.raises(RuntimeError, match="injected"):
        group.allreduce([torch.ones(1)], ReduceOp.SUM).get_future().wait()
    assert group.allreduce([torch.ones(1)], ReduceOp.SUM).wait()


# ------------------------------------------------------------ for a Manager


class _Custom(ProcessGroupWrapper):
    """A script's own backend."""

    calls = 0

    def _create_pg(self, store: Store, rank: int, world_size: int) -> dist.ProcessGroup:
        self.calls += 1
        made: Any = dist.ProcessGroupGloo
        native: dist.ProcessGroup = made(store, rank, world_size, self._timeout)
        return native


class _Counting(ProcessGroupGloo):
    """A script's subclass of ftrun's group."""

    calls = 0

    def allreduce(self, tensors: Any, opts: Any = ReduceOp.SUM) -> Any:  # type: ignore[override]
        self.calls += 1
        return super().allreduce(tensors, opts)

    def abort(self, errored: bool = True) -> None:
        super().abort(errored)

    def errored(self) -> Exception | None:
        return RuntimeError("mine")


class _Replaces(ReconfigurableGroup):
    """Replaces its only group in ``reconfigure``."""


@pytest.mark.parametrize("kind", [_Custom, _Counting])
def test_a_script_s_own_class_builds_a_group_while_another_is_used(kind: Any) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    scripts = [kind(LIMIT) for _ in range(2)]
    factories = [adapt(script) for script in scripts]

    def train(rank: int) -> list[float]:
        found: list[float] = []
        for name in ("first", "second"):
            place = f"127.0.0.1:{store.port}", name, rank, 2, "127.0.0.1", 60.0
            built = factories[rank].build(*place)
            before = factories[rank].use(built)
            tensor = torch.ones(1) * (rank + 1)
            built.allreduce([tensor], ReduceOp.SUM).get_future().wait()
            part = torch.zeros(1)
            built.reduce_scatter_tensor_coalesced([part], [torch.ones(2)]).wait()
            found += [tensor.item(), part.item()]
            if before is not None:
                before.shutdown()
        return found

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(train, range(2))) == [[3.0, 2.0] * 2] * 2
    assert [script.calls for script in scripts] == [2, 2]


def test_of_a_subclass_what_is_never_called_is_refused_or_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = _Counting(LIMIT)
    adapt(own)
    assert "_Counting): its own abort(): not called under ftrun" in caplog.text
    for name in ("reconfigure", "configure", "_create_pg"):
        kind = type("Own", (ProcessGroupGloo,), {name: lambda self, *args: None})
        with pytest.raises(UserError, match=rf"pg=Own.* own {name}\(\)"):
            adapt(kind())
    kind = type("Own", (ProcessGroupWrapper,), {"reconfigure": lambda self, opts: None})
    with pytest.raises(UserError, match=r"own reconfigure\(\)"):
        adapt(kind(pg=ProcessGroupGloo()))
    swallowing = ErrorSwallowingProcessGroupWrapper(own)
    assert str((own_error(swallowing) or print)()) == "mine"
    assert own_error(ProcessGroupWrapper(pg=ProcessGroupGloo())) is None
    factory = adapt(swallowing)
    swallowing.report_error(RuntimeError("of the group before"))
    factory.use(None)
    assert swallowing.error() is None


def test_what_a_manager_cannot_use_is_refused() -> None:
    plain: Any = dist.ProcessGroup
    with pytest.raises(ValueError, match="cannot be reconfigured"):
        adapt(plain(0, 1))
    with pytest.raises(UserError, match="while the present group is in use"):
        adapt(_Replaces(0, 1))
    with pytest.raises(UserError, match="while the present group is in use"):
        adapt(ProcessGroupWrapper())
    gloo = ProcessGroupGloo()
    assert adapt(gloo) is gloo
    assert adapt(ProcessGroupDummy(0, 1)).getBackendName() == "ftrun-dummy"
    with pytest.raises(UserError, match=r"ProcessGroupGloo\(pg=ProcessGroupGloo\): .* wraps none"):
        ProcessGroupGloo(pg=gloo)
    with pytest.raises(UserError, match="ProcessGroupXCCL needs an Intel XPU"):
        ProcessGroupXCCL()
