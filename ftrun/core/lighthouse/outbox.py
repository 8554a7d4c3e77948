"""Collects the lighthouse's instructions: one message per agent, not per worker.

Not here: what to send (membership.py), how it is sent (lighthouse/).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ftrun.core import messages as m
from ftrun.core.books.records import SaveAccount, SaveIncident
from ftrun.core.ids import replica_order
from ftrun.core.lighthouse import events as e
from ftrun.core.lighthouse.replicas import Replica, Replicas

NOTICE_REPLICAS_MAX = 64
RECORD_AGENTS_MAX = 64
"""In a job of more agents, an incident is recorded only on the nodes that it concerns."""


class Outbox:
    """The instructions of one event, in order.

    ``agents``: the attached ones; only they are sent anything.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.agents: dict[str, None] = {}
        self._replicas = replicas
        self._out: list[e.Instruction] = []

    def take(self) -> list[e.Instruction]:
        """Return the instructions collected since the last call."""
        out, self._out = self._out, []
        return out

    def put_first(self, instructions: list[e.Instruction]) -> None:
        """Put these before all that has been collected so far."""
        self._out[:0] = instructions

    def send(self, replica_ids: Iterable[str], message: m.ToWorker) -> None:
        """Send to every worker of these replicas, if they live."""
        targets: dict[str, list[m.RunningReplica]] = {}
        for replica_id in sorted(replica_ids, key=replica_order):
            replica = self._replicas.get(replica_id)
            if replica is not None:
                targets.setdefault(replica.agent_id, []).append(replica.target)
        for agent_id, of_agent in targets.items():
            self.to_agent(agent_id, m.ToWorkers(tuple(of_agent), message))

    def restart(self, replica: Replica, reason: str) -> None:
        """Ask its agent to kill this incarnation and start another."""
        order = m.RestartReplica(replica.replica_id, replica.incarnation, reason)
        self.to_agent(replica.agent_id, order)

    def notice(
        self, kind: str, replica_ids: Iterable[str], text: str, only: str | None = None
    ) -> None:
        """Show one line to people, on every agent's terminal or on the terminal of agent ``only``.

        Of agents that share a terminal, the one that was attached first shows it. A notice about
        very many replicas omits their ids: N ids to N agents would be O(N²).
        """
        ids = tuple(sorted(replica_ids, key=replica_order))
        if len(ids) > NOTICE_REPLICAS_MAX:
            ids = ()
        notice = m.Notice(kind, ids, text)
        if only is not None:
            self.to_agent(only, notice)
            return
        copy = replace(notice, elsewhere=True)
        for index, agent_id in enumerate(self.agents):
            self._out.append(e.SendToAgent(agent_id, copy if index else notice))

    def to_all(self, message: m.ToAgent) -> None:
        for agent_id in self.agents:
            self._out.append(e.SendToAgent(agent_id, message))

    def to_agent(self, agent_id: str, message: m.ToAgent) -> None:
        """Send to one agent, if it is attached."""
        if agent_id in self.agents:
            self._out.append(e.SendToAgent(agent_id, message))

    def reject(self, agent_id: str, reason: str) -> None:
        """Refuse for good an agent that has not been attached."""
        self._out.append(e.SendToAgent(agent_id, m.Rejected(reason)))
        self._out.append(e.CloseAgent(agent_id, reason))

    def operation_changed(self, number: int) -> None:
        """Callers that wait for this operation look again."""
        self._out.append(e.OperationChanged(number))

    def close(self, agent_id: str, reason: str) -> None:
        self._out.append(e.CloseAgent(agent_id, reason))

    def begin_again(self, reason: str) -> None:
        """End this life of the lighthouse."""
        self._out.append(e.BeginAgain(reason))

    def _agents_for(self, concerned: Iterable[str]) -> tuple[str, ...]:
        """The agents that keep a record: all, or only those concerned if there are very many."""
        if len(self.agents) <= RECORD_AGENTS_MAX:
            return tuple(self.agents)
        return tuple(agent_id for agent_id in dict.fromkeys(concerned) if agent_id in self.agents)

    def swap(self, former: m.EndJob, outcome: m.EndJob) -> None:
        """The job has ended in this event, and more is known of its outcome by now."""
        for index, one in enumerate(self._out):
            if isinstance(one, e.SendToAgent) and one.message is former:
                self._out[index] = e.SendToAgent(one.agent_id, outcome)
            elif isinstance(one, e.Journal) and one.record.outcome is former:
                self._out[index] = e.Journal(replace(one.record, outcome=outcome))

    def save(self, record: SaveIncident | SaveAccount) -> None:
        """Keep this record of the books. The record of an incident is sent to agents."""
        if isinstance(record, SaveIncident):
            record = replace(record, agents=self._agents_for(record.agents))
        self._out.append(record)

    def journal(self, record: e.JournalState) -> None:
        """Write ``record`` to disk before anything that follows is sent."""
        self._out.append(e.Journal(record))
