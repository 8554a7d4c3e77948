"""The job's failures as incidents: one for each first cause, with its consequences.

Theory of operation. An agent reports a loss at once (``ReplicaLost``), and its evidence when all
workers of the replica have ended (``FailureEvidence``). Each incarnation lost by a failure is one
``Part`` of exactly one incident:

- a part whose kind is a consequence (a peer's error, no answer in time) belongs to the open
  incident, if there is one;
- a part with its own cause joins an open incident that so far has only consequences, or whose first
  cause is the same error before the first step; otherwise it begins an incident;
- all replicas of a lost node are one incident.

Inside an incident the parts are in the order of their times: the time when the lighthouse received
the report, minus the age that the agent states, so that only one clock counts. Consequences come
after all other kinds. An incident is open until each of its replicas is back in a quorum, or has
been started again if it never was in one, or is not expected back. Everything is bounded (Q8), and
no decision depends on it.

A restarted lighthouse takes over the records of its last life, so a failure is reported once, under
one number. If its files are lost, the agents still know the numbers of the records that they
received. An incident about which no agent is left to report is closed as not known.

Not here: what follows an incident (incident_following.py), the record as JSON (incident_record.py)
and back (incident_reading.py), the evidence of one replica (core/agent/).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ftrun.core import failure_kinds as kinds
from ftrun.core.books import facts as f
from ftrun.core.books.incident_following import note_response, note_returns, standing_of
from ftrun.core.books.incident_reading import incident_of
from ftrun.core.books.incident_record import document
from ftrun.core.books.incident_state import Incident, Part
from ftrun.core.books.picture import Picture
from ftrun.core.books.records import EarlierIncident, SaveIncident
from ftrun.core.ids import replica_order
from ftrun.core.messages import IncidentRecord, Loss, ReplicaLost

INCIDENTS_MAX = 100
PARTS_MAX = 64
CASCADE_S = 60.0
"""A consequence later than this after the incident began is a separate incident."""
NOBODY_BACK = "no node has come back to the restarted lighthouse: what followed is not known"


class Incidents:
    """The last ``INCIDENTS_MAX`` incidents of one job, oldest first.

    ``open``: those that are not over. ``unsaved``: those that have changed and must be kept.
    ``gone_at``: when no further report is expected. ``have_changed``: since the account last
    looked.
    """

    def __init__(self, picture: Picture) -> None:
        self.open: list[Incident] = []
        self.unsaved: list[Incident] = []
        self.gone_at: float | None = None
        self.have_changed = True
        self._picture = picture
        self._incidents: deque[Incident] = deque(maxlen=INCIDENTS_MAX)
        self._number = self._lost_before = 0
        self._earlier: list[EarlierIncident] = []

    def __iter__(self) -> Iterator[Incident]:
        return iter(self._incidents)

    # ------------------------------------------------------------ earlier lives

    @property
    def last_number(self) -> int:
        """The highest number that was used; 0: none was."""
        return self._number

    def go_on_after(self, number: int) -> None:
        """An earlier life of this lighthouse has written incidents up to this number."""
        self._number = max(self._number, number)

    def take_over(self, earlier: Iterable[EarlierIncident]) -> None:
        """Continue these records, oldest first, as soon as the job is known."""
        self._earlier = list(earlier)[-INCIDENTS_MAX:]
        if self._picture.job is not None:
            self.job_is_known(self._picture.job)

    def job_is_known(self, job: f.JobKnown) -> None:
        """Continue the records of this job that were written earlier."""
        now, earlier = self._picture.now, self._earlier
        self._earlier = []
        for one in earlier:
            if one.document.get("job_id") != job.job_id:
                continue
            number = one.document.get("number")
            self.go_on_after(number if isinstance(number, int) else 0)
            incident = incident_of(one.document, one.age_s, now)
            if incident is None or any(self._find(part) for part in incident.parts):
                continue
            self._incidents.append(incident)
            if incident.closed_at is None:
                self.open.append(incident)
        if self.open:
            self.have_changed = True
            self.gone_at = now + job.back_within_s

    def agent_came(self, last_number: int) -> None:
        """An agent of the job has attached that was sent records up to this number."""
        self.go_on_after(last_number)
        self.gone_at = None

    def abandon(self, words: str) -> None:
        """Close open incidents, because there will be no further reports."""
        for incident in self.open:
            incident.end(self._picture.now, words, kinds.NOT_KNOWN)
            self.unsaved.append(incident)
        self.open = []

    # ------------------------------------------------------------ what has happened

    def lost(self, fact: f.Lost) -> None:
        lost = fact.lost
        part = self._part_of(lost, lost.kind, (fact.agent_id, fact.host))
        if lost.start_failure is not None:
            part.signature = lost.start_failure.signature
        if not (lost.follows and self._goes_on(part, lost.follows)):
            self._add(part)

    def given_up(self, fact: f.GivenUp) -> None:
        for loss in fact.losses:
            self._add(self._part_of(loss, kinds.GIVEN_UP))

    def node_lost(self, fact: f.NodeLost) -> None:
        at = fact.agent_id, fact.host
        parts = [self._part_of(loss, kinds.NODE, at) for loss in fact.losses]
        new = [part for part in parts if self._find(part) is None]
        if new:
            incident = self._begin(new[0])
            for part in new[1:]:
                incident.add(part, PARTS_MAX)
            self._save(incident)

    def failed(self, fact: f.Failed) -> None:
        evidence, now = fact.evidence, self._picture.now
        if not evidence.workers:
            return
        first = evidence.workers[0]
        part = Part(
            replica_id=evidence.replica_id,
            incarnation=evidence.incarnation,
            at=now - first.age_s,
            kind=first.kind,
            cause=first.cause,
            agent_id=fact.agent_id,
            host=fact.host,
        )
        is_known = self._find(part) is not None
        incident = self._add(part, evidence.incident)
        if not is_known:
            self._missed(part, incident)
        known = incident.part_of(evidence.replica_id, evidence.incarnation)
        if known is not None:
            if incident.closed_at is not None and known.is_told_otherwise(evidence):
                known.back_at = incident.closed_at = now
            known.tell(evidence, now, fact.agent_id, fact.host)
            incident.cost_s = max(incident.cost_s, evidence.stood_s)
        if self._picture.stage is f.Stage.ENDED:
            incident.end(now, f"the job has ended: {self._picture.words}")
        self._save(incident)

    def started(self, fact: f.Started) -> None:
        for part in self._open_parts(fact.replica_id):
            if part.is_followed_by(fact.incarnation) and part.started_at is None:
                part.started_at = self._picture.now

    def healed(self, fact: f.Healed) -> None:
        for part in self._open_parts(fact.replica_id):
            part.healed = fact.healed

    def moved(self, fact: f.Moved) -> None:
        for part in self._open_parts(fact.replica_id):
            part.set_aside = fact.words

    def went_on(self, fact: f.WentOn) -> None:
        for part in self._open_parts(fact.replica_id):
            part.goes_on = fact.words

    # ------------------------------------------------------------ what follows

    def run_rules(self) -> None:
        """After an event: note what the survivors did, and close incidents that are over."""
        picture = self._picture
        if self.gone_at is not None and picture.now >= self.gone_at:
            self.gone_at = None
            self.abandon(NOBODY_BACK)
        self.have_changed = True
        for incident in self.open:
            if picture.stage is f.Stage.ENDED:
                incident.end(picture.now, f"the job has ended: {picture.words}")
            else:
                note_response(picture, incident)
                note_returns(picture, incident)
            if incident.closed_at is not None:
                self._save(incident)
        self.open = [incident for incident in self.open if incident.closed_at is None]

    def record(self, incident: Incident, cost_s: float) -> SaveIncident:
        """The present state of the incident, for the agents that it concerns."""
        # An account that was lost with the last life lacks the former charges.
        incident.cost_s = max(incident.cost_s, cost_s)
        now = self._picture.now
        return SaveIncident(
            agents=tuple(part.agent_id for part in incident.parts),
            record=IncidentRecord(
                number=incident.number,
                incarnations=tuple(p.incarnation for p in incident.parts if p.evidence),
                is_open=incident.closed_at is None,
                document="",
            ),
            age_s=max(0.0, now - incident.first().at),
            document=document(incident, self._picture.job_id, now),
        )

    def steps_lost(self) -> int:
        """The number of steps that incidents have cost, also of incidents that were dropped.

        Several incidents after which the job went on in one quorum have cost these steps once.
        """
        lost: dict[str, int] = {}
        for incident in self:
            went_on = incident.response
            which = str(incident.number) if went_on is None else f"in {went_on.quorum}"
            lost[which] = max(lost.get(which, 0), incident.steps_lost())
        return self._lost_before + sum(lost.values())

    def documents(self, now: float) -> list[dict[str, object]]:
        """All incidents as plain JSON, with ``ago_s`` in place of a date."""
        return [document(incident, self._picture.job_id, now) for incident in self]

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
        assert self._picture.stage is not f.Stage.ENDED or not still, f"open after the end: {still}"

    # ------------------------------------------------------------ inside

    def _part_of(self, loss: Loss | ReplicaLost, kind: str, at: tuple[str, str] = ("", "")) -> Part:
        """``at``: the agent and its host, if they are known."""
        return Part(loss.replica_id, loss.incarnation, self._picture.now, kind, loss.cause, *at)

    def _find(self, part: Part) -> Incident | None:
        """The incident that has this incarnation.

        An incarnation that was out of reach and came back can be lost again.
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
        for incident in self.open:
            yield from (part for part in incident.parts if part.replica_id == replica_id)

    def _add(self, part: Part, number: int = 0) -> Incident:
        """The incident of this part: the one that has it, the one it belongs to, or a new one.

        ``number``: of the record that an earlier lighthouse has sent about it; 0: none.
        """
        known = self._find(part)
        if known is not None:
            return known
        if number:
            return self._told_earlier(part, number)
        for incident in reversed(self.open):
            is_near = part.at <= incident.began_at + CASCADE_S
            if is_near and incident.takes(part):
                incident.add(part, PARTS_MAX)
                return incident
        return self._begin(part)

    def _told_earlier(self, part: Part, number: int) -> Incident:
        """The files of the last lighthouse are lost: the incident continues under its number."""
        self.go_on_after(number)
        for incident in self._incidents:
            if incident.number == number:
                incident.add(part, PARTS_MAX)
                return incident
        return self._begin(part, number)

    def _goes_on(self, part: Part, follows: str) -> bool:
        """The incident was over when a worker was replaced, but then its replica was lost."""
        incident = self._find(replace(part, incarnation=follows))
        known = None if incident is None else incident.part_of(part.replica_id, follows)
        if incident is None or known is None or self._find(part) is not None:
            return False
        known.incarnation, known.started_at, known.back_at = part.incarnation, None, None
        incident.closed_at = None
        self.open = [*(other for other in self.open if other is not incident), incident]
        return True

    def _missed(self, part: Part, incident: Incident) -> None:
        """The loss, and perhaps its consequences, were reported to an earlier lighthouse."""
        incident.is_earlier |= incident.parts == [part]
        slot = self._picture.slots.get(part.replica_id)
        if slot is not None and slot.incarnation and part.is_followed_by(slot.incarnation):
            part.started_at = self._picture.now

    def _begin(self, part: Part, number: int = 0) -> Incident:
        if not number:
            self._number += 1
        picture = self._picture
        members = tuple(sorted(picture.members, key=replica_order))
        incident = Incident(
            number=number or self._number,
            began_at=part.at,
            noted_at=picture.now,
            step=picture.step or picture.step_apart,
            quorum=None if picture.quorum is None else picture.quorum.attempt.quorum_id,
            members=members,
            parts=[part],
            standing=standing_of(picture, members, but=part.replica_id),
        )
        self._drop_oldest()
        self.have_changed = True
        self._incidents.append(incident)
        self.open.append(incident)
        return incident

    def _drop_oldest(self) -> None:
        """Drop the oldest incident of a full table. The agents have it on disk."""
        if len(self._incidents) == INCIDENTS_MAX:
            oldest = self._incidents.popleft()
            self.open = [incident for incident in self.open if incident is not oldest]
            self._lost_before += oldest.steps_lost()

    def _save(self, incident: Incident) -> None:
        """The incident has changed. Save it, unless its evidence will follow in a moment."""
        is_told = any(part.evidence or part.kind == kinds.NODE for part in incident.parts)
        if incident.closed_at is not None or is_told:
            self.unsaved.append(incident)
