"""The job's failures as incidents: one for each first cause, with its consequences.

Theory of operation. An agent reports a loss at once (``ReplicaLost``), and its evidence when all
workers of the replica have ended (``FailureEvidence``). Each incarnation lost by a failure is one
``Part`` of exactly one incident:

- a part whose kind is a consequence (a peer's error, no answer in time) belongs to the incident
  that is open, if there is one;
- a part with a cause of its own joins an open incident that so far has consequences only, or whose
  first cause is the same error before the first step; otherwise it begins an incident;
- all replicas of a node that is lost are one incident.

Inside an incident the parts are in the order of their times: the lighthouse's receipt minus the age
that the agent states, so that only one clock counts. Consequences come after all other kinds. An
incident is open until all of its replicas are back in a quorum, or have been started again if they
never were in one, or are not to come back. Everything is bounded (Q8), and decides nothing.

A lighthouse that is started again takes over the records of its last life, so a failure is told
once, under one number. If its files are lost, the agents still know the numbers of the records that
they were sent. What nobody is left to report is closed as not known.

Not here: what follows from one (incident_following.py), the record as JSON (incident_record.py) and
back (incident_reading.py), the evidence of one replica (core/agent/).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from ftrun.core import failure_kinds as kinds
from ftrun.core.ids import replica_order
from ftrun.core.lighthouse.agents import Agent
from ftrun.core.lighthouse.events import EarlierIncident, SaveIncident
from ftrun.core.lighthouse.incident_following import note_response, note_returns, standing_of
from ftrun.core.lighthouse.incident_reading import incident_of
from ftrun.core.lighthouse.incident_record import document
from ftrun.core.lighthouse.incident_state import Incident, Part
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.messages import FailureEvidence, Healed, IncidentRecord, Loss, ReplicaLost

INCIDENTS_MAX = 100
PARTS_MAX = 64
CASCADE_S = 60.0
"""A consequence that comes later than this after the incident began is an incident of its own."""
NOBODY_BACK = "no node has come back to the restarted lighthouse: what followed is not known"
ANOTHER_JOB = "another job has begun, and nobody of this one was left: what followed is not known"


class Incidents:
    """The last ``INCIDENTS_MAX`` incidents of one job, oldest first.

    ``cost_s``: tells what an incident has cost until a moment; machine.py sets it to the account's.
    """

    def __init__(self, state: MembershipState) -> None:
        self._state = state
        self._incidents: deque[Incident] = deque(maxlen=INCIDENTS_MAX)
        self._open: list[Incident] = []
        self._number = 0
        self.cost_s: Callable[[int, float], float]
        self._earlier: list[EarlierIncident] = []
        self._gone_at: float | None = None

    def __iter__(self) -> Iterator[Incident]:
        return iter(self._incidents)

    @property
    def open(self) -> list[Incident]:
        """Those that are not over, oldest first."""
        return self._open

    # ------------------------------------------------------------ earlier lives

    @property
    def last_number(self) -> int:
        """The highest number that was used; 0: none was."""
        return self._number

    def go_on_after(self, number: int) -> None:
        """An earlier life of this lighthouse has written incidents up to this number."""
        self._number = max(self._number, number)

    def take_over(self, earlier: Iterable[EarlierIncident]) -> None:
        """Go on with these records, oldest first, as soon as it is known whose they are."""
        self._earlier = list(earlier)[-INCIDENTS_MAX:]
        if self._state.spec.job_id:
            self.job_is_known()

    def job_is_known(self) -> None:
        """Go on with the records of this job that were written earlier."""
        state, earlier = self._state, self._earlier
        self._earlier = []
        for one in earlier:
            if one.document.get("job_id") != state.spec.job_id:
                continue
            number = one.document.get("number")
            self.go_on_after(number if isinstance(number, int) else 0)
            incident = incident_of(one.document, one.age_s, state.now)
            if incident is None or any(self._find(part) for part in incident.parts):
                continue
            self._incidents.append(incident)
            if incident.closed_at is None:
                self._open.append(incident)
        if self._open:
            self._gone_at = state.now + max(state.silence_s, state.spec.join_timeout_s)

    def agent_came(self, last_number: int) -> None:
        """An agent of the job is here, which was sent records up to this number."""
        self.go_on_after(last_number)
        self._gone_at = None

    def next_deadline(self) -> float | None:
        """When nobody is expected any more to tell what followed."""
        return self._gone_at

    def abandon(self, words: str) -> None:
        """Close what is open: nobody will report what followed."""
        for incident in self._open:
            incident.end(self._state.now, words, kinds.NOT_KNOWN)
            self._save(incident)
        self._open = []

    # ------------------------------------------------------------ what has happened

    def lost(self, agent: Agent, lost: ReplicaLost) -> None:
        """An agent reports a loss; call before the member is removed. Only failures count."""
        if not lost.kind:
            return
        signature = lost.start_failure.signature if lost.start_failure is not None else ""
        part = Part(
            replica_id=lost.replica_id,
            incarnation=lost.incarnation,
            at=self._state.now,
            kind=lost.kind,
            cause=lost.cause,
            agent_id=agent.agent_id,
            host=agent.host,
            signature=signature,
        )
        self._add(part)

    def given_up(self, losses: list[Loss]) -> None:
        """The lighthouse gives these up, because they did not answer in time."""
        for loss in losses:
            self._add(self._part_of(loss, kinds.GIVEN_UP))

    def node_lost(self, agent: Agent, losses: list[Loss]) -> None:
        """An agent and all that it runs are out of reach."""
        parts = [self._part_of(loss, kinds.NODE, agent) for loss in losses]
        new = [part for part in parts if self._find(part) is None]
        if new:
            incident = self._begin(new[0])
            for part in new[1:]:
                incident.add(part, PARTS_MAX)
            self._save(incident)

    def evidence(self, agent: Agent, evidence: FailureEvidence) -> None:
        """How an incarnation has failed; its loss may be unknown to this lighthouse."""
        if not evidence.workers:
            return
        now, first = self._state.now, evidence.workers[0]
        part = Part(
            replica_id=evidence.replica_id,
            incarnation=evidence.incarnation,
            at=now - first.age_s,
            kind=first.kind,
            cause=first.cause,
            agent_id=agent.agent_id,
            host=agent.host,
        )
        is_known = self._find(part) is not None
        incident = self._add(part, evidence.incident)
        if not is_known:
            self._missed(part, incident)
        known = incident.part_of(evidence.replica_id, evidence.incarnation)
        if known is not None:
            known.tell(evidence, now, agent.agent_id, agent.host)
        if self._state.phase is Phase.ENDED:
            incident.end(now, self._ending())
        self._save(incident)

    def started(self, replica_id: str, incarnation: str) -> None:
        """An incarnation runs in a slot; it has not come to a quorum yet."""
        for part in self._open_parts(replica_id):
            if part.is_followed_by(incarnation) and part.started_at is None:
                part.started_at = self._state.now

    def healed(self, replica: Replica, healed: Healed) -> None:
        """A replica that came back has its peers' state."""
        for part in self._open_parts(replica.replica_id):
            part.healed = healed

    def set_aside(self, replica_id: str, words: str) -> None:
        """The slot goes to another node."""
        for part in self._open_parts(replica_id):
            part.set_aside = words

    def goes_on(self, replica_id: str, words: str) -> None:
        """The job goes on without the slot's replica."""
        for part in self._open_parts(replica_id):
            part.goes_on = words

    # ------------------------------------------------------------ what follows

    def run_rules(self) -> None:
        """After every event: note what the survivors did, and close what is over."""
        state = self._state
        if self._gone_at is not None and state.now >= self._gone_at:
            self._gone_at = None
            self.abandon(NOBODY_BACK)
        for incident in self._open:
            if state.phase is Phase.ENDED:
                incident.end(state.now, self._ending())
            else:
                note_response(state, incident)
                note_returns(state, incident)
            if incident.closed_at is not None:
                self._save(incident)
        if self._open:
            self._open = [incident for incident in self._open if incident.closed_at is None]

    def documents(self, now: float) -> list[dict[str, object]]:
        """All incidents as plain JSON, with ``ago_s`` in place of a date."""
        return [document(incident, self._state.spec.job_id, now) for incident in self]

    def check(self) -> None:
        """Assert what must hold between events.

        Raises:
            AssertionError: the table is over its limit, or an incarnation is in two incidents.
        """
        assert len(self._incidents) <= INCIDENTS_MAX, "Q8: too many incidents"
        failed = [p for incident in self for p in incident.parts if p.kind != kinds.NODE]
        parts = [(part.replica_id, part.incarnation) for part in failed]
        assert len(parts) == len(set(parts)), f"an incarnation is in two incidents: {parts}"
        for incident in self:
            assert 1 <= len(incident.parts) <= PARTS_MAX, "Q8: parts of an incident"
        still = [x.number for x in self if x.closed_at is None]
        assert self._state.phase is not Phase.ENDED or not still, f"open after the end: {still}"

    # ------------------------------------------------------------ inside

    def _ending(self) -> str:
        outcome = self._state.outcome
        why = f": {outcome.reason}" if outcome is not None else ""
        return f"the job has ended{why}"

    def _part_of(self, loss: Loss, kind: str, agent: Agent | None = None) -> Part:
        part = Part(loss.replica_id, loss.incarnation, self._state.now, kind, loss.cause)
        if agent is not None:
            part.agent_id, part.host = agent.agent_id, agent.host
        return part

    def _find(self, part: Part) -> Incident | None:
        """The incident that has this incarnation.

        One that was out of reach and came back can be lost once more.
        """
        for incident in reversed(self._incidents):
            known = incident.part_of(part.replica_id, part.incarnation)
            if known is not None:
                if known.kind == kinds.NODE and incident.closed_at is not None:
                    continue  # it came back; an older incident that is open may have it since
                return incident
            if (part.replica_id, part.incarnation) in incident.unlisted:
                return incident
        return None

    def _open_parts(self, replica_id: str) -> Iterator[Part]:
        for incident in self._open:
            yield from (part for part in incident.parts if part.replica_id == replica_id)

    def _add(self, part: Part, number: int = 0) -> Incident:
        """The incident of this part: the one that has it, the one it belongs to, or a new one.

        ``number``: that of the record that an earlier lighthouse has sent of it; 0: none.
        """
        known = self._find(part)
        if known is not None:
            return known
        if number:
            return self._told_earlier(part, number)
        for incident in reversed(self._open):
            is_near = part.at <= incident.began_at + CASCADE_S
            if is_near and incident.takes(part):
                incident.add(part, PARTS_MAX)
                return incident
        return self._begin(part)

    def _told_earlier(self, part: Part, number: int) -> Incident:
        """The files of the last lighthouse are lost: the incident goes on under its number."""
        self.go_on_after(number)
        for incident in self._incidents:
            if incident.number == number:
                incident.add(part, PARTS_MAX)
                return incident
        return self._begin(part, number)

    def _missed(self, part: Part, incident: Incident) -> None:
        """The loss was reported to an earlier lighthouse, and perhaps what followed from it."""
        incident.is_earlier |= incident.parts == [part]
        replica = self._state.replicas.at(part.replica_id)
        if replica is not None and part.is_followed_by(replica.incarnation):
            part.started_at = self._state.now

    def _begin(self, part: Part, number: int = 0) -> Incident:
        state = self._state
        if not number:
            self._number += 1
        incident = Incident(
            number=number or self._number,
            began_at=part.at,
            noted_at=state.now,
            step=state.step_max,
            quorum=state.quorum.attempt.quorum_id if state.quorum is not None else None,
            members=tuple(sorted(state.live, key=replica_order)),
            parts=[part],
            standing=standing_of(state, but=part.replica_id),
        )
        self._drop_oldest()
        self._incidents.append(incident)
        self._open.append(incident)
        return incident

    def _drop_oldest(self) -> None:
        """A table that is full loses its oldest incident, which the agents have on disk."""
        if len(self._incidents) == INCIDENTS_MAX:
            oldest = self._incidents.popleft()
            self._open = [incident for incident in self._open if incident is not oldest]

    def _save(self, incident: Incident) -> None:
        """Send the record as it stands to the agents, which keep it in their log directories."""
        state = self._state
        is_told = any(part.evidence or part.kind == kinds.NODE for part in incident.parts)
        if incident.closed_at is None and not is_told:
            return  # the evidence comes in a moment, and the record with it
        # An account that was lost with the last life does not know what was charged before.
        incident.cost_s = max(incident.cost_s, self.cost_s(incident.number, state.now))
        record = SaveIncident(
            agents=state.outbox.agents_for(part.agent_id for part in incident.parts),
            record=IncidentRecord(
                number=incident.number,
                incarnations=tuple(p.incarnation for p in incident.parts if p.evidence),
                is_open=incident.closed_at is None,
                document="",
            ),
            age_s=max(0.0, state.now - incident.first().at),
            document=document(incident, state.spec.job_id, state.now),
        )
        state.outbox.save(record)


__all__ = ["INCIDENTS_MAX", "PARTS_MAX", "Incident", "Incidents"]
