"""ftrun.Join on real Managers (scripted_agent.py): followers, what they cannot follow, refusals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms import join as torchs

from ftrun.base.errors import UserError
from ftrun.training.ddp import DistributedDataParallel
from ftrun.training.elastic_sampler import ElasticSampler
from ftrun.training.join import Join, JoinHook
from ftrun.training.joining import digest
from ftrun.training.manager import Manager, WorldSizeMode
from ftrun.training.optim import OptimizerWrapper
from tests.unit.training.scripted_agent import DEADLINE_S, Job, job

WIDTH = 6


class Parts(nn.Module):
    """Four layers; a pass leaves one of the last two out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor, last: int) -> torch.Tensor:
        x = self.layers[1](self.layers[0](x))
        return self.layers[last](x) if last else self.layers[3](self.layers[2](x))


class Replica:
    """A replica with ``count`` batches in each Join. Its state heals."""

    def __init__(self, running: Job, slot: str, count: int, **arguments: Any) -> None:
        self.slot, self.count = int(slot), count
        self.model = Parts()
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.sgd, 0.5)
        self.manager: Manager = running.add(
            slot, load_state_dict=self._load, state_dict=self._state
        )
        self.optimizer = OptimizerWrapper(self.manager, self.sgd)
        self.network = DistributedDataParallel(self.manager, self.model, **arguments)

    def _state(self) -> dict[str, Any]:
        parts = {"model": self.model, "sgd": self.sgd, "schedule": self.schedule}
        return {name: part.state_dict() for name, part in parts.items()}  # type: ignore[attr-defined]

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.sgd.load_state_dict(state["sgd"])
        self.schedule.load_state_dict(state["schedule"])

    def backward(self, number: int, last: int = 0) -> None:
        self.optimizer.zero_grad()
        inputs = torch.full((2, WIDTH), 0.1 * (self.slot + 1) + 0.01 * number)
        self.network(inputs, last).square().mean().backward()

    def train(self, joined: Join, between: Callable[[int], Any] = lambda number: None) -> None:
        with joined:
            for number in range(self.count):
                self.backward(number)
                between(number)
                self.optimizer.step()

    def result(self) -> list[Any]:
        """Weights, momenta and settings: the same on all replicas in the end."""
        momenta = [self.sgd.state[p].get("momentum_buffer") for p in self.model.parameters()]
        tensors = [*self.model.parameters(), *(m for m in momenta if m is not None)]
        return [[t.tolist() for t in tensors], self.sgd.param_groups[0]["lr"]]


def run(
    directory: Path, counts: list[int], train: Callable[[Replica], Any], **arguments: Any
) -> list[Any]:
    """Train with ``counts`` batches; all come to the same result. Returns what ``train`` did."""

    def each(slot: str, manager: Manager) -> tuple[Any, Any, int]:
        replica = replicas[slot]
        try:
            found = train(replica)
            ended.wait(DEADLINE_S)  # one that left now would interrupt the others' last step
        except BaseException:
            ended.abort()
            raise
        finally:
            manager.leave()
        return found, replica.result(), manager.current_step()

    ended = threading.Barrier(len(counts))
    with job(directory, len(counts)) as running:
        replicas = {
            str(slot): Replica(running, str(slot), count, **arguments)
            for slot, count in enumerate(counts)
        }
        all_of_them = running.run(each)
    results = [result for _, result, _ in all_of_them]
    assert all(result == results[0] for result in results)
    assert len({step for *_, step in all_of_them}) == 1
    return [found for found, *_ in all_of_them]


KINDS: list[dict[str, Any]] = [
    {},
    {"gradient_as_bucket_view": True},
    {"bucket_cap_mb": 0.0001},
    {"find_unused_parameters": True},
    {"find_unused_parameters": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001},
]


@pytest.mark.parametrize("kwargs", KINDS, ids=lambda kwargs: " ".join(kwargs) or "usual")
def test_a_follower_comes_to_its_peers_weights(tmp_path: Path, kwargs: dict[str, Any]) -> None:
    def train(replica: Replica) -> None:
        unused = kwargs.get("find_unused_parameters", False)
        for _ in range(2):
            with replica.network.join():
                for number in range(replica.count):
                    replica.backward(number, last=2 + number % 2 if unused else 0)
                    replica.optimizer.step()
        assert replica.manager.current_step() == 2 * (4 + 1)
        assert replica.manager.batches_committed() == 2 * (4 + 2 + 1)

    run(tmp_path, [2, 4, 1], train, **kwargs)


def test_the_divisor_is_the_number_of_batches_or_of_members(tmp_path: Path) -> None:
    def train(replica: Replica) -> list[float]:
        norms = []
        for by_all in (False, True):
            with replica.network.join(divide_by_initial_world_size=by_all):
                for _ in range(replica.count):
                    replica.backward(0)
                    gradient = replica.model.layers[0].bias.grad
                    assert isinstance(gradient, torch.Tensor)
                    norms.append(gradient.norm().item())
                    replica.sgd.param_groups[0]["lr"] = 0.0
                    replica.optimizer.step()
        return norms

    found = run(tmp_path, [1, 2], train)
    _, alone, _, halved = found[1]
    assert halved == pytest.approx(alone / 2, rel=1e-5)


def test_hooks_shadow_each_step_and_all_know_the_last_joiner(tmp_path: Path) -> None:
    """A script's own reduction goes through its own hook; schedulers step on all replicas."""

    class Losses(JoinHook):
        def __init__(self, manager: Manager) -> None:
            self.manager, self.shadowed, self.last = manager, 0, []  # type: ignore[var-annotated]

        def join_hook(self, **kwargs: Any) -> JoinHook:
            assert kwargs == {"divide_by_initial_world_size": False, "mine": 3}
            return self

        def main_hook(self) -> None:
            self.shadowed += 1
            self.manager.allreduce(torch.zeros(1)).wait()

        def post_hook(self, is_last_joiner: bool) -> None:
            self.last.append(is_last_joiner)

    def train(replica: Replica) -> tuple[int, list[bool]]:
        losses = Losses(replica.manager)
        joined = Join(
            [replica.network, losses, replica.schedule],
            divide_by_initial_world_size=False,
            mine=3,
        )
        with joined:
            for number in range(replica.count):
                replica.backward(number)
                replica.manager.allreduce(torch.ones(1)).wait()
                replica.optimizer.step()
                replica.schedule.step()
        return losses.shadowed, losses.last

    assert run(tmp_path, [3, 5, 5], train) == [(2, [False]), (0, [False]), (0, [True])]


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Each replica's warning; each gives one at most."""
    words = [r.message for r in caplog.records if "in a Join" in r.message]
    assert len(words) == len({text.split(" in a Join")[0] for text in words})
    return words


def test_a_follower_heals_where_gradients_are_clipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(replica: Replica) -> None:
        parameters = replica.model.parameters
        clip = lambda _: nn.utils.clip_grad_norm_(parameters(), 0.01)  # noqa: E731
        replica.train(Join([replica.network]), clip)

    with caplog.at_level(logging.WARNING):
        run(tmp_path, [1, 4], train)
    [told] = _told(caplog)
    assert "replica 0 in a Join: it has no data left" in told and "changes gradients" in told


def test_a_follower_heals_where_a_scaler_unscales(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(replica: Replica) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with Join([replica.network]):
            for number in range(replica.count):
                replica.backward(number)
                for parameter in replica.model.parameters():
                    assert parameter.grad is not None
                    parameter.grad.mul_(4.0)
                scaler.scale(torch.ones(1))
                scaler.step(replica.optimizer)
                scaler.update()

    with caplog.at_level(logging.WARNING):
        run(tmp_path, [1, 4], train)
    assert len(_told(caplog)) == 1


def test_a_follower_heals_where_it_lacks_the_schedule(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(replica: Replica) -> None:
        with Join([replica.network]):
            for number in range(replica.count):
                replica.backward(number)
                replica.optimizer.step()
                replica.schedule.step()

    with caplog.at_level(logging.WARNING):
        run(tmp_path, [1, 4], train)
    assert "Give the scheduler to the Join too" in _told(caplog)[0]


def test_a_change_that_comes_late_costs_one_step_s_change_and_no_replica(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(replica: Replica) -> None:
        def between(number: int) -> None:
            if number >= 3:
                nn.utils.clip_grad_norm_(replica.model.parameters(), 0.01)

        replica.train(Join([replica.network]), between)

    with caplog.at_level(logging.WARNING):
        run(tmp_path, [1, 6, 6], train)
    assert any("This step counts without the change" in text for text in _told(caplog))


def test_a_replica_without_any_data_follows_from_the_first_step(tmp_path: Path) -> None:
    run(tmp_path, [0, 3], lambda replica: replica.train(Join([replica.network])))


def test_nobody_has_data(tmp_path: Path) -> None:
    run(tmp_path, [0, 0], lambda replica: replica.train(Join([replica.network])))


def test_it_can_be_disabled(tmp_path: Path) -> None:
    def train(replica: Replica) -> None:
        replica.train(Join([replica.network], enable=False))
        assert replica.manager.current_step() == 2

    run(tmp_path, [2, 2], train)


def test_all_raise_before_a_step_in_which_one_has_no_data(tmp_path: Path) -> None:
    def train(replica: Replica) -> str:
        joined = Join([replica.network], throw_on_early_termination=True)
        with pytest.raises(RuntimeError, match="exhausted") as raised:
            replica.train(joined)
        assert replica.manager.current_step() == 1
        replica.train(Join([replica.network], enable=False))  # the quorum is as it was
        return str(raised.value)

    def both(replica: Replica) -> str:
        found = train(replica)
        if replica.slot == 0:  # as many steps as the other one
            replica.backward(1)
            replica.optimizer.step()
        return found

    words = run(tmp_path, [1, 2], both)
    assert words[0] == "Replica 0 exhausted all inputs." and "Throwing across all" in words[1]


def test_unlike_arguments_end_the_replica_that_has_them(tmp_path: Path) -> None:
    def train(slot: str, manager: Manager) -> str:
        replica = replicas[slot]
        try:
            replica.train(replica.network.join(divide_by_initial_world_size=slot == "1"))
        except UserError as error:
            return str(error)
        finally:
            manager.leave()
        return ""

    with job(tmp_path, 2, 1) as running:
        replicas = {slot: Replica(running, slot, 2) for slot in "01"}
        good, bad = running.run(train)
    assert good == "" and bad.startswith("replica 1: divide_by_initial_world_size or")


# ------------------------------------------------------------ refusals


def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    with job(tmp_path, 1) as running:
        replica = Replica(running, "0", 1)
        manager, network = replica.manager, replica.network
        with pytest.raises(ValueError, match="at least one joinable"):
            Join([])
        with pytest.raises(UserError, match=r"needs a DistributedDataParallel\(manager"):
            Join([replica.schedule])
        with pytest.raises(UserError, match=r"static_graph=True cannot be in a Join"):
            DistributedDataParallel(manager, Parts(), static_graph=True).join()
        with network.join():
            with pytest.raises(UserError, match="a Join inside another one"):
                network.join().__enter__()
            replica.backward(0)
            replica.optimizer.step()
        other = OptimizerWrapper(manager, torch.optim.SGD(replica.model.parameters(), lr=1.0))
        with pytest.raises(UserError, match="and there are 2"):
            network.join().__enter__()
        manager.session.optimizers.clear()
        with pytest.raises(UserError, match="and there are 0"):
            network.join().__enter__()
        manager.session.optimizers.add(other)
        ElasticSampler(manager, 8, 1)
        with pytest.raises(UserError, match="ElasticSampler"):
            network.join().__enter__()
        with pytest.raises(UserError, match=r"Use ftrun\.Join"):
            torchs.Join([network])


def test_spares_and_another_thread_are_refused(tmp_path: Path) -> None:
    with job(tmp_path, 1) as running:
        model = Parts()
        fixed = WorldSizeMode.FIXED_WITH_SPARES
        manager = running.add("0", world_size_mode=fixed)
        optimizer = OptimizerWrapper(manager, torch.optim.SGD(model.parameters(), lr=1.0))
        network = DistributedDataParallel(manager, model)
        with pytest.raises(UserError, match="spares"):
            network.join().__enter__()
        manager.session.choices = replace(manager.session.choices, spares=False)
        joined = network.join()
        thread = threading.Thread(target=joined.__enter__)
        thread.start()
        thread.join()
        with pytest.raises(UserError, match="left in another"):
            joined.__exit__(None, None, None)
        assert manager.session.joining is None and optimizer.committed


def test_the_digest_follows_the_settings_alone() -> None:
    one, other = Parts(), Parts()
    sgd = torch.optim.SGD(one.parameters(), lr=0.1)
    like = torch.optim.SGD(other.parameters(), lr=torch.tensor(0.1, dtype=torch.float64).item())
    assert digest(sgd) == digest(like)  # type: ignore[arg-type]
    like.param_groups[0]["lr"] = 0.2
    assert digest(sgd) != digest(like)  # type: ignore[arg-type]
