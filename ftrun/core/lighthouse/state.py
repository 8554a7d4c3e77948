"""The state that all phases share: the time, the replicas, the quorum, the outstanding answers.

Plain data with the operations that keep it consistent. Not here: any decision (membership.py,
succession.py, switching.py, takeover.py).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial

from ftrun.core.books.facts import ChangeBegan, ChangeEnded, Fact, JobKnown
from ftrun.core.ids import NO_ATTEMPT, Attempt, replica_order
from ftrun.core.lighthouse.attempts import AttemptCounter
from ftrun.core.lighthouse.departed import DepartedMembers
from ftrun.core.lighthouse.events import JournalState, LighthouseSettings
from ftrun.core.lighthouse.operation_table import OperationTable
from ftrun.core.lighthouse.outbox import Outbox
from ftrun.core.lighthouse.phases import IN_QUORUM, TRANSITIONS, Phase
from ftrun.core.lighthouse.replicas import Replica, Replicas
from ftrun.core.lighthouse.slots import SlotTable
from ftrun.core.lighthouse.waiting import Waiting
from ftrun.core.messages import EndJob, JobAccount, JobSpec, LeaveReason, Loss, Report, ToWorker
from ftrun.core.quorum import Quorum

NO_SPEC = JobSpec(
    job_id="",
    replicas=0,
    workers_per_replica=1,
    min_replicas=1,
    join_timeout_s=0.0,
    heartbeat_timeout_s=0.0,
    isolation_limit_s=0.0,
)
"""A stand-in for the job's settings, until the first agent brings them."""

LARGE_MEMBERS = 1000
LARGE_MEMBER_S = 0.005
"""Each member above ``LARGE_MEMBERS`` lengthens every wait for answers by this time."""


class MembershipState:
    """The lighthouse's memory of the membership.

    ``quorum``: in force or being built; in FENCE the last one. ``quorum_since``: when it was
    installed, or when this lighthouse began. ``prior``: during SWITCH the one before it. ``live``:
    the members of both that have not been removed. ``latecomers``: replicas whose set-up waits
    until the others train (presence.py). ``drains``: replicas that have been asked to leave at a
    boundary. ``interrupt``: the attempt that survivors must have given up in REJOIN. ``step_max``:
    the highest step that a member is known to have reached. ``compared``: the lineage of the state
    at which all members were judged by the ends of their scripts; ``unlike``: how they differ
    there, as the end of a sentence; "": no difference is known (divergence.py). ``groups_placed``:
    as in Hello, the most that any agent has reported. ``contributors_min``: with fewer contributors
    the job's scripts commit nothing, by their Reports. ``stalled``: members that wait for peers,
    and since when. ``too_few``: members that repeat their step because too few contribute to it,
    and since when. ``reassigned``: agents that have not been sent their changed slots.
    ``ended_at``: when the job ended; None: not yet, or under an earlier lighthouse.
    ``agents_seen``: the most agents that were attached at once. ``changing_since``: when the change
    of membership under way began.

    For the books, which receive it (telling.py): ``facts``: what has happened; ``changed``: the
    slots of which something has changed; ``told``: the job's phase, step and quorum that were sent
    last.

    Handlers note what has happened, and the rules decide once, when all of an event is noted.
    ``removed``: members that were removed in this event; ``failure``: why the attempt cannot
    continue, if no member was lost; ``replacements``: replicas to be killed and restarted;
    ``is_dirty``: something happened that may end a wait or the job.
    """

    def __init__(self, settings: LighthouseSettings, journal: JournalState, now: float) -> None:
        self.settings = settings
        self.spec = journal.spec if journal.spec is not None else NO_SPEC
        self.attempts = AttemptCounter(journal.epoch + 1)
        self.changed: set[str] = set()
        self.facts: list[Fact] = []
        self.told: tuple[Phase | None, int, Quorum | None] = None, 0, None
        self.replicas = Replicas(self.changed)
        self.slots = SlotTable(self.spec.replicas, self.changed)
        for replica_id in journal.finished:
            self.slots.finish(replica_id)
        for replica_id in journal.withdrawn:
            self.slots.withdraw(replica_id)
        for absence in journal.absent:
            self.slots.go_without(absence)
        self.operations = OperationTable(journal.operations)
        self.outbox = Outbox(self.replicas)
        self.changing_since: float | None = None
        lines = partial(deque[tuple[float, Phase, object]], maxlen=settings.story_lines_max)
        self._stories: dict[str, deque[tuple[float, Phase, object]]] = defaultdict(lines)
        self.phase = Phase.TAKEOVER
        self.now = now
        self.since = now
        self.quorum = journal.quorum
        self.switch_step = journal.switch_step
        self.quorum_since = now
        self.prior: Quorum | None = None
        self.live: set[str] = set()
        self.latecomers: frozenset[str] = frozenset()
        self.drains: set[str] = set()
        self.stalled: dict[str, float] = {}
        self.too_few: dict[str, float] = {}
        self.reassigned: set[str] = set()
        self.interrupt: Attempt = NO_ATTEMPT
        self.step_max = 0
        self.compared = self.unlike = ""
        self.contributors_min = 0
        self.groups_placed = 0
        self.departed = DepartedMembers()
        self.waiting = Waiting()
        self.last_message_at: dict[str, float] = {}
        self.removed: list[Loss] = []
        self.failure = ""
        self.replacements: list[Loss] = []
        self.is_dirty = True
        self.outcome = journal.outcome
        self.ended_at: float | None = None
        self.agents_seen = journal.agents_seen
        if self.outcome is not None:
            self.phase = Phase.ENDED
        self._keeps_spec = journal.spec is not None
        if journal.spec is not None:
            self._job_is_known()

    @property
    def workers(self) -> int:
        return self.spec.workers_per_replica

    @property
    def nodes(self) -> int:
        """How many agents the job waits for at first."""
        return min(self.spec.nodes, self.groups_placed or self.spec.nodes)

    @property
    def needed(self) -> int:
        """The smallest quorum that may be formed; replicas that have finished do not count."""
        return max(1, min(self.least, self.slots.open_count))

    @property
    def least(self) -> int:
        """How many replicas the job needs, by its options and by its scripts."""
        return max(self.spec.min_replicas, self.contributors_min)

    def enter(self, phase: Phase) -> None:
        """Change the phase. The new phase waits for no answer until ``expect`` is called."""
        assert phase in TRANSITIONS[self.phase], f"{self.phase} → {phase}"
        self._keeps_spec = True
        self.phase = phase
        self.since = self.now
        self.failure = ""
        self.is_dirty = True
        self.waiting.clear()

    def expect(self, replica_ids: Iterable[str], timeout_s: float) -> None:
        """Wait for answers of all workers of these replicas, for ``timeout_s`` at most."""
        until = self.now + self.timeout_for(timeout_s, len(self.live))
        self.waiting.expect(replica_ids, self.workers, until)

    def install(
        self,
        quorum: Quorum | None,
        live: Iterable[str],
        prior: Quorum | None = None,
        switch_step: int | None = None,
    ) -> None:
        """Set the quorum and its members: nothing else writes these four fields as a whole."""
        if quorum is not None and (self.quorum is None or self.quorum.attempt != quorum.attempt):
            self.quorum_since = self.now
        self.quorum, self.prior, self.switch_step = quorum, prior, switch_step
        former, self.live = self.live, set(live)
        self.changed |= former ^ self.live
        self.replicas.ready -= self.live
        self.is_dirty = True

    def readmit(self, replica_ids: Collection[str]) -> None:
        """Removed members are back: they count as survivors again."""
        for name in replica_ids:
            self.departed.release(name, self.replicas[name].incarnation)
        self.live |= set(replica_ids)
        self.changed |= set(replica_ids)
        self.replicas.ready -= self.live
        self.is_dirty = True

    def put_off(self, replica_ids: Collection[str]) -> None:
        """Members become newcomers again, which join at a later step."""
        self.live -= set(replica_ids)
        self.changed |= set(replica_ids)
        self.replicas.ready |= set(replica_ids)
        self.is_dirty = True

    def timeout_for(self, timeout_s: float, replicas: int) -> float:
        """Lengthen a timeout for very many replicas, whose messages all pass one process."""
        return timeout_s + max(0, replicas - LARGE_MEMBERS) * LARGE_MEMBER_S

    def open(self, spec: JobSpec) -> None:
        """The first agent has brought the job."""
        self.spec = spec
        self.slots = SlotTable(spec.replicas, self.changed)
        self._job_is_known()

    def _job_is_known(self) -> None:
        back_within_s = max(self.silence_s, self.spec.join_timeout_s)
        slots = tuple(self.slots)
        self.facts.append(JobKnown(self.spec.job_id, slots, back_within_s))

    def begin_change(self, kind: str, reason: str) -> None:
        """The membership changes, or the change under way has one more reason."""
        if self.changing_since is None:
            self.changing_since = self.now
        self.facts.append(ChangeBegan(kind, reason))

    def end_change(self, quorum: Quorum | None, words: str = "") -> None:
        """The change has led to this quorum; or to nothing, for the reason ``words``."""
        self.changing_since = None
        self.facts.append(ChangeEnded(quorum, words))

    def send(self, replica_ids: Iterable[str], message: ToWorker) -> None:
        """Send to every worker of these replicas, if they live."""
        self.outbox.send(replica_ids, message)

    def journal(self) -> None:
        """Write to disk what a restarted lighthouse must know.

        During a takeover the job is left out: a journal with a job and no quorum means that no
        quorum was ever issued, which is not certain yet.
        """
        record = JournalState(
            epoch=self.attempts.epoch,
            quorum=self.quorum,
            switch_step=self.switch_step,
            spec=self.spec if self._keeps_spec else None,
            finished=self.slots.finished(),
            unaccounted=self.departed.unaccounted(),
            outcome=self.outcome,
            agents_seen=self.agents_seen,
            withdrawn=self.slots.withdrawn,
            absent=self.slots.absent(),
            operations=self.operations.journaled() if self.operations else (),
        )
        self.outbox.journal(record)

    def outrun(self, report: Report) -> None:
        """Keep our attempts above every attempt that a worker has seen (Q1, Q2)."""
        seen = [report.interrupted]
        seen += [quorum.attempt for quorum in report.quorums()]
        if self.attempts.outrun(max(seen)):
            self.journal()

    def note_report(self, replica: Replica, rank: int, report: Report) -> None:
        """Keep a worker's newest report; in a takeover the last one of a replica may end it."""
        self.outrun(report)
        self.contributors_min = max(self.contributors_min, report.contributors_min)
        replica.reports[rank] = report
        if self.phase is Phase.TAKEOVER:
            self.is_dirty |= replica.is_known(self.workers)

    def note_too_few(self, replica_id: str, since: float) -> None:
        """A member repeats its step, since then, because too few replicas contribute to it."""
        if replica_id not in self.too_few:
            self.too_few[replica_id] = since
            self.is_dirty = True

    def note_drains(self, replica_ids: Iterable[str]) -> None:
        """These replicas have been asked to leave at a boundary."""
        self.drains |= set(replica_ids)
        self.is_dirty = True

    def note_leaving(self, replica: Replica, how: LeaveReason) -> None:
        """A replica leaves: it joins no quorum any more."""
        replica.leaving = how
        self.replicas.ready.discard(replica.replica_id)
        self.is_dirty = True

    def record(self, replica_id: str, what: object) -> None:
        """Add a line to this replica's story; its text is made when it is read."""
        self._stories[replica_id].append((self.now, self.phase, what))

    def story(self, replica_id: str) -> list[str]:
        """This replica's last lines, oldest first."""
        lines = self._stories.get(replica_id, ())
        return [f"{when:.3f} {phase.value}: {what}" for when, phase, what in lines]

    def attempts_of(self, replica: Replica) -> tuple[Attempt, ...]:
        """The attempts under which this live member may be training."""
        quorums = (self.prior, self.quorum)
        key = (replica.replica_id, replica.incarnation)
        return tuple(q.attempt for q in quorums if q is not None and q.index(*key) is not None)

    def retire(self, replica: Replica, *, is_dead: bool) -> None:
        """Take a member out of the quorum without interrupting the others."""
        name = replica.replica_id
        self.live.discard(name)
        self.changed.add(name)
        self.drains.discard(name)
        self.stalled.pop(name, None)
        self.too_few.pop(name, None)
        self.waiting.drop(name)
        last_message_at = self.last_message_at.get(replica.agent_id, self.since)
        self.departed.add(replica, last_message_at, is_dead)
        self.is_dirty = True

    @property
    def silence_s(self) -> float:
        """How long an agent must be silent before its replicas are fenced: they cannot train any
        more.

        By the isolation limit their lease is over, which they count from when they asked for it.
        The heartbeat timeout is a margin for clocks that run at different speeds.
        """
        return self.spec.isolation_limit_s + self.spec.heartbeat_timeout_s

    def close_quorum(self, quorum: Quorum) -> None:
        """``quorum`` is issued: what its predecessor's members do has no effect any more."""
        self.departed.close_quorum(quorum.members, self.now - self.silence_s)

    def remove_member(self, replica: Replica, cause: str, *, is_dead: bool) -> None:
        """Take a member out of the quorum, which cannot continue without it."""
        self.retire(replica, is_dead=is_dead)
        if self.phase in IN_QUORUM:
            self.removed.append(Loss(replica.replica_id, replica.incarnation, cause))

    def replace(self, replica_ids: Iterable[str], cause: str) -> None:
        """Have the agents of these replicas kill and restart them, because they cannot continue."""
        found = (self.replicas.get(name) for name in sorted(replica_ids, key=replica_order))
        self.replacements += [Loss(r.replica_id, r.incarnation, cause) for r in found if r]

    def end(self, exit_code: int, reason: str, kind: str = "") -> None:
        """The job is complete or has failed: inform all agents. A failed job leaves no quorum."""
        self.end_change(None, reason)
        self.enter(Phase.ENDED)
        self.removed, self.replacements = [], []  # they have no consequences any more
        if exit_code:
            self.install(None, self.live)
        self.outcome = EndJob(exit_code, reason, kind)
        self.ended_at = self.now
        self.journal()
        self.outbox.notice("ended", (), f"The job has ended: {reason}.")
        self.outbox.to_all(self.outcome)

    def account_for(self, account: JobAccount) -> None:
        """The job ends in this event: add the account of its time, which its agents receive."""
        assert self.outcome is not None
        former, self.outcome = self.outcome, replace(self.outcome, account=account)
        self.outbox.swap(former, self.outcome)
