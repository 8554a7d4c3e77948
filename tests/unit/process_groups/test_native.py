"""torch's own reconfigurable groups (torch 2.14): options, and what a Manager makes of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import ReduceOp

from ftrun.base.errors import UserError
from ftrun.process_groups import ProcessGroupGloo, adapted
from ftrun.process_groups.adapted import adapt
from ftrun.process_groups.handles import ReconfigureOptions
from ftrun.torchft.process_group import reconfigure_with_store

pytestmark = pytest.mark.skipif(
    not hasattr(_distributed_c10d, "ReconfigureOptions"),
    reason="torch before 2.14 has no groups that can be reconfigured",
)
LIMIT = timedelta(seconds=60)


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def native(store: TCPStore, rank: int) -> Any:
    """A group as torchft's own tests make it."""
    client = TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)
    named, made = PrefixStore("native", client), dist
    group: Any = made.ProcessGroup(named, rank, 2)
    backend: Any = made.ProcessGroupGloo
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(
        torch.device("cpu"),
        dist.ProcessGroup.BackendType.GLOO,
        backend(named, rank, 2, LIMIT, enable_reconfigure=True),
    )
    return group


def test_the_options_are_torch_s_own() -> None:
    assert ReconfigureOptions is _distributed_c10d.ReconfigureOptions  # type: ignore[attr-defined]


def test_torch_s_groups_meet_by_their_handles_in_a_store(store: TCPStore) -> None:
    groups = [native(store, rank) for rank in range(2)]

    def connect(rank: int) -> float:
        for attempt in range(2):
            place = f"127.0.0.1:{store.port}/pair{attempt}"
            reconfigure_with_store(groups[rank], place, rank, 2, LIMIT)
        tensor = torch.ones(1) * (rank + 1)
        groups[rank].allreduce([tensor]).wait()
        return tensor.item()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(connect, range(2))) == [3.0, 3.0]


def test_torch_s_functions_reconfigure_ftrun_s_groups() -> None:
    groups: list[Any] = [ProcessGroupGloo(LIMIT) for _ in range(2)]
    handles = [dist.distributed_c10d._get_reconfigure_handle(group) for group in groups]  # type: ignore[attr-defined]

    def connect(rank: int) -> float:
        reconfigure: Any = dist.distributed_c10d._reconfigure  # type: ignore[attr-defined]
        reconfigure(uuid=3, handles=handles, group=groups[rank], timeout=LIMIT).wait()
        tensor = torch.ones(1) * (rank + 1)
        groups[rank].allreduce([tensor], ReduceOp.SUM).wait()
        return tensor.item()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(connect, range(2))) == [3.0, 3.0]
    for group in groups:
        group.shutdown()


def test_a_manager_uses_ftrun_s_group_in_place_of_torch_s(store: TCPStore) -> None:
    factory = adapt(native(store, 0))
    assert isinstance(factory, ProcessGroupGloo) and factory.timeout == LIMIT


def test_a_backend_that_ftrun_lacks_is_refused(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapted, "NATIVE", ())
    with pytest.raises(UserError, match="backend 'gloo' cannot be used"):
        adapt(native(store, 1))
