"""Healing in place, on real Managers (scripted_agent.py): which memory is written over."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ftrun.core import messages as m
from ftrun.core.worker.facts import StepPhase
from ftrun.training.ddp import DistributedDataParallel
from ftrun.training.leaving import Drained
from ftrun.training.manager import Manager
from ftrun.training.optim import OptimizerWrapper
from tests.unit.training.scripted_agent import Job, job

WIDTH = 8
WAIT_S = 60.0


class Replica:
    """A model with buffers and an optimizer that holds moments before its first step."""

    def __init__(self, running: Job, slot: str, **arguments: Any) -> None:
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.125, momentum=0.5)
        for parameter in self.model.parameters():
            self.inner.state[parameter]["momentum_buffer"] = torch.full_like(parameter, int(slot))
        self.extra = torch.full((WIDTH,), float(slot))
        self.manager: Manager = running.add(
            slot, load_state_dict=self._load, state_dict=self.state, **arguments
        )
        self.network = DistributedDataParallel(self.manager, self.model)
        self.optimizer = OptimizerWrapper(self.manager, self.inner)
        self.overwritten: list[set[str]] = []
        self.arrived: list[m.HealProgress] = []
        self._apply = self.manager.session.healing.apply
        self.manager.session.healing.apply = self.apply  # type: ignore[method-assign]
        self.before_applied: Callable[[], None] = lambda: None

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optim": self.inner.state_dict(),
            "extra": self.extra,
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.inner.load_state_dict(state["optim"])
        self.extra.copy_(state["extra"])

    def apply(self) -> str | None:
        fetched = self.manager.session.healing.fetched
        assert fetched is not None
        heal = self.manager.session.healing.progress()
        assert heal is not None
        self.arrived.append(heal)
        self.overwritten.append({leaf.path for leaf in fetched.overwritten})
        self.before_applied()
        return self._apply()

    def step(self) -> bool:
        self.optimizer.zero_grad()
        self.network(torch.ones(4, WIDTH)).square().mean().backward()
        self.optimizer.step()
        return self.optimizer.committed

    def weights(self) -> list[torch.Tensor]:
        moments = [s["momentum_buffer"] for s in self.inner.state.values()]
        return [t.detach().clone() for t in (*self.model.parameters(), *moments, self.extra)]


def steps(slot: str, replica: Replica, count: int) -> list[torch.Tensor]:
    committed = 0
    while committed < count:
        committed += replica.step()
    return replica.weights()


def train(running: Job, replicas: dict[str, Replica], count: int) -> None:
    """``count`` steps in both; then both hold the same state."""
    found = running.run(lambda slot, _: steps(slot, replicas[slot], count))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))  # S1


def test_what_the_optimizer_steps_is_read_into_its_own_memory(tmp_path: Path) -> None:
    with job(tmp_path, 2) as both:
        replicas = {slot: Replica(both, slot) for slot in "01"}
        train(both, replicas, 2)
    [paths] = replicas["1"].overwritten
    [(done, total)] = [(heal.done_bytes, heal.total_bytes) for heal in replicas["1"].arrived]
    assert done == total
    assert total is not None and total > 3 * WIDTH * WIDTH * 4  # the weights and their moments
    assert all(replica.manager.session.healing.progress() is None for replica in replicas.values())
    assert {path.removeprefix(".user.default.").split(".")[0] for path in paths} == {
        "model",
        "optim",
    }
    assert len(paths) == 8  # four parameters, four moments; no buffer, and nothing of the script's
    assert not any("running" in path for path in paths)
    assert not replicas["1"].manager.session.machine.heal.torn


def test_a_state_that_was_written_to_meanwhile_is_fetched_once_more_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil() -> None:
        replicas["1"].before_applied = lambda: None
        replicas["1"].model[0].weight.data.add_(1.0)  # type: ignore[operator]

    with job(tmp_path, 2) as both, caplog.at_level(logging.WARNING):
        replicas = {slot: Replica(both, slot) for slot in "01"}
        replicas["1"].before_applied = spoil
        train(both, replicas, 2)
    first, second = replicas["1"].overwritten
    assert first and not second
    assert "default.model.0.weight was written to while its state arrived" in caplog.text


@pytest.mark.parametrize("heal_tls", [False, True])
def test_where_the_job_has_tls_heals_use_it(tmp_path: Path, heal_tls: bool) -> None:
    with job(tmp_path, 2, heal_tls=heal_tls) as both:
        replicas = {slot: Replica(both, slot) for slot in "01"}
        for replica in replicas.values():
            endpoint = replica.manager.session.healing.endpoint
            assert re.fullmatch("[0-9a-f]{64}" if heal_tls else "", endpoint.heal_certificate)
            host, port = endpoint.heal.split(":")
            with socket.create_connection((host, int(port)), WAIT_S) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert sock.recv(12).startswith(b"HTTP/1.1") != heal_tls
        train(both, replicas, 2)
        announced = {
            report.endpoint.heal_certificate
            for slot in "01"
            for report in both.agent.sent(slot, m.Report)
        }
        assert len(announced - {""}) == (2 if heal_tls else 0)
    assert replicas["1"].overwritten  # so it has healed


def test_nothing_is_overwritten_if_the_script_says_so(tmp_path: Path) -> None:
    with job(tmp_path, 2) as both:
        replicas = {slot: Replica(both, slot, heal_in_place=False) for slot in "01"}
        train(both, replicas, 1)
    assert replicas["1"].overwritten == [set()]


def test_who_leaves_with_half_a_state_is_not_asked_to_save_it(tmp_path: Path) -> None:
    with job(tmp_path, 1) as alone:
        manager = alone.add("0")
        alone.step()
        machine = manager.session.machine
        machine.heal.torn, machine._between_steps = True, StepPhase.LEFT
        with pytest.raises(SystemExit) as ending:
            manager.start_quorum()
        assert not isinstance(ending.value, Drained)
