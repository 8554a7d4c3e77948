"""The agent's facts for the program that launched it: an early death is the failure, once."""

from __future__ import annotations

from ftrun.agent.facts import record_of
from ftrun.agent.watch import WorkerStarted
from ftrun.core.agent.events import (
    Event,
    Instruction,
    SendToLighthouse,
    SignalReplica,
    StartReplica,
    WorkerDying,
    WorkerExited,
)
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import ReplicaLost
from ftrun.tools.launching.story import Story


def test_who_died_first_is_known_though_the_rest_was_killed_before_it_was_gone() -> None:
    dead, killed = WorkerExited("a", 1, 101, -11), WorkerExited("a", 0, 100, -9)
    facts: list[Event | Instruction | WorkerStarted] = [
        StartReplica("0", "a", 0),
        *(WorkerStarted(WorkerKey("0", "a", rank), 100 + rank) for rank in (0, 1)),
        WorkerDying(dead),
        SignalReplica("0", "a", 9),
        SendToLighthouse(ReplicaLost("0", "a", "died: SIGSEGV")),
        WorkerDying(killed),
        killed,
        dead,
    ]
    story = Story()
    for at, fact in enumerate(facts):
        record = record_of(fact)
        assert record is not None
        story.add({"at": float(at), **record})
    failures = [(x.group_rank, x.pid, x.status, x.at) for x in story.failures()]
    assert failures == [(1, 101, -11, 3.0)]
