"""Waits while no lighthouse answers: a deadline that the call states holds; the agent ends others.

Without a lease a Manager commits nothing, and a wait with the Manager's own timeout goes on until
there is one again, or until the agent asks the script to stop (``--lighthouse-timeout``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from ftrun.base import clock
from ftrun.core.messages import Lease, LeaveNow, LeaveReason
from ftrun.training import context
from ftrun.training.leaving import Drained
from ftrun.training.manager import Manager
from tests.unit.training.scripted_agent import DEADLINE_S, Job, job

SHORT = timedelta(seconds=0.3)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Job]:
    """Two replicas, both wanted, whose own timeouts are long."""
    with job(tmp_path, 2) as both:
        both.add("0")
        both.add("1")
        yield both


def isolate(pair: Job, manager: Manager) -> None:
    """Its agent's lease is over, and not renewed."""
    pair.agent.tell("0", Lease(clock.now() - 1.0))
    manager.session.engine.wait_until(
        lambda: manager.session.machine.isolated, DEADLINE_S, "the isolation"
    )


def one(pair: Job, call: Callable[[Manager], Any]) -> Any:
    """What ``call`` returns or raises, for replica 0 in a thread."""

    def end(slot: str, manager: Manager) -> Any:
        try:
            return call(manager)
        except BaseException as error:  # noqa: BLE001  # how it ends
            return error

    return pair.run(end, ["0"])[0]


def test_a_stated_deadline_holds_before_the_first_quorum(pair: Job) -> None:
    manager = pair.managers["0"]
    isolate(pair, manager)
    for call in (
        lambda m: m.peers(SHORT),
        lambda m: m.start_quorum(timeout=SHORT),
        lambda m: m.start_quorum(timeout=SHORT),  # and once more
    ):
        assert isinstance(one(pair, call), TimeoutError)
    assert one(pair, lambda m: m.linger(SHORT)) is False
    pair.agent.tell("0", Lease(clock.now() + DEADLINE_S))
    assert pair.step() == [True, True]


def test_a_stated_deadline_holds_in_a_step_and_after_it(pair: Job) -> None:
    assert pair.step() == [True, True]
    manager = pair.managers["0"]
    pair.run(lambda slot, m: m.start_quorum())
    isolate(pair, manager)
    assert one(pair, lambda m: m.allreduce(torch.ones(2)).wait(SHORT)) is False
    assert isinstance(manager.errored().original_exception, TimeoutError)  # type: ignore[union-attr]
    decided = one(pair, lambda m: m.should_commit(timeout=SHORT))
    assert isinstance(decided, TimeoutError) and "results" in str(decided)
    assert isinstance(one(pair, lambda m: m.start_quorum(timeout=SHORT)), TimeoutError)
    pair.agent.tell("0", Lease(clock.now() + DEADLINE_S))
    assert pair.step() == [True, True]


def test_the_agent_ends_a_wait_for_a_quorum(pair: Job) -> None:
    manager = pair.managers["0"]
    isolate(pair, manager)
    pair.agent.tell("0", LeaveNow(LeaveReason.DRAINED, True))
    assert isinstance(one(pair, lambda m: m.start_quorum()), Drained)


def test_the_agent_ends_a_wait_for_a_result(pair: Job) -> None:
    assert pair.step() == [True, True]
    manager = pair.managers["0"]
    pair.run(lambda slot, m: m.start_quorum())
    isolate(pair, manager)

    def reduce(m: Manager) -> bool:
        work = m.allreduce(torch.ones(2))
        pair.agent.tell("0", LeaveNow(LeaveReason.DRAINED, True))
        work.wait()
        return m.should_commit()

    assert one(pair, reduce) is False
    assert isinstance(one(pair, lambda m: m.start_quorum()), Drained)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_wait_ends_where_it_stands_when_the_script_is_pressed(
    pair: Job, has_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At half of the grace a script leaves where it stands, and it stands in ftrun's own wait."""
    if has_begun:
        assert pair.step() == [True, True]
    monkeypatch.setattr(context.Process, "is_pressed", True)
    waits: Callable[[Manager], object] = lambda m: m.peers()  # noqa: E731
    if has_begun:
        waits = lambda m: m.session.exchange("a.py:1", "mean", b"1")  # noqa: E731
    assert isinstance(one(pair, waits), Drained)
