"""The consequences for a job that is to go on without a replica.

An agent gives a replica up: it is not restarted on that node. Four rules, in this order:
- Another node gets the slot, if the cause may be the first one's, and if that node has room, no
  failures, and has not given the slot up before. So a slot goes to each node once at most.
- A replica that has never trained a step ends the job, unless the user has stated how few are
  enough.
- Where the others go on, the slot is withdrawn, as by a drain, and nobody gets it until people ask
  (``ftrun restart``). The others go on if as many of them as the job needs have a Manager that has
  reported, or have finished: replicas that fail alike, or have not come to their first step, end
  the job.
- Otherwise the job ends, with the exit code and the reason of the failure.

A replica has left the training loop early: its script has ended with exit code 0 while others train
on. They go on without it if they are as many as the job needs; else the job ends, with 1.

In a takeover nobody knows yet who goes on, so the answer comes after it. Not here: when an agent
gives a replica up (core/agent/restarts.py), nodes on which several replicas die (set_aside.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftrun.core.books.facts import Moved, WentOn
from ftrun.core.lighthouse.agents import Agent, Agents
from ftrun.core.lighthouse.assignment import Assignment
from ftrun.core.lighthouse.membership import Membership
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.set_aside import SetAside
from ftrun.core.lighthouse.slots import EARLY, HAS_ENDED, Absence, Slot
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.words import replicas, sentence
from ftrun.core.messages import LeaveReason, ReplicaGivenUp

FEWER = "--min-replicas N"


@dataclass(eq=False, repr=False)
class GivingUp:
    """``unanswered``: by slot, the agent that gives its replica up, and its message."""

    _state: MembershipState
    _membership: Membership
    _assignment: Assignment
    _agents: Agents
    _aside: SetAside
    unanswered: dict[str, tuple[str, ReplicaGivenUp]] = field(default_factory=dict)

    def on_given_up(self, agent: Agent, given_up: ReplicaGivenUp) -> None:
        """An agent will not start this replica again; it repeats that to a new lighthouse."""
        if given_up.replica_id in self._state.slots:
            self.unanswered[given_up.replica_id] = agent.agent_id, given_up

    def run_rules(self) -> None:
        """Answer, once it is known who goes on."""
        if self._state.phase is Phase.TAKEOVER:
            return
        unanswered, self.unanswered = self.unanswered, {}
        for name, (agent_id, given_up) in unanswered.items():
            slot = self._state.slots[name]
            owner = slot.agent_id
            if self._state.phase is Phase.ENDED:
                continue
            if slot.is_open and owner in ("", agent_id):
                self._answer(slot, agent_id, given_up)
            if owner != agent_id and agent_id in self._state.outbox.agents:
                # After a takeover the slot is nobody's or another's, but that agent still has it:
                # were it given the slot later, it would not know that it is to start it again.
                self._assignment.send_slots(self._agents[agent_id])
        early, self._membership.leaving.early = self._membership.leaving.early, {}
        for name, step in early.items():
            if self._state.phase is not Phase.ENDED:
                self._go_on_without(Absence(name, step, HAS_ENDED, EARLY))

    def _go_on_without(self, absence: Absence) -> None:
        """A replica has left early: the others train on, or are too few for that."""
        state, name = self._state, absence.replica_id
        state.slots.go_without(absence)
        trains, _ = self._others(name)
        if len(trains) < state.least:
            text = f"{absence.words()}, and {len(trains)} of the {state.least} that are needed"
            self._membership.end(1, f"{text} {'is' if len(trains) == 1 else 'are'} left")
            return
        state.journal()
        verb = "trains" if len(trains) == 1 else "train"
        text = f"{absence.words()}. {sentence(replicas(trains))} {verb} on without it."
        state.outbox.notice("left early", [name], sentence(text))

    def _answer(self, slot: Slot, agent_id: str, given_up: ReplicaGivenUp) -> None:
        state, name = self._state, slot.replica_id
        slot.given_up_at.add(agent_id)
        if given_up.elsewhere and self._aside.give(name):
            text = f"{replicas([name])} goes to another node: {given_up.reason}."
            state.facts.append(Moved(name, text))
            state.outbox.notice("aside", [name], sentence(text))
            return
        slot.has_trained |= given_up.has_trained
        if not (slot.has_trained or state.spec.accepts_fewer):
            text = f"{given_up.reason}. It has never trained a step. To go on without it: {FEWER}"
            self._membership.end(given_up.exit_code or 1, text, given_up.kind)
            return
        trains, done = self._others(name)
        if len(trains | done) < max(1, state.least):
            self._membership.end(given_up.exit_code or 1, given_up.reason, given_up.kind)
            return
        state.slots.go_without(Absence(name, state.step_max, given_up.reason))
        slot.moves_to = ""
        self._membership.leaving.drain([name])
        self._assignment.ended(name)
        state.journal()
        text = f"Replica {name} is given up: {given_up.reason}. {_fate(name, trains, done)}"
        state.facts.append(WentOn(name, text))
        state.outbox.notice("given up", [name], text)

    def _others(self, name: str) -> tuple[set[str], set[str]]:
        """The replicas that train on without ``name``, and those whose scripts have ended."""
        state = self._state
        others = [r for r in state.replicas.values() if r.replica_id != name]
        known = [r for r in others if r.is_known(state.workers)]
        ends = {r.replica_id for r in known if r.leaving is LeaveReason.FINISHED}
        return {r.replica_id for r in known if not r.leaving}, ends | {*state.slots.finished()}


def _fate(name: str, trains: set[str], done: set[str]) -> str:
    """The future of a job without replica ``name``: whether others train, or have finished."""
    who = sentence(replicas(trains or done))
    if not trains:
        return f"{who} {'has' if len(done) == 1 else 'have'} finished."
    verb = "trains" if len(trains) == 1 else "train"
    return f"{who} {verb} on without it. To start it again: ftrun restart {name}"
