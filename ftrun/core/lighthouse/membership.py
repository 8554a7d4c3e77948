"""Decides which replicas train together, from workers' messages and from losses of replicas.

The theory and the table of phases are in phases.py. Handlers only note what has happened;
``run_rules`` then applies the rules of the phase until nothing changes any more. The rules that
start from a standstill are in forming.py, those of switches in switching.py, the first rule of a
restarted lighthouse in takeover.py; leaving.py and losses.py take replicas out. Not here: agents,
streams, heartbeats and slots (machine.py, running.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftrun.base.errors import ExitCode
from ftrun.core import messages as m
from ftrun.core.activity import FOR_PEERS, REACHES_NO_LATER, Activity
from ftrun.core.failure_kinds import ALL_LEFT, BY_SCRIPT
from ftrun.core.ids import Attempt
from ftrun.core.lighthouse.divergence import Divergence
from ftrun.core.lighthouse.events import JournalState
from ftrun.core.lighthouse.forming import Forming
from ftrun.core.lighthouse.leaving import Leaving
from ftrun.core.lighthouse.losses import Losses
from ftrun.core.lighthouse.outcome import outcome
from ftrun.core.lighthouse.phases import IN_QUORUM, Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.standoff import Standoff
from ftrun.core.lighthouse.standstill import Standstill
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.switching import Switching
from ftrun.core.lighthouse.takeover import Takeover
from ftrun.core.lighthouse.words import replicas

TRAINING = frozenset({Phase.STEADY, Phase.PREPARE, Phase.PROPOSE, Phase.SWITCH})
HEALED_NOTICES_MAX = 16
RULES_MAX = 100
"""The rules loop if this many in a row change something."""


class Membership:
    """The phase machine. ``run_rules`` puts the consequences of an event into the outbox."""

    def __init__(self, state: MembershipState, journal: JournalState) -> None:
        self.state = state
        self.forming = Forming(state)
        self.switching = Switching(state)
        self.takeover = Takeover(state, journal)
        self.losses = Losses(state, self.takeover)
        self.leaving = Leaving(state, self.losses)
        self.standstill = Standstill(state)
        self.standoff = Standoff(state)
        self.divergence = Divergence(state)
        self._handlers: dict[type, Callable[[Replica, int, Any], None]] = {
            m.Report: self._on_report,
            m.Built: self._on_built,
            m.BuildFailed: self._on_build_failed,
            m.Promised: self.switching.on_promised,
            m.Refused: self.switching.on_refused,
            m.InForce: self._on_in_force,
            m.Errored: self._on_errored,
            m.Healed: self._on_healed,
            m.Leaving: self.leaving.on_leaving,
            m.Progress: self._on_progress,
        }
        self._rules: dict[Phase, Callable[[], bool]] = {
            Phase.TAKEOVER: self._take_over,
            Phase.EMPTY: self.forming.gather,
            Phase.BUILD: self.forming.build,
            Phase.STEADY: self._steady,
            Phase.PREPARE: self.switching.prepare,
            Phase.PROPOSE: self.switching.propose,
            Phase.SWITCH: self.switching.complete,
            Phase.REJOIN: self.forming.rejoin,
            Phase.FENCE: self.forming.departed,
        }

    def end(self, exit_code: int, reason: str, kind: str = "") -> None:
        """End the job; a switch under way is cancelled. ``kind``: see messages.EndJob."""
        self.switching.abandon()
        self.state.end(exit_code, reason, kind)

    def end_if_deserted(self) -> None:
        """All nodes leave: the job ends once nothing runs on them, so that its next run is a new
        job.

        A replica that has left the job keeps its slot until its processes are gone.
        """
        state = self.state
        is_held = any(slot.agent_id and not slot.is_finished for slot in state.slots.values())
        if state.phase is Phase.EMPTY and not len(state.replicas) and not is_held:
            self.end(int(ExitCode.PREEMPTED), "all nodes have left", ALL_LEFT)

    # ------------------------------------------------------------ the rules

    def run_rules(self) -> None:
        """Apply rules until none changes anything, once all of an event is noted."""
        if self.divergence.ends and self.state.outcome is None:
            self.end(int(ExitCode.CORRUPTED), self.divergence.ends)
        if self.state.spec.hang_timeout_s:
            self._end_standstill()
            self._end_standoff()
        for _ in range(RULES_MAX):
            if self.state.phase is Phase.ENDED or not self._apply_rules():
                self.state.is_dirty = False
                return
        raise AssertionError(f"the rules of {self.state.phase} do not come to an end")

    def _end_standstill(self) -> None:
        """All members wait for one whose loop stands still: replace it."""
        found = self.standstill.find()
        if found is not None:
            replica_id, cause = found
            self.state.replace([replica_id], cause)

    def _end_standoff(self) -> None:
        """Members wait for each other for good: replace some of them, or end the job."""
        found = self.standoff.find()
        if found is not None and found.given_up:
            self.state.replace(found.given_up, found.cause)
        elif found is not None:
            self.end(1, found.cause, BY_SCRIPT)

    @property
    def may_move(self) -> bool:
        """Whether ``run_rules`` has anything to do apart from deadlines.

        While answers are outstanding, only the last of them moves anything.
        """
        state = self.state
        return (
            state.is_dirty
            or state.waiting.done
            or bool(state.removed or state.failure or state.replacements)
        )

    def _apply_rules(self) -> bool:
        """Apply one rule; False if none had anything to do."""
        state = self.state
        if state.replacements:
            losses, state.replacements = state.replacements, []
            self.losses.lose(losses, is_dead=False, restart=True)
            return True
        if state.is_dirty and self.leaving.is_over():
            self.end(*outcome(state))
            return True
        if self.leaving.finish_at is not None and state.now >= self.leaving.finish_at:
            self.leaving.remove_finished()
        if state.phase in IN_QUORUM and (state.removed or state.failure):
            return self._break_up()
        if state.too_few and self._are_others_here():
            return self._take_others()
        return self._rules[state.phase]()

    def next_deadline(self) -> float | None:
        """When time alone will make a rule apply."""
        if self.state.phase is Phase.ENDED:
            return None
        stands = self.standstill.next_deadline(), self.standoff.next_deadline()
        leaving = self.leaving.finish_at, self.leaving.gathered_at
        times = (self.deadline, *leaving, *stands)
        return min((t for t in times if t is not None), default=None)

    @property
    def deadline(self) -> float | None:
        """When the phase's wait ends by time alone."""
        state = self.state
        match state.phase:
            case Phase.TAKEOVER:
                return self.takeover.grace_until
            case Phase.EMPTY | Phase.FENCE:
                return self.forming.goes_on_at
            case Phase.STEADY:
                return self.switching.begins_at
            case Phase.REJOIN if state.waiting.done:
                return self.forming.goes_on_at
            case _:
                return state.waiting.until

    def _break_up(self) -> bool:
        """The attempt cannot continue: interrupt all, or replace the replica that fails most
        often.
        """
        state = self.state
        if not state.removed and self.forming.is_exhausted():
            state.failure = ""
            self.forming.replace_worst()
            return True
        self.switching.abandon()
        causes = [f"replica {loss.replica_id}: {loss.cause}" for loss in state.removed]
        kind = "shrink" if state.removed else "retry"
        state.begin_change(kind, "; ".join(causes) or state.failure)
        self.leaving.remove_finished()
        state.removed = []
        self.forming.interrupt()
        return True

    def _are_others_here(self) -> bool:
        """Whether other replicas could join a quorum that commits nothing as it is."""
        state = self.state
        if state.phase is Phase.SWITCH and state.quorum is not None and state.quorum.newcomers:
            return True
        return state.phase in TRAINING and bool(state.replicas.ready)

    def _take_others(self) -> bool:
        """Let ready replicas join at this step: the quorum reaches no later one for a switch."""
        state = self.state
        self.switching.abandon()
        state.begin_change("grow", f"too few contribute at step {state.step_max}")
        self.forming.interrupt()
        return True

    # ------------------------------------------------------------ messages of workers

    def received(self, replica: Replica, rank: int, message: m.FromWorker) -> None:
        """Take a message of one worker of a living replica."""
        self._handlers[type(message)](replica, rank, message)

    def _on_report(self, replica: Replica, rank: int, report: m.Report) -> None:
        state = self.state
        if replica.leaving is m.LeaveReason.FINISHED and not replica.has_ended:
            replica = self.leaving.begins_anew(replica)  # a Manager that has left reports no more
        state.note_report(replica, rank, report)
        if replica.replica_id in state.live:
            self._member_reported(replica, rank, report)
        elif state.phase is Phase.TAKEOVER:
            self.takeover.received(report)
        else:
            self._admit(replica)

    def _member_reported(self, replica: Replica, rank: int, report: m.Report) -> None:
        state = self.state
        state.step_max = max(state.step_max, report.state.step)
        if state.phase is Phase.REJOIN:
            if report.interrupted >= state.interrupt:
                state.waiting.answer(replica.replica_id, rank)
        elif any(report.interrupted >= attempt for attempt in state.attempts_of(replica)):
            own = bool(report.refused)
            self._fail(replica, report.refused or "a worker has given the quorum up", own=own)

    def _admit(self, replica: Replica) -> None:
        """A replica outside the quorum has reported: note whether it is ready to join one."""
        state, plan = self.state, self.switching.plan
        if plan is not None and replica.replica_id in plan.quorum.newcomers:
            return
        if replica.leaving or not replica.is_known(state.workers):
            return
        if not replica.is_in_quorum():
            state.replicas.ready.add(replica.replica_id)
            return
        state.replicas.ready.discard(replica.replica_id)
        if not replica.was_interrupted:
            replica.was_interrupted = True
            state.send([replica.replica_id], m.Interrupt(state.attempts.highest))

    def _on_built(self, replica: Replica, rank: int, built: m.Built) -> None:
        self._answered(replica, rank, built.attempt, Phase.BUILD)
        self.switching.on_built(replica.replica_id, rank, built.attempt)

    def _answered(self, replica: Replica, rank: int, attempt: Attempt, asked: Phase) -> None:
        if self.state.phase is asked and self._is_current(attempt):
            self.state.waiting.answer(replica.replica_id, rank)

    def _is_current(self, attempt: Attempt) -> bool:
        return self.state.quorum is not None and attempt == self.state.quorum.attempt

    def _on_build_failed(self, replica: Replica, _rank: int, failure: m.BuildFailed) -> None:
        was_of_switch = self.switching.on_build_failed(replica.replica_id, failure)
        if not was_of_switch and failure.attempt in self.state.attempts_of(replica):
            text = f"it could not build the group: {failure.reason}"
            self._fail(replica, text, unreached=failure.unreached)

    def _on_in_force(self, replica: Replica, rank: int, word: m.InForce) -> None:
        state = self.state
        if state.phase is Phase.TAKEOVER:
            replica.reports.pop(rank, None)  # its former report is out of date
            state.send([replica.replica_id], m.AskReport())
        elif self._is_current(word.attempt):
            replica.begun = word.attempt
            self._at_step(replica, word.step)
            self._answered(replica, rank, word.attempt, Phase.BUILD)
            self._answered(replica, rank, word.attempt, Phase.SWITCH)

    def _at_step(self, replica: Replica, step: int) -> None:
        if replica.replica_id in self.state.live and not replica.heals:  # or it may reach none
            self.state.step_max = max(self.state.step_max, step)

    def _on_progress(self, replica: Replica, rank: int, word: m.Progress) -> None:
        if rank == 0:
            replica.progress, replica.is_overtaken = word, False
            is_pause = word.phase is Activity.PAUSED
            began = self.state.now - word.since_s
            replica.paused_at = began if is_pause else None
            replica.waits_since = began if word.phase is Activity.COLLECTIVE else None
            self._note_stall(replica, word)
            self._note_too_few(replica, word)
            self.divergence.note(replica, word)
        self._at_step(replica, word.step)

    def _note_stall(self, replica: Replica, word: m.Progress) -> None:
        state = self.state
        if word.phase in FOR_PEERS and replica.replica_id in state.live:
            state.stalled.setdefault(replica.replica_id, state.now - word.since_s)
        else:
            state.stalled.pop(replica.replica_id, None)

    def _note_too_few(self, replica: Replica, word: m.Progress) -> None:
        state, name = self.state, replica.replica_id
        if word.phase not in REACHES_NO_LATER or name not in state.live:
            state.too_few.pop(name, None)
        else:
            state.note_too_few(name, state.now - word.since_s)

    def _on_errored(self, replica: Replica, _rank: int, error: m.Errored) -> None:
        if self.state.phase is Phase.TAKEOVER:
            self.takeover.is_disturbed = True
        elif error.attempt in self.state.attempts_of(replica):  # C3
            self._fail(replica, f"step {error.step}: {error.reason}", own=error.own)

    def _on_healed(self, replica: Replica, rank: int, healed: m.Healed) -> None:
        quorum = self.state.quorum
        if rank != 0 or quorum is None or healed.attempt != quorum.attempt:
            return
        replica.heals, replica.is_overtaken = False, True
        replica.has_healed = replica.has_healed or healed.step > 0
        if healed.step == 0:
            return  # at step 0 nothing was lost: all load one replica's weights
        if len(quorum.newcomers) > HEALED_NOTICES_MAX:
            return  # too many lines to read
        text = (
            f"Replica {replica.replica_id} healed from {replicas(healed.donors)}: step "
            f"{healed.step}, {healed.nbytes / 1e6:.1f} MB in {healed.duration_s:.3f} s."
        )
        self.state.outbox.notice("healed", [replica.replica_id], text)

    def _fail(
        self, replica: Replica, reason: str, *, own: bool = False, unreached: str = ""
    ) -> None:
        """The attempt has failed, so far without a loss. Blame the first replica to report it.

        ``own``: the replica has decided so by itself, and none is to blame (C8); except a newcomer,
        which keeps its peers from their step and does not reach their state. ``unreached``: the
        host that it could not reach.
        """
        state = self.state
        if state.phase in IN_QUORUM and replica.replica_id in state.live and not state.failure:
            if own and not replica.heals:
                self.forming.excuse()
            else:
                self._blame(replica, unreached)
            state.failure = f"replica {replica.replica_id}: {reason}"

    def _blame(self, replica: Replica, unreached: str) -> None:
        """Blame the replica that reports an error, or the one that all others waited for.

        A replica in an announced pause is not to blame, and neither is one that waited for it.
        """
        waited_for = self.standstill.lone_busy()
        if waited_for is None:
            self.forming.blame(replica, unreached)
        elif waited_for.paused_at is None:
            self.forming.blame(waited_for)
        else:
            self.forming.excuse()

    # ------------------------------------------------------------ phases

    def _steady(self) -> bool:
        """A quorum is in force: outsiders that were to leave do so now, members by a switch.

        A quorum that all members have left is over: the next replicas begin another one.
        """
        if not self.state.live:
            self.switching.abandon()
            self.forming.interrupt()
            return True
        return self.leaving.drain_outsiders() or self.switching.consider()

    def _take_over(self) -> bool:
        """All are back or the grace period is over: continue with the quorum in force."""
        state = self.state
        takeover = self.takeover
        may_end = (takeover.is_grace_over and not takeover.put_off()) or (
            state.is_dirty and takeover.is_complete()
        )
        if not may_end:
            return False
        drains = tuple(state.drains)
        state.drains.clear()
        self.takeover.conclude(self.forming, self.switching)
        for replica in list(state.replicas.values()):
            if replica.replica_id not in state.live:
                self._admit(replica)
            elif replica.leaving:
                self.leaving.finishing(replica)
        self.leaving.drain(drains)
        return True
