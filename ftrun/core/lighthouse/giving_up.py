"""What happens to the job when an agent does not restart a replica any more.

An agent gives a replica up: it is not restarted on that node. Four rules, in this order:
- Another node gets the slot, if the cause may be the first node, and if another node has room, has
  no failures, and has not given the slot up before. So each node gets a slot once at most.
- A replica that has never trained a step ends the job, unless the user has stated a minimum number
  of replicas.
- If the other replicas continue, the slot is withdrawn, as by a drain, and is not assigned until
  people ask for it (``ftrun restart``). The others continue if enough of them have a Manager that
  has reported, or have finished. Replicas that fail alike, or have not reached their first step,
  end the job.
- Otherwise the job ends, with the exit code and the reason of the failure.

A replica *leaves early* if its script ends with exit code 0 while others train. The others continue
without it if they are enough for the job; else the job ends, with 1.

During a takeover it is not known which replicas continue, so the answer comes after it. Not here:
when an agent gives a replica up (core/agent/restarts.py), nodes on which several replicas die
(set_aside.py).
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
    """Answers agents that give replicas up.

    ``unanswered``: by slot, the agent that has given its replica up, and its message.
    """

    _state: MembershipState
    _membership: Membership
    _assignment: Assignment
    _agents: Agents
    _aside: SetAside
    unanswered: dict[str, tuple[str, ReplicaGivenUp]] = field(default_factory=dict)

    def on_given_up(self, agent: Agent, given_up: ReplicaGivenUp) -> None:
        """An agent will not start this replica again.

        It repeats this message to a new lighthouse.
        """
        if given_up.replica_id in self._state.slots:
            self.unanswered[given_up.replica_id] = agent.agent_id, given_up

    def run_rules(self) -> None:
        """Answer, once it is known which replicas continue."""
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
                # After a takeover the slot has no agent or another one, but that agent still has
                # it. If it got the slot later, it would not know that it must start it again.
                self._assignment.send_slots(self._agents[agent_id])
        early, self._membership.leaving.early = self._membership.leaving.early, {}
        for name, step in early.items():
            if self._state.phase is not Phase.ENDED:
                self._go_on_without(Absence(name, step, HAS_ENDED, EARLY))

    def _go_on_without(self, absence: Absence) -> None:
        """A replica has left early: the others continue, or are too few for that."""
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
            text = (
                f"{given_up.reason}. It has never trained a step. To continue without it: {FEWER}"
            )
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
        """The replicas that continue without ``name``, and those whose scripts have ended."""
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
