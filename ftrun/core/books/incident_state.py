"""One incident: its parts in order, what the survivors did, its cost.

Not here: which failures are one incident (incidents.py), its form as JSON (incident_record.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ftrun.core import failure_kinds as kinds
from ftrun.core.messages import FailureEvidence, Healed, Report

UNLISTED_MAX = 4096


@dataclass(slots=True)
class Part:
    """One incarnation that was lost.

    ``at``: when it failed, by the lighthouse's clock. ``signature``: of its error, if it happened
    before the first step. ``started_at``: when the next incarnation of its slot was started;
    ``back_at``: when that was in a quorum, or when nothing more is expected. ``set_aside``: why its
    slot went to another node; ``goes_on``: how the job continues without it.
    """

    replica_id: str
    incarnation: str
    at: float
    kind: str
    cause: str
    agent_id: str = ""
    host: str = ""
    signature: str = ""
    evidence: FailureEvidence | None = None
    started_at: float | None = None
    back_at: float | None = None
    healed: Healed | None = None
    set_aside: str = ""
    goes_on: str = ""

    def tell(self, evidence: FailureEvidence, now: float, agent_id: str, host: str) -> None:
        """Enter the agent's evidence, whose kind, cause and time replace the first report's."""
        first = evidence.workers[0]
        self.evidence = evidence
        self.kind, self.cause = first.kind, first.cause
        self.at = min(self.at, now - first.age_s)
        self.agent_id, self.host = agent_id, host

    def is_told_otherwise(self, evidence: FailureEvidence) -> bool:
        """Whether the agent reports another outcome than before, because the first did not hold."""
        return self.evidence is not None and self.evidence.words != evidence.words

    def is_followed_by(self, incarnation: str) -> bool:
        """Whether an incarnation in its slot means that the slot is back.

        An agent that was out of reach may return with the same incarnation.
        """
        return incarnation != self.incarnation or self.kind == kinds.NODE

    @property
    def is_consequence(self) -> bool:
        """Whether it follows from another failure, if there is one."""
        return self.kind in kinds.CONSEQUENCES


@dataclass(slots=True)
class Standing:
    """A member's position: its step, its activity, and its answer to the Interrupt.

    ``reductions``: the reductions of the step under way: "complete", "incomplete" or, without an
    answer, "".
    """

    replica_id: str
    step: int
    activity: str
    reductions: str = ""

    def note(self, reports: Sequence[Report]) -> None:
        """Enter the newest report of each of its workers."""
        self.step = max(report.state.step for report in reports)
        has_all = all(r.reduced is not None and r.reduced.step == r.state.step for r in reports)
        self.reductions = "complete" if has_all else "incomplete"


@dataclass(frozen=True, slots=True)
class Response:
    """How the others continued: a change of membership (history.py), and the groups that
    recompute.
    """

    kind: str
    quorum: str
    members: tuple[str, ...]
    survivors: tuple[str, ...]
    recomputes: tuple[str, ...]
    step: int | None
    duration_s: float


@dataclass(slots=True)
class Incident:
    """One incident.

    ``began_at``: the time of the first cause; ``noted_at``: when the lighthouse learnt of it.
    ``cost_s``: the replica-seconds that it has cost so far, by the job's account (account.py).
    ``members``: of the quorum at that time. ``unlisted``: incarnations beyond the limit of parts;
    ``not_listed``: the number of further ones. ``is_earlier``: an earlier life of the lighthouse
    has written it; then ``others_go_on``: a quorum is in force, and it is not known how it was
    formed.
    """

    number: int
    began_at: float
    noted_at: float
    step: int
    quorum: int | None
    members: tuple[str, ...]
    parts: list[Part]
    standing: list[Standing]
    response: Response | None = None
    unlisted: set[tuple[str, str]] = field(default_factory=set)
    closed_at: float | None = None
    ended_words: str = ""
    cost_s: float = 0.0
    end_verdict: str = kinds.ENDED
    not_listed: int = 0
    is_earlier: bool = False
    others_go_on: bool = False

    @property
    def is_in_quorum(self) -> bool:
        """Whether a member of the quorum has failed, so that the others had to respond."""
        return any(part.replica_id in self.members for part in self.parts)

    @property
    def unlisted_count(self) -> int:
        """The number of incarnations in it beyond the limit of parts."""
        return len(self.unlisted) + self.not_listed

    def in_order(self) -> list[Part]:
        """The first cause, and then its consequences."""
        return sorted(self.parts, key=lambda part: (part.is_consequence, part.at))

    def first(self) -> Part:
        return self.in_order()[0]

    def part_of(self, replica_id: str, incarnation: str) -> Part | None:
        key = (replica_id, incarnation)
        return next((p for p in self.parts if (p.replica_id, p.incarnation) == key), None)

    def takes(self, part: Part) -> bool:
        """Whether a new part belongs to this incident, which is open."""
        if part.is_consequence:
            return True
        first = self.first()
        return first.is_consequence or (part.signature != "" and part.signature == first.signature)

    def add(self, part: Part, parts_max: int) -> None:
        """Add an incarnation. Beyond the limit it is only counted."""
        if len(self.parts) < parts_max:
            self.parts.append(part)
        elif len(self.unlisted) < UNLISTED_MAX:
            self.unlisted.add((part.replica_id, part.incarnation))
        self.began_at = min(self.began_at, part.at)

    def close_if_over(self, now: float) -> None:
        """Close it if its replicas are back or not expected, and the others have continued."""
        waits = [part for part in self.parts if part.back_at is None]
        go_on = self.response is not None or self.others_go_on or not self.is_in_quorum
        if not waits and go_on:
            self.closed_at = now

    def end(self, now: float, words: str, verdict: str = kinds.ENDED) -> None:
        """The job has ended, or nothing more will be known of it; ``words``: why."""
        if self.closed_at is None:
            self.closed_at = now
            self.ended_words, self.end_verdict = words, verdict
        for part in self.parts:
            if part.back_at is None:
                part.back_at = now

    # ------------------------------------------------------------ verdict and cost

    def verdict(self) -> tuple[str, str]:
        """A kind of failure_kinds.py and its text for people; ("", "") while it is not known."""
        told = [part.evidence for part in self.in_order() if part.evidence is not None]
        for part in self.in_order():
            evidence, is_moved = part.evidence, bool(part.set_aside)
            if evidence is not None and evidence.verdict in kinds.ENDING_VERDICTS and not is_moved:
                return evidence.verdict, part.goes_on or evidence.words
        aside = [part.set_aside for part in self.parts if part.set_aside]
        if aside:
            return kinds.SET_ASIDE, aside[0]
        if self.ended_words:
            return self.end_verdict, self.ended_words
        if told:
            return told[0].verdict, told[0].words
        is_back = self.closed_at is not None
        return (kinds.RESTARTED, "its replicas are back") if is_back else ("", "")

    def steps_lost(self) -> int:
        """The number of steps that the job must train again."""
        if self.response is None:
            return max((x.evidence.steps_again for x in self.parts if x.evidence), default=0)
        step = self.response.step
        return 0 if step is None else max(0, self.step - step)
