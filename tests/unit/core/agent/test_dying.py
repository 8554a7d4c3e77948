"""A death that is told early has the same outcome as one that is told when the process is gone.

What happens when is in tests/transcripts/supervisor/dying.txt.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.core.agent.events import (
    AskToStop,
    Event,
    Instruction,
    SendEvidence,
    SendToLighthouse,
    SignalReplica,
    SpawnerReady,
    StartReplica,
    SweepReplica,
    TimerFired,
    WorkerDying,
    WorkerExited,
)
from ftrun.core.agent.restarts import RestartRules
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.supervisor import Supervisor
from ftrun.core.messages import AssignSlots
from tests.suite.properties import examples


class Agent:
    """Two slots of two workers; ``live``: their incarnations."""

    def __init__(self, as_torchrun: bool) -> None:
        rules = RestartRules(max_restarts=3, as_torchrun=as_torchrun)
        own = SupervisorSettings("a", 2, rules, 10.0, 60.0, 30.0, asks_siblings=as_torchrun)
        self.core = Supervisor(own, 0.0)
        self.live: dict[str, str] = {}
        self.seen: list[str] = []
        self.now = 0.0
        self.on(SpawnerReady())
        self.on(AssignSlots(("0", "1")))

    def on(self, event: Event) -> None:
        for instruction in self.core.handle(event, self.now):
            if isinstance(instruction, StartReplica):
                self.live[instruction.replica_id] = instruction.incarnation
            self.seen += _shown(instruction)
        self.core.check()

    def take_seen(self) -> list[str]:
        """In any order: a death that is told early has its loss told before its sweep."""
        seen, self.seen = sorted(self.seen), []
        return seen


def _shown(instruction: Instruction) -> list[str]:
    acts = (SendToLighthouse, SendEvidence, StartReplica, SweepReplica, SignalReplica, AskToStop)
    return [repr(instruction)] if isinstance(instruction, acts) else []


ENDS = st.lists(
    st.tuples(
        st.sampled_from(["0", "1"]),
        st.integers(0, 1),
        st.sampled_from([0, 0, 1, 3, -9, -11, -15]),
        st.booleans(),
        st.sampled_from([0.0, 0.3, 20.0]),
    ),
    max_size=24,
)


@settings(max_examples=examples(200))
@given(ENDS, st.booleans())
def test_all_comes_out_as_without_the_early_notice(
    ends: list[tuple[str, int, int, bool, float]], as_torchrun: bool
) -> None:
    """The oracle is a second supervisor that learns of each end once, when the process is gone."""
    early, late = Agent(as_torchrun), Agent(as_torchrun)
    for slot, rank, status, is_seen, wait_s in ends:
        end = WorkerExited(early.live[slot], rank, 1000 + rank, status)
        if is_seen and status != 0:
            early.on(WorkerDying(end))
        for agent in (early, late):
            agent.on(end)
            agent.now += wait_s
            agent.on(TimerFired())
        assert early.take_seen() == late.take_seen()
        assert early.core.slots.summary() == late.core.slots.summary()
        assert early.core.slots.dead == late.core.slots.dead
