"""A restarted lighthouse finds the quorum in force, from its journal and from reports.

During a grace period it collects reports and issues nothing (Q6). ``Takeover.verdict`` then finds
the quorum in force and its members that are back, and ``conclude`` continues with them. Not here:
replicas that are in no quorum (membership.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftrun.core.ids import Attempt
from ftrun.core.lighthouse.events import JournalState
from ftrun.core.lighthouse.forming import Forming
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.switching import Switching
from ftrun.core.lighthouse.words import replicas
from ftrun.core.messages import Cancel, Loss, Report, SwitchPromise
from ftrun.core.quorum import Member, Quorum


@dataclass(frozen=True, slots=True)
class Verdict:
    """The quorum in force as a takeover has found it. ``phase``: how to continue.

    ``live``: members that are back; ``missing``: members that are not. ``behind``: members that are
    back and not in the quorum in force yet; a confirmed switch leads them there.
    """

    phase: Phase
    live: frozenset[str] = frozenset()
    missing: tuple[Member, ...] = ()
    behind: frozenset[str] = frozenset()


class Takeover:
    """Finds the quorum in force: the one with the highest attempt in the journal and in reports.

    A quorum of a switch counts once the journal or any report has its confirmation.
    ``is_disturbed``: a replica was lost or reported an error during the grace period.
    ``grace_until``: its end; None: it has not begun. ``unreached``: the stores of nodes that a peer
    does not reach and that have not attached, with the reason: their members are not waited for
    (reach.py).
    """

    def __init__(self, state: MembershipState, journal: JournalState) -> None:
        self.grace_until: float | None = None
        self.quorum = journal.quorum
        self.switch_step = journal.switch_step
        self.is_disturbed = False
        self.unreached: dict[str, str] = {}
        self._journaled = journal.quorum.attempt if journal.quorum is not None else None
        self._has_journal = journal.spec is not None or journal.quorum is not None
        self._ran_before = False
        self._is_put_off = False
        self._state = state
        self._began_at = state.now
        self._prior: Quorum | None = None
        self._silent: tuple[Quorum, Member] | None = None
        self._begin_grace(journal)
        for member in journal.unaccounted:
            state.departed.add(member, state.now, is_dead=False)

    def _begin_grace(self, journal: JournalState) -> None:
        """Begin the grace period, if the journal allows it.

        A journal with a job and no quorum needs none: the journal is written before a quorum is
        issued, so there never was a quorum. With neither, the grace period begins when the first
        agent attaches.
        """
        state = self._state
        if journal.quorum is not None:
            self.grace_until = self._grace_over(len(journal.quorum.members))
        elif journal.spec is not None:
            self.grace_until = state.now

    def agent_came(self, nothing_ran: bool) -> None:
        """An agent has attached. ``nothing_ran``: no replica, on it or on any agent before it."""
        state = self._state
        self._ran_before = not nothing_ran
        if self.grace_until is None:
            self.grace_until = self._grace_over(state.spec.replicas)
        if nothing_ran and self._all_agents_here and self.quorum is None:
            self.grace_until = state.now

    @property
    def is_grace_over(self) -> bool:
        """Whether the time is over; ``put_off`` may still prolong the grace period."""
        return self.grace_until is not None and self._state.now >= self.grace_until

    def _grace_over(self, replicas: int) -> float:
        """The end of a grace period that begins now. It is longer for large quorums."""
        state = self._state
        return state.now + state.timeout_for(state.settings.takeover_grace_s, replicas)

    @property
    def _all_agents_here(self) -> bool:
        return len(self._state.outbox.agents) >= self._state.spec.nodes

    def put_off(self) -> bool:
        """Whether to prolong the grace period: the journal is lost and some worker has not
        reported.

        That worker may train in a quorum that no other has reported, until it is isolated (Q3).
        """
        state = self._state
        until = self._began_at + state.silence_s
        if self._has_journal or not self._ran_before or self._all_have_reported:
            return False
        if state.now >= until:
            return False
        self._is_put_off = True
        self.grace_until = until
        known = sum(replica.is_known(state.workers) for replica in state.replicas.values())
        text = (
            f"The lighthouse has lost its journal, and {known} of {state.spec.replicas} replicas "
            f"on {len(state.outbox.agents)} of {state.spec.nodes} agents have reported: it decides "
            f"nothing until all have, or for {until - state.now:.0f} s at most."
        )
        state.outbox.notice("waiting", (), text)
        return True

    @property
    def _all_have_reported(self) -> bool:
        """Whether no other worker can train: every slot is here, and all its workers have reported.

        More agents than ``nodes`` may have attached before the journal was lost, so it is not
        enough to count agents.
        """
        state = self._state
        has_all_slots = len(state.replicas) >= state.spec.replicas
        all_known = all(r.is_known(state.workers) for r in state.replicas.values())
        return self._all_agents_here and has_all_slots and all_known

    def received(self, report: Report) -> None:
        if report.in_force is not None:
            self._consider(report.in_force, None)
        promise = _promise(report)
        if report.pending is not None and promise is not None and promise.confirmed:
            quorum = replace(report.pending.quorum, step=promise.step)
            self._consider(quorum, promise.step)

    def _consider(self, quorum: Quorum, switch_step: int | None) -> None:
        known = self.quorum
        if known is None or quorum.attempt > known.attempt:
            self._prior = known
            self.quorum, self.switch_step = quorum, switch_step
        elif quorum.attempt == known.attempt:
            self.switch_step = self.switch_step if self.switch_step is not None else switch_step
        elif self._prior is None or quorum.attempt > self._prior.attempt:
            self._prior = quorum

    def awaited(self) -> dict[str, str]:
        """The hosts of members of the quorum in force that may still return, by their stores."""
        if self.quorum is None or self._state.phase is not Phase.TAKEOVER:
            return {}
        find = self._state.replicas.find
        return {
            member.store: endpoint.host
            for member in self.quorum.members
            if not (self._is_gone(member) or find(member.replica_id, member.incarnation))
            for endpoint in member.endpoints[:1]
        }

    # ------------------------------------------------------------ the verdict

    @property
    def prior(self) -> Quorum | None:
        """The quorum that a confirmed switch replaces, if any member may still train in it."""
        return self._prior if self.switch_step is not None else None

    def is_complete(self) -> bool:
        """Whether the grace period can end: no member of the quorum in force is awaited any more.

        All its members have reported, or have died or ended, or are out of reach. Interrupted
        members may not know a later quorum yet, and lost ones may have known one. No quorum is
        later than the journal's, because the journal is written first. A replica that is out of
        reach may live, and is fenced as at the grace period's end. Without a journal a switch that
        the members have promised may be confirmed, and perhaps only its newcomers know that (Q5).
        """
        quorum, state = self.quorum, self._state
        if self._is_put_off and self._all_have_reported:
            return True
        if quorum is None or self._is_awaited(quorum):
            return False
        verdict = self.verdict()
        if verdict.phase in (Phase.STEADY, Phase.SWITCH):
            return (
                self._has_journal or self._all_have_reported or not self._is_any_promised(verdict)
            )
        if quorum.attempt != self._journaled or not all(map(self._is_lost, verdict.missing)):
            return False
        live = [state.replicas[name] for name in verdict.live]
        return bool(live) and all(r.is_known(state.workers) for r in live)

    def _is_awaited(self, quorum: Quorum) -> bool:
        """Whether a member may still return, or is back and some of its workers have not reported.

        Caches one such member: checking all of them at every report would be O(groups²).
        """
        known = self._silent
        if known is not None and known[0] is quorum and self._is_silent(known[1]):
            return True
        for member in reversed(quorum.members):
            if self._is_silent(member):
                self._silent = (quorum, member)
                return True
        return False

    def _is_silent(self, member: Member) -> bool:
        replica = self._state.replicas.find(member.replica_id, member.incarnation)
        if replica is None:
            return not self._is_lost(member)
        return not replica.is_known(self._state.workers)

    def _is_any_promised(self, verdict: Verdict) -> bool:
        """Whether a worker has promised a switch that no report confirms."""
        live = [self._state.replicas[name] for name in verdict.live]
        promises = [_promise(report) for replica in live for report in replica.reports.values()]
        return any(promise is not None and not promise.confirmed for promise in promises)

    def verdict(self) -> Verdict:
        """How to continue with the replicas that have reported so far."""
        quorum, find = self.quorum, self._state.replicas.find
        if quorum is None:
            return Verdict(Phase.EMPTY)
        members = list(quorum.members)
        present = [r for x in members if (r := find(x.replica_id, x.incarnation))]
        behind = {r.replica_id for r in present if not self._is_under(r, quorum.attempt)}
        if self.prior is not None and (behind or not members):
            names = {member.replica_id for member in members}
            old = [x for x in self.prior.members if x.replica_id not in names]
            found = [r for x in old if (r := find(x.replica_id, x.incarnation))]
            members += old
            present += found
            behind |= {r.replica_id for r in found}
        here = {replica.replica_id for replica in present}
        missing = tuple(member for member in members if member.replica_id not in here)
        phase = self._phase(present, missing, behind)
        return Verdict(phase, frozenset(here), missing, frozenset(behind))

    def _phase(
        self, present: list[Replica], missing: tuple[Member, ...], behind: set[str]
    ) -> Phase:
        assert self.quorum is not None
        if missing or self.is_disturbed or not present:
            return Phase.REJOIN
        if not all(replica.is_known(self._state.workers) for replica in present):
            return Phase.REJOIN
        if not behind:
            return Phase.STEADY
        if self.switch_step is None:
            return Phase.REJOIN
        late = [replica for replica in present if replica.replica_id in behind]
        can_switch = all(self._has_promised(replica) for replica in late)
        return Phase.SWITCH if can_switch else Phase.REJOIN

    def _is_under(self, replica: Replica, attempt: Attempt) -> bool:
        """Whether all its workers train under ``attempt`` and have not given it up."""
        reports = replica.reports.values()
        return replica.is_known(self._state.workers) and all(
            r.in_force is not None and r.in_force.attempt == attempt > r.interrupted
            for r in reports
        )

    def _has_promised(self, replica: Replica) -> bool:
        """Whether each worker is in the quorum in force or has promised to switch to it."""
        assert self.quorum is not None
        attempt = self.quorum.attempt
        return all(
            (r.in_force is not None and r.in_force.attempt == attempt)
            or (r.pending is not None and r.pending.quorum.attempt == attempt and _promise(r))
            for r in replica.reports.values()
        )

    # ------------------------------------------------------------ acting upon it

    def conclude(self, forming: Forming, switching: Switching) -> None:
        """The grace period is over: enter the phase of the verdict."""
        state, verdict = self._state, self.verdict()
        prior = self.prior if verdict.phase is Phase.SWITCH else None
        state.install(self.quorum, verdict.live, prior, self.switch_step)
        steps = [r.state.step for name in state.live for r in state.replicas[name].reports.values()]
        state.step_max = max(steps, default=0)
        lost = [self._strike(member) for member in verdict.missing]
        if verdict.phase is Phase.EMPTY:
            state.enter(Phase.EMPTY)
        elif not state.live and self.quorum is not None and not self.quorum.members:
            state.install(None, ())  # all had left
            state.enter(Phase.EMPTY)
        elif verdict.phase is Phase.STEADY:
            self._adopt()
        elif verdict.phase is Phase.SWITCH:
            switching.carry_out(verdict.live, verdict.behind)
        else:
            state.begin_change("takeover", _reason(lost))
            forming.interrupt()
        if self.quorum is not None:
            text = f"A lighthouse leads again and knows of {replicas(state.live)}."
            state.outbox.notice("takeover", state.live, text)
        state.journal()

    def _strike(self, member: Member) -> Loss:
        state, name = self._state, member.replica_id
        state.departed.add(member, self._began_at, self._is_gone(member))
        absent = self.unreached.get(member.store, "not back after the lighthouse's restart")
        return Loss(name, member.incarnation, "gone" if self._is_gone(member) else absent)

    def _is_lost(self, member: Member) -> bool:
        """Whether it is not waited for any more."""
        return member.store in self.unreached or self._is_gone(member)

    def _is_gone(self, member: Member) -> bool:
        """Whether it cannot return, because it has died or ended well."""
        if member.replica_id not in self._state.slots:
            return False
        slot = self._state.slots[member.replica_id]
        return slot.is_finished or slot.dead == member.incarnation

    def _adopt(self) -> None:
        """Nothing was lost: promises to a switch that was never confirmed are void."""
        state = self._state
        assert self.quorum is not None
        state.enter(Phase.STEADY)
        promised = {
            report.pending.quorum.attempt
            for name in state.live
            for report in state.replicas[name].reports.values()
            if report.pending is not None
        }
        for attempt in sorted(promised):
            state.send(state.live, Cancel(attempt))


def _reason(lost: list[Loss]) -> str:
    return "; ".join(f"replica {x.replica_id}: {x.cause}" for x in lost) or "it was interrupted"


def _promise(report: Report) -> SwitchPromise | None:
    return report.pending.promise if report.pending is not None else None
