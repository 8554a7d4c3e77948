"""Replicas that are threads of this process: Managers with a lighthouse and without ftrun."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ftrun.base.errors import PeerError, UserError
from ftrun.torchft.coordination import LighthouseServer
from ftrun.torchft.ddp import DistributedDataParallel
from ftrun.torchft.local_sgd import DiLoCo
from ftrun.torchft.manager import Manager
from ftrun.torchft.optim import OptimizerWrapper
from ftrun.torchft.process_group import ProcessGroupGloo

DEADLINE_S = 120.0
LONG = timedelta(seconds=DEADLINE_S)
STEPS = 6


class BrokenError(Exception):
    """A thread of the test fails."""


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if "_poll_wrapper" not in thread.name:  # gRPC's own, for as long as it has a user
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), thread.name


@pytest.fixture
def lighthouse() -> Iterator[LighthouseServer]:
    server = LighthouseServer("127.0.0.1:0", min_replicas=2)
    yield server
    server.shutdown()


@dataclass
class Trained:
    """The rank of a replica group: model and optimizer heal; ``fail_at``: a step after which."""

    lighthouse: str
    name: str
    rank: int = 0
    world_size: int = 1
    store_port: int = 0
    fail_at: int = -1
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = torch.nn.Linear(3, 4)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.lives: list[str] = []

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def manager(self) -> Manager:
        return Manager(
            pg=ProcessGroupGloo(LONG),
            load_state_dict=self.load,
            state_dict=self.state,
            min_replica_size=2,
            timeout=LONG,
            quorum_timeout=LONG,
            connect_timeout=LONG,
            replica_id=self.name,
            rank=self.rank,
            world_size=self.world_size,
            store_addr="127.0.0.1" if self.store_port else None,
            store_port=self.store_port or None,
            lighthouse_addr=self.lighthouse,
            **self.options,
        )

    def train(self) -> dict[str, torch.Tensor]:
        with ExitStack() as stack:
            manager = self.manager()
            stack.callback(lambda: manager.shutdown(wait=False))
            self.lives.append(manager.session.here.key.incarnation)
            ddp = DistributedDataParallel(manager, self.model)
            optimizer = OptimizerWrapper(manager, self.optimizer)
            while manager.current_step() < STEPS:
                optimizer.zero_grad()
                ddp(torch.rand(2, 3)).sum().backward()
                optimizer.step()
                if manager.current_step() == self.fail_at:
                    raise BrokenError(f"step {self.fail_at}")
            return {name: value.clone() for name, value in self.model.state_dict().items()}

    def train_twice(self) -> dict[str, torch.Tensor]:
        """Train; the second time another model begins, which has to heal."""
        try:
            return self.train()
        except BrokenError:
            self.fail_at = -1
            lives = self.lives
            self.__post_init__()
            self.lives = lives
            return self.train()


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(DEADLINE_S) for future in [pool.submit(work) for work in works]]


def assert_equal(*states: dict[str, torch.Tensor]) -> None:
    for state in states:
        for name, value in state.items():
            assert torch.equal(value, states[0][name]), name


@pytest.mark.parametrize("use_async_quorum", [True, False], ids=["async", "sync"])
def test_a_thread_that_fails_comes_again_and_heals(
    lighthouse: LighthouseServer, use_async_quorum: bool
) -> None:
    options = {"use_async_quorum": use_async_quorum}
    both = [Trained(lighthouse.address(), name, options=options) for name in ("0", "1")]
    both[1].fail_at = 3
    assert_equal(*in_threads(*(one.train_twice for one in both)))
    assert (len(both[0].lives), len(set(both[1].lives))) == (1, 2)


def test_a_group_of_two_ranks_fails_as_a_whole(lighthouse: LighthouseServer) -> None:
    def group(name: str, fail_at: int) -> list[dict[str, torch.Tensor]]:
        stays = fail_at
        while True:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            ranks = [
                Trained(lighthouse.address(), name, rank, 2, store.port, -1) for rank in (0, 1)
            ]
            ranks[1].fail_at, stays = stays, -1
            with ThreadPoolExecutor(2) as pool:
                futures = [pool.submit(one.train) for one in ranks]
                errors = [future.exception(DEADLINE_S) for future in futures]
            if not any(errors):
                return [future.result() for future in futures]
            # The rank that did not fail itself has an error too, whichever call it was in.
            assert isinstance(errors[1], BrokenError)
            assert isinstance(errors[0], PeerError | RuntimeError), errors

    found = in_threads(lambda: group("a", -1), lambda: group("b", 2))
    for rank in (0, 1):
        assert_equal(*(ranks[rank] for ranks in found))


def test_a_thread_that_ends_without_a_shutdown_is_lost(lighthouse: LighthouseServer) -> None:
    stayer, other = (Trained(lighthouse.address(), name) for name in ("0", "1"))
    made = threading.Event()
    held: list[Manager] = []

    def vanish() -> None:
        manager = other.manager()
        held.append(manager)
        with pytest.raises(ZeroDivisionError):
            optimizer = OptimizerWrapper(manager, other.optimizer)
            ddp = DistributedDataParallel(manager, other.model)
            while manager.current_step() < 2:
                optimizer.zero_grad()
                ddp(torch.rand(2, 3)).sum().backward()
                optimizer.step()
            raise ZeroDivisionError
        made.set()

    thread = threading.Thread(target=vanish)
    with ThreadPoolExecutor(1) as pool:
        trained = pool.submit(stayer.train)
        thread.start()
        assert made.wait(DEADLINE_S)
        thread.join(DEADLINE_S)
        other.__post_init__()
        assert_equal(other.train(), trained.result(DEADLINE_S))
    with pytest.raises(PeerError, match="replica group '1' is out of the job"):
        held[0].start_quorum()


def test_a_newcomer_heals_in_a_step_for_whose_results_its_donor_waits(
    lighthouse: LighthouseServer,
) -> None:
    """A thread comes back so quickly that it is in the quorum which repairs the peers' step."""

    def train(name: str) -> dict[str, torch.Tensor]:
        one = Trained(lighthouse.address(), name, options={"use_async_quorum": False})
        outer = torch.optim.SGD(one.model.parameters(), lr=0.7)
        fails = iter([True, False] if name == "1" else [False])
        while True:
            failing = next(fails)
            with ExitStack() as stack:
                manager = one.manager()
                stack.callback(manager.shutdown)
                stack.enter_context(DiLoCo(manager, [one.model], one.optimizer, outer, 2))
                while manager.current_step() < STEPS:
                    if failing and manager.current_step() == 2:
                        break
                    one.optimizer.zero_grad()
                    one.model(torch.rand(2, 3)).sum().backward()
                    one.optimizer.step()
                else:
                    states = manager._manager_state_dict()["user"]
                    found: dict[str, torch.Tensor] = states["StreamingDiLoCoFragment_0"][
                        "original_parameters"
                    ]
                    return {key: value.clone() for key, value in found.items()}
                manager.leave()

    assert_equal(*in_threads(lambda: train("0"), lambda: train("1")))


def test_a_manager_that_is_refused_says_why(
    lighthouse: LighthouseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHFT_LIGHTHOUSE", raising=False)
    with pytest.raises(UserError, match=r"needs an agent.*LighthouseServer"):
        Manager(pg=ProcessGroupGloo())
    with pytest.raises(UserError, match="TCPStore"):
        Manager(pg=ProcessGroupGloo(), world_size=2, lighthouse_addr=lighthouse.address())
    one = Trained(lighthouse.address(), "0").manager()
    try:
        for refused in (one.peers, one.linger):
            with pytest.raises(UserError, match="--replicas N"):
                refused()
        with pytest.raises(UserError, match="1 ranks each"):
            Manager(
                pg=ProcessGroupGloo(),
                world_size=2,
                store_addr="127.0.0.1",
                store_port=1,
                lighthouse_addr=lighthouse.address(),
            )
    finally:
        one.shutdown()


def test_a_lighthouse_that_is_shut_down_takes_no_managers() -> None:
    server = LighthouseServer("127.0.0.1:0", min_replicas=1)
    manager = Trained(server.address(), "0").manager()
    server.shutdown()
    manager.shutdown()
    with pytest.raises(PeerError, match="no ftrun lighthouse answers"):
        Manager(
            pg=ProcessGroupGloo(),
            lighthouse_addr=server.address(),
            connect_timeout=timedelta(seconds=0.5),
        )
