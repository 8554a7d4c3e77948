"""A script shuts its Manager down and makes another one: a second phase of training."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from ftrun.base import clock
from ftrun.core.ids import WorkerKey
from ftrun.training import context
from ftrun.training.manager import Manager
from tests.unit.training.scripted_agent import DEADLINE_S, Job, job


def steps(of: Job, number: int) -> None:
    assert [of.step() for _ in range(number)] == [[True] * len(of.managers)] * number


def again(of: Job, *slots: str, weight: float = 10.0, init_sync: bool = True) -> None:
    """Shut these Managers down together, and make others."""
    of.run(lambda slot, manager: manager.shutdown(), slots)
    for slot in slots:
        of.add(slot, weight + int(slot), init_sync=init_sync)


@pytest.mark.parametrize("init_sync", [True, False])
def test_the_second_managers_of_all_train_together(tmp_path: Path, init_sync: bool) -> None:
    with job(tmp_path, 2) as both:
        both.add("0", init_sync=init_sync)
        both.add("1", weight=0.0, init_sync=init_sync)
        steps(both, 3)
        first = {slot: manager.state_dict()["lineage"] for slot, manager in both.managers.items()}
        again(both, "0", "1", init_sync=init_sync)
        lineages = {manager.state_dict()["lineage"] for manager in both.managers.values()}
        assert not lineages & set(first.values()) and len(lineages) == (2 if init_sync else 1)
        both.weights["1"].fill_(both.weights["0"][0].item())
        steps(both, 2)
        for manager in both.managers.values():
            assert (manager.current_step(), manager.num_participants()) == (2, 2)
        assert torch.equal(both.weights["0"], both.weights["1"])
        again(both, "0", "1", init_sync=init_sync)  # and a third time
        steps(both, 1)


def test_the_second_manager_of_one_heals_from_those_that_train_on(tmp_path: Path) -> None:
    with job(tmp_path, 2, min_replicas=1) as both:
        both.add("0")
        both.add("1")
        steps(both, 2)
        both.run(lambda slot, manager: manager.shutdown(), "0")
        assert both.step("1") == [True]
        assert both.managers["1"].num_participants() == 1
        both.add("0", 99.0)

        def until_together(slot: str, manager: Manager) -> None:
            until, together = clock.now() + DEADLINE_S, False
            while not together and clock.now() < until:
                manager.start_quorum()
                manager.allreduce(torch.ones(1)).wait()
                together = manager.num_participants() == 2  # in the step, which both make
                manager.should_commit()
            assert together
            both_have_it.wait(DEADLINE_S)  # who leaves before may take its last bytes along
            manager.leave()

        both_have_it = threading.Barrier(2)
        both.run(until_together)
        assert torch.equal(both.weights["0"], both.weights["1"])


def test_a_death_between_the_two(tmp_path: Path) -> None:
    with job(tmp_path, 2) as both:
        both.add("0")
        both.add("1")
        steps(both, 2)
        both.run(lambda slot, manager: manager.shutdown(), "01")
        both.managers.clear()
        both.agent.lose("1")
        both.agent.restart("1")
        both.add("0", 5.0)
        both.add("1", 6.0)  # a new process, whose first Manager it is
        steps(both, 2)
        assert torch.equal(both.weights["0"], both.weights["1"])


@pytest.fixture(autouse=True)
def one_process_per_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """All slots share this process, and each counts its own Managers."""
    counts: dict[str, int] = {}
    claim = context.claim

    def count(key: WorkerKey) -> None:
        claim(key)
        counts[key.incarnation] = counts.get(key.incarnation, 0) + 1

    monkeypatch.setattr(context, "claim", count)
    monkeypatch.setattr(context, "managers_before", lambda key: counts.get(key.incarnation, 0))
