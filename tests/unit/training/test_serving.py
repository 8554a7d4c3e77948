"""A donor that cannot serve its state trains on; only the replica that heals ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ftrun.base.errors import UserError
from ftrun.checkpoint.offer import Offer
from ftrun.core import messages as m
from ftrun.training.manager import Manager
from tests.unit.training.scripted_agent import DEADLINE_S, Job, job


class Thing:
    """What ftrun does not carry: it has rules of its own for copies."""

    def __reduce__(self) -> str:
        return "Thing"


def boom() -> dict[str, Any]:
    raise ValueError("boom")


def no_memory() -> dict[str, Any]:
    raise MemoryError


def things() -> dict[str, Any]:
    return {"best": Thing()}


REFUSED = (
    r"this replica cannot heal, and ends; the others train on\. Replica 0 cannot give its state"
)
REASONS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "value": (things, r"state_dict key 'user\.more\.best' holds a .*Thing"),
    "raises": (boom, r"the script's state function of key 'more' raised ValueError: boom"),
    "memory": (no_memory, r"state function of key 'more' raised MemoryError"),
}


def train(running: Job, slot: str, manager: Manager, until: Callable[[], bool]) -> int:
    """Steps until ``until``; how many were committed."""
    commits = 0
    while not until():
        manager.start_quorum()
        tensor = torch.ones(3)
        manager.allreduce(tensor).wait()
        if manager.should_commit():
            running.weights[slot] += tensor
            commits += 1
    return commits


def with_more(running: Job, slot: str, state: Callable[[], dict[str, Any]], **more: Any) -> Manager:
    """A Manager whose second state function can be made to fail."""
    manager = running.add(slot, **more)
    manager.register_state_dict_fn("more", lambda _: None, state)
    return manager


@pytest.mark.parametrize("reason", REASONS)
def test_only_the_newcomer_ends(
    tmp_path: Path, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    fails, words = REASONS[reason]
    state: list[Callable[[], dict[str, Any]]] = [dict]
    over = threading.Event()

    def one(slot: str, manager: Manager) -> int:
        if slot == "0":
            return train(both, slot, manager, over.is_set)
        with pytest.raises(UserError, match=f"{REFUSED} to others: .*{words}"):
            train(both, slot, manager, lambda: False)
        both.die("1")
        return 0

    with caplog.at_level(logging.ERROR), job(tmp_path, 2, min_replicas=1) as both:
        with_more(both, "0", lambda: state[0]())
        with_more(both, "1", dict)
        assert both.step() == [True, True]
        both.die("1")
        state[0] = fails
        both.agent.restart("1")
        with_more(both, "1", dict, weight=9.0)
        donor = threading.Thread(target=one, args=("0", both.managers["0"]))
        donor.start()
        one("1", both.managers["1"])
        over.set()
        donor.join(DEADLINE_S)
        assert not donor.is_alive()
        before = both.managers["0"].current_step()
        while both.managers["0"].current_step() < before + 2:
            both.step(["0"])  # it trains on alone
        tries = [
            error for error in both.agent.sent("1", m.Errored) if "cannot give" in error.reason
        ]
        assert len(tries) == 2  # and with the third one it ends
    assert "It trains on, and refuses those that want to heal from it" in caplog.text


@pytest.mark.parametrize("one_donor", [False, True], ids=["all", "one"])
def test_another_donor_serves_in_its_place(tmp_path: Path, one_donor: bool) -> None:
    """Also where a newcomer heals from one donor alone, as those that train locally do."""
    state: list[Callable[[], dict[str, Any]]] = [dict]
    healed = threading.Event()

    def one(slot: str, manager: Manager) -> int:
        def until() -> bool:
            if slot == "2" and manager.is_participating() and not manager.is_healing():
                healed.set()
            return healed.is_set()

        return train(three, slot, manager, until)

    with job(tmp_path, 3, min_replicas=1) as three:
        with_more(three, "0", lambda: state[0]())
        with_more(three, "1", dict)
        with_more(three, "2", dict)
        assert three.step() == [True] * 3
        three.die("2")
        state[0] = things
        three.agent.restart("2")
        newcomer = with_more(three, "2", dict, weight=9.0)
        if one_donor:
            newcomer.session.train_locally()
        three.run(lambda slot, manager: (one(slot, manager), manager.leave()))
        [word] = [x for x in three.agent.sent("2", m.Healed) if x.step > 0]
        assert word.donors == ("1",)


def test_a_donor_that_lacks_the_memory_for_a_copy_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is made for newcomers that have not come when the optimizer steps."""
    calls: list[int] = []

    def copies(offer: Offer, copy_bytes_max: int) -> int:
        calls.append(copy_bytes_max)
        raise MemoryError

    with job(tmp_path, 1) as alone:
        manager = alone.add("0")
        assert alone.step() == [True]
        machine, healing = manager.session.machine, manager.session.healing
        manager.start_quorum()
        tag = machine.tag
        assert tag is not None
        healing._server.offer(tag, machine.state, healing.tree(), expected=1)
        monkeypatch.setattr(Offer, "_copy", copies)
        healing.retire(tag)
        assert calls
        assert healing._server._refusal is not None
        assert healing._server._refusal[0] == tag
        assert "MemoryError" in healing._server._refusal[1]
        manager.allreduce(torch.ones(3)).wait()
        assert manager.should_commit()
