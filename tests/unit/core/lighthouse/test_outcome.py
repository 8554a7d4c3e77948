"""How a job ends whose scripts have ended well. (Whole jobs: tests/transcripts.)"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.base.errors import ExitCode
from ftrun.core import messages as m
from ftrun.core.ids import WorkerKey
from ftrun.core.lighthouse.events import (
    AgentSent,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.next_job import refusal
from ftrun.core.lighthouse.outcome import RANK_0, outcome
from ftrun.core.lighthouse.slots import Absence
from tests.transcripts.replay import Replay


def started(spec: str, *lines: str) -> Lighthouse:
    replay = Replay()
    for line in (f"job {spec}", "start", "A attached", "+0.2", *lines):
        replay.line(line)
    assert replay.lighthouse is not None
    return replay.lighthouse


def test_very_many_that_are_missing_are_counted() -> None:
    state = started("replicas=12").state
    for index in range(1, 12):
        state.slots.go_without(Absence(str(index), 7, "it fails"))
    state.slots.finish("0")
    code, reason = outcome(state)
    assert code == ExitCode.DEGRADED
    assert reason.startswith(
        "1 of 12 replicas has finished: replica 1 was given up at step 7 (it f"
    )
    assert reason.endswith("; replica 8 was given up at step 7 (it fails); and 3 more")


def test_what_rank_0_does_alone_is_missing_if_it_was_given_up() -> None:
    """Seen: a worker of replica 1 told it, which was replaced after replica 0 had finished."""
    state = started("replicas=2").state
    state.slots.go_without(Absence("0", 7, "it fails"))
    state.slots.finish("1")
    assert outcome(state)[1].endswith("(it fails); " + RANK_0)
    state = started("replicas=2").state
    state.slots.finish("0")
    state.slots.go_without(Absence("1", 7, "it fails"))
    assert outcome(state)[1].endswith("(it fails)")


@pytest.mark.parametrize(("least", "code"), [(1, 0), (2, ExitCode.DEGRADED)])
def test_as_many_as_the_user_has_stated_are_enough(least: int, code: int) -> None:
    state = started(f"replicas=2 min={least} fewer=yes").state
    state.slots.go_without(Absence("1", 7, "it fails"))
    state.slots.finish("0")
    assert outcome(state)[0] == code


def test_two_that_leave_early_at_once_end_the_job_once() -> None:
    lines = [f"A says started {name}a" for name in "012"]
    lines += [f"{name}a: report 0/shared" for name in "012"]
    core = started("replicas=3 min=2", *lines, "0a 1a 2a: built 1.1#1")
    word = m.Leaving(m.LeaveReason.EARLY, 5)
    leaving = tuple(m.WorkerMessage(WorkerKey(name, "a", 0), word) for name in "01")
    core.handle(AgentSent("A", leaving), 1.0)
    assert core.state.outcome is not None
    assert core.state.outcome.exit_code == 1
    assert "replica 0 left the training loop early at step 5" in core.state.outcome.reason


def test_all_nodes_say_how_few_are_enough() -> None:
    state = started("replicas=2").state
    other = m.Hello("B", replace(state.spec, accepts_fewer=True), 1, "host", "store")
    assert "--min-replicas or MIN:MAX is stated: True was given here" in refusal(state, other)
