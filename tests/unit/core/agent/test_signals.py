"""What a signal to the agent means, and what an agent does on a person's request."""

from __future__ import annotations

import signal

import pytest

from ftrun.core.agent.events import (
    SIGTERM,
    AskToStop,
    DrainAsked,
    EndAgent,
    KillAsked,
    LighthouseGone,
    LighthouseSent,
    PassSignal,
    ReplicaStopAsked,
    SendEvidence,
    SendToLighthouse,
    ShowStacks,
    SignalReceived,
    SignalReplica,
    SignalWorker,
    StartReplica,
    TimerFired,
    WorkerSent,
)
from ftrun.core.agent.signals import Reaction, SignalRules, signal_number, signal_rules
from ftrun.core.agent.slot_state import Outcome, SlotPhase
from ftrun.core.ids import NO_ATTEMPT, WorkerKey
from ftrun.core.messages import InForce, LeaveReason, Leaving, ReplicaLost
from ftrun.errors import UserError
from tests.unit.core.agent.test_supervisor import Agent

HUP, INT, QUIT = int(signal.SIGHUP), int(signal.SIGINT), int(signal.SIGQUIT)
USR1, USR2 = int(signal.SIGUSR1), int(signal.SIGUSR2)
OWN = SignalRules()


def of_kind(kind: type, out: list) -> list:
    return [instruction for instruction in out if isinstance(instruction, kind)]


def lost(out: list) -> list[str]:
    sent = [x.message for x in of_kind(SendToLighthouse, out)]
    return [message.cause for message in sent if isinstance(message, ReplicaLost)]


def key(agent: Agent, replica_id: str, rank: int = 0) -> WorkerKey:
    return WorkerKey(replica_id, agent.incarnations[replica_id], rank)


def stop(agent: Agent, replica_id: str, *, restart: bool, at_boundary: bool = True) -> list:
    incarnation = agent.incarnations[replica_id]
    return agent.on(ReplicaStopAsked(replica_id, incarnation, restart, at_boundary))


@pytest.mark.parametrize(
    ("rules", "number", "reaction", "code"),
    [
        (OWN, SIGTERM, Reaction.LEAVE, 75),
        (OWN, HUP, Reaction.LEAVE, 75),
        (OWN, INT, Reaction.LEAVE, 130),
        (OWN, QUIT, Reaction.SHOW_STACKS, 131),
        (OWN, USR1, Reaction.PASS_ON, 138),
        (SignalRules(None, USR1), USR1, Reaction.LEAVE, 75),
        (SignalRules(frozenset({INT, USR2})), SIGTERM, Reaction.STOP, 143),
        (SignalRules(frozenset({INT, USR2})), USR2, Reaction.LEAVE, 140),
        (signal_rules(None, None, as_torchrun=True), QUIT, Reaction.LEAVE, 131),
        (signal_rules("term, SIGINT", "usr2", as_torchrun=False), USR2, Reaction.LEAVE, 75),
    ],
)
def test_what_a_signal_means(
    rules: SignalRules, number: int, reaction: Reaction, code: int
) -> None:
    assert (rules.reaction(number), rules.exit_code(number)) == (reaction, code)
    assert number in rules.caught()


@pytest.mark.parametrize("name", ["SIGNOPE", "KILL", "9", "SIG_DFL"])
def test_a_name_that_cannot_be_handled_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="Nothing was started"):
        signal_number(name, "--preempt-signal")


def test_the_second_signal_stops_and_an_echo_does_not() -> None:
    agent = Agent()
    agent.assign("0")
    (asked,) = of_kind(AskToStop, agent.on(SignalReceived(INT)))
    assert asked.number == INT
    agent.now += 0.1
    assert not of_kind(SignalReplica, agent.on(SignalReceived(INT)))
    agent.now += 0.3
    assert of_kind(SignalReplica, agent.on(SignalReceived(INT)))
    assert of_kind(EndAgent, agent.exits("0", -9)) == [EndAgent(130, "SIGINT")]


def test_after_a_notice_the_next_signal_is_the_first() -> None:
    agent = Agent(signals=SignalRules(None, USR1))
    agent.assign("0")
    agent.on(SignalReceived(USR1))
    agent.now += 1.0
    assert not of_kind(SignalReplica, agent.on(SignalReceived(SIGTERM)))
    agent.now += 1.0
    assert of_kind(SignalReplica, agent.on(SignalReceived(SIGTERM)))
    other = Agent()
    other.assign("0")
    other.on(DrainAsked("a file", 75, is_notice=True))
    assert not of_kind(SignalReplica, other.on(SignalReceived(SIGTERM)))


def test_stacks_and_signals_that_are_passed_on_end_nothing() -> None:
    agent = Agent()
    agent.assign("0")
    assert of_kind(ShowStacks, agent.on(SignalReceived(QUIT))) == [ShowStacks()]
    assert agent.on(SignalReceived(USR2)) == [PassSignal(USR2)]
    assert not agent.core.is_ending


def test_a_signal_that_is_not_handled_stops_at_once() -> None:
    agent = Agent(signals=SignalRules(frozenset({INT})))
    agent.assign("0")
    assert of_kind(SignalReplica, agent.on(SignalReceived(SIGTERM)))
    assert of_kind(EndAgent, agent.exits("0", -9)) == [EndAgent(143, "SIGTERM")]


def test_under_torchrun_the_rest_of_a_group_has_the_grace() -> None:
    agent = Agent(workers_per_replica=2, asks_siblings=True)
    agent.assign("0")
    out = agent.exits("0", 1)
    assert of_kind(AskToStop, out) and not of_kind(SignalReplica, out)
    agent.now += 10.0
    assert of_kind(SignalReplica, agent.on(TimerFired()))
    assert of_kind(StartReplica, agent.exits("0", -9, rank=1))


# ---------------------------------------------------------------- requests of people


def test_a_member_leaves_at_its_boundary_however_far_that_is() -> None:
    agent = Agent()
    agent.assign("0", "1")
    agent.on(LighthouseSent(0.0))
    agent.on(WorkerSent(key(agent, "1"), InForce(NO_ATTEMPT, 1)))
    assert len(of_kind(AskToStop, stop(agent, "1", restart=True))) == 1
    assert stop(agent, "1", restart=True) == [], "asked twice"
    agent.now += 1000.0
    assert not of_kind(SignalReplica, agent.on(TimerFired()))
    agent.on(WorkerSent(key(agent, "1"), Leaving(LeaveReason.DRAINED)))
    out = agent.exits("1", 75)
    assert lost(out) == ["it was asked to leave"]
    assert len(of_kind(StartReplica, out)) == 1
    assert agent.core.summary()[1].failures == (), "it costs no restart"


def test_one_that_does_not_end_after_its_boundary_is_killed() -> None:
    agent = Agent()
    agent.assign("0", "1")
    agent.on(WorkerSent(key(agent, "1"), InForce(NO_ATTEMPT, 1)))
    stop(agent, "1", restart=False)
    agent.on(WorkerSent(key(agent, "1"), Leaving(LeaveReason.DRAINED)))
    agent.now += 10.0
    assert of_kind(SignalReplica, agent.on(TimerFired()))
    agent.exits("1", -9)
    assert agent.core.summary()[1].outcome is Outcome.DRAINED


def test_a_script_without_a_manager_has_the_grace_and_stays_away() -> None:
    agent = Agent()
    agent.assign("0", "1")
    assert of_kind(AskToStop, stop(agent, "1", restart=False))
    out = agent.exits("1", 143)
    assert not of_kind(StartReplica, out)
    assert agent.core.summary()[1].outcome is Outcome.DRAINED
    out = agent.on(ReplicaStopAsked("1", "", True))
    assert of_kind(StartReplica, out), "asked for again"


def test_a_slot_that_was_drained_while_no_lighthouse_was_here_starts_when_it_is_assigned() -> None:
    agent = Agent()
    agent.on(LighthouseSent(0.0))
    agent.assign("0", "1")
    stop(agent, "1", restart=False, at_boundary=False)
    agent.on(LighthouseGone("gone"))
    agent.exits("1", 143)
    agent.on(LighthouseSent(None))
    assert of_kind(StartReplica, agent.assign("0", "1"))


def test_a_drained_slot_that_is_given_back_while_its_workers_end_starts_again() -> None:
    agent = Agent()
    agent.on(LighthouseSent(0.0))
    agent.assign("0", "1")
    stop(agent, "1", restart=False, at_boundary=False)
    agent.assign("0")
    agent.assign("0", "1")
    agent.exits("1", 143)
    assert of_kind(StartReplica, agent.on(TimerFired())) or agent.core.running()[1:]


def test_a_crash_on_the_way_is_a_failure() -> None:
    agent = Agent()
    agent.assign("0")
    agent.on(WorkerSent(key(agent, "0"), InForce(NO_ATTEMPT, 1)))
    stop(agent, "0", restart=True)
    assert lost(agent.exits("0", -11)) == ["died: SIGSEGV"]


def test_a_restart_that_waits_is_due_now_or_off() -> None:
    for restart in (True, False):
        agent = Agent()
        agent.assign("0", "1")
        agent.exits("1", 1)
        agent.exits("1", 1)
        assert agent.core.summary()[1].phase is SlotPhase.WAITING
        out = agent.on(ReplicaStopAsked("1", "", restart))
        assert bool(of_kind(StartReplica, out)) is restart
        assert bool(lost(out)) is not restart


def test_a_kill_hits_the_workers_that_are_named() -> None:
    agent = Agent(workers_per_replica=2)
    agent.assign("0")
    out = agent.on(KillAsked("0", agent.incarnations["0"], (1, 5)))
    assert out == [SignalWorker(key(agent, "0", 1), 9)]
    assert agent.on(KillAsked("0", "another", (0,))) == []
    assert agent.on(KillAsked("7", "another", (0,))) == []
    out = [*agent.exits("0", -9, rank=1), *agent.exits("0", -9)]
    (evidence,) = [i.evidence for i in out if isinstance(i, SendEvidence)]
    first = evidence.workers[0]
    assert (first.group_rank, first.kind) == (1, "on request")
    assert first.cause == "was killed on request (ftrun kill)"


def test_requests_for_what_is_not_here_change_nothing() -> None:
    agent = Agent()
    agent.assign("0")
    assert agent.on(ReplicaStopAsked("7", "", True)) == []
    assert agent.on(ReplicaStopAsked("0", "another", True)) == []
    agent.on(DrainAsked("SIGTERM", 75))
    assert stop(agent, "0", restart=True) == []
