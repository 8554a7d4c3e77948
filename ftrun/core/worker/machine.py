"""One worker's step: promise, interrupt, repair, heal, commit. Pure; runs under the step lock.

The main thread walks IDLE → WAITING (start_quorum) → STEPPING (forward, backward) → VOTING
(should_commit, groups of several workers only) → IDLE. Messages and results arrive at any time. The
step under way has a fate (under_way.py).

Rules that the rest relies on:
- An attempt that was given up (``interrupted``) has no effect any more: completions, builds and
  heals under it change nothing (C3, Q2).
- Only ``Decided`` commits a step, under the tag under which its operations completed.
- Results that were handed to the script never change. A step that handed out some results before
  all were complete cannot be repaired: it stands or becomes void (S7).
- If a step is not committed although its quorum is in force, this worker gives the quorum up
  (``Errored``), because its peers may have committed the step.
- A quorum that forms or shrinks is in force as soon as it is built, even while a step that stands
  or is void is being finished. A switch waits for its boundary.
- A heal that overwrites the script's own state makes that state *torn* until a heal is applied. The
  worker neither trains from a torn state nor serves it to peers, and reports that it has no state.
  Only the state that the worker started with is overwritten, because a restart brings it back. A
  worker that has held the job's state keeps it (C6).
- Isolation gives up every attempt. After it only a quorum decides whether results stand (Q3).
- Mates, the workers of one replica group, do not know each other's fate. With W > 1 they repair
  only if all of them can, because one that cannot would leave its mates waiting in the vote. The
  quorum's ``recomputes`` lists the groups that must not repair.
- A step that a true vote decided is committed even if an interrupt follows the vote, because a mate
  may have committed already (C1).
- A replacement of a lost worker commits the steps that it repeats under the tags that the log has
  of them, so its state id equals that of its mates (S1). It sends nothing and takes no message
  before its first ``Interrupt``: until then the lost worker's messages stand.
- An operation that is *refused* is no failure of a member (C8). The step becomes void here, and the
  Report has the reason, so that the next quorum makes it void at all members that have not
  completed it.

Not here: threads, sockets, tensors (training/); the choice of members
(core/lighthouse/membership.py); the records of quorums (quorums.py) and of the step under way
(under_way.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

from ftrun.core import messages as m
from ftrun.core.activity import FOR_PEERS
from ftrun.core.ids import Attempt, Tag
from ftrun.core.quorum import Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.facts import StepPhase
from ftrun.core.worker.quorums import Pending
from ftrun.core.worker.showing import Showing
from ftrun.core.worker.under_way import Fate, StepUnderWay

GROUP_TIMEOUT_S = 5.0
"""Seconds that a rank with a void step waits in the vote before it ends its mates' quorum."""

NOBODY_JOINS = "the script lets no replica join at this step"
ALIKE = (
    "All replicas must reduce the same tensors in the same order. This replica ends, before it "
    "disturbs the others"
)


class StepMachine(Showing):
    """The decisions of one worker. Feed it events, carry out its instructions in order."""

    @cached_property
    def _handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            e.BoundaryReached: self._on_boundary,
            e.OperationIssued: self._on_operation_issued,
            e.OperationsEnded: self._on_operations_ended,
            e.OperationAnswered: self._on_operation_answered,
            e.OperationCompleted: self._on_operation_completed,
            e.OperationFailed: self._on_operation_failed,
            e.OperationRefused: self._on_operation_refused,
            e.VoteStarted: self._on_vote_started,
            e.Decided: self._on_decided,
            e.OverwriteBegun: self._on_overwrite_begun,
            e.StateLoaded: self._on_state_loaded,
            e.StateApplied: self._on_state_applied,
            e.StateSpoiled: self._on_state_spoiled,
            e.StateReset: self._on_state_reset,
            e.HealFailed: self._on_heal_failed,
            m.Built: self._on_built,
            m.BuildFailed: self._on_build_failed,
            e.WentAway: self._on_went_away,
            e.Succeeds: self._on_succeeds,
            e.WentOut: self._on_went_out,
            e.Ticked: self._on_ticked,
            m.Interrupt: self._on_interrupt,
            m.NewQuorum: self._on_new_quorum,
            m.Prepare: self._on_prepare,
            m.ProposeSwitch: self._on_propose,
            m.Switch: self._on_switch,
            m.Cancel: self._on_cancel,
            m.AskReport: self._on_ask_report,
            m.Roster: self._on_roster,
            e.PeersAsked: self._on_peers_asked,
            e.StateKept: self._on_state_kept,
            e.PeerUnreached: self._on_peer_unreached,
            m.Lease: self._on_lease,
            m.LeaveNow: self._on_leave_now,
        }

    # ------------------------------------------------------------ the shell's questions

    def handle(self, event: e.Event, now: float) -> list[e.Instruction]:
        """Take one event; the shell carries out the instructions in order, under the lock."""
        self._now = now
        self._out = []
        self._story.append((now, event))
        if self.phase is not StepPhase.LEFT:
            if self._lease.ends(now):  # Q3: a running agent would have sent a new one
                self._isolate()
            self._handlers[type(event)](event)
        return self._out

    # ------------------------------------------------------------ the main thread

    def _on_boundary(self, event: e.BoundaryReached) -> None:
        if self._step is not None:  # the step was not decided: it is abandoned
            self._end_step(self._step, False, False, "the step was not decided")
        self.quorums.at_boundary(event.freeze_membership)
        self.heal.catches_up = event.catches_up
        self._between_steps = StepPhase.WAITING
        self._between_since = self._now
        self.pace.waits(self._now)
        self._advance()

    def _advance(self) -> None:
        """Let a main thread at its boundary begin its step, as far as promise and quorum allow."""
        if self.phase is StepPhase.WAITING and self._leaves_for:
            self._leave(self._leaves_for)
        if self.phase is not StepPhase.WAITING or self.isolated:
            return
        pending = self.pending
        if pending is not None and pending.wanted is not None:
            self._promise_late(pending, pending.wanted)
        if pending is not None and self.quorums.at_promise(self.state.step):
            if not pending.confirmed:
                return  # Q5
            self._carry_out_switch(pending)
        if self.in_force is not None and self.phase is StepPhase.WAITING:
            self._enter(self.in_force)

    def _promise_late(self, pending: Pending, wanted: int) -> None:
        """Promise the switch here, or refuse again if the script permits no join here."""
        step = self.quorums.next_step(self.state.step)
        if step < wanted or not self.quorums.can_promise(step):
            return
        if self.quorums.bars(pending):
            self._send(m.Refused(pending.attempt, wanted, step, later=True))
            return
        pending.promise, pending.wanted = step, None
        self._send(m.Promised(pending.attempt, step))

    def _carry_out_switch(self, pending: Pending) -> None:
        if not self.quorums.is_member(pending.quorum):
            self._leave(m.LeaveReason.DRAINED)
            return
        if self.quorums.bars(pending):  # frozen for the first time, after the promise
            self._give_up(NOBODY_JOINS)
            return
        old = self.in_force
        self._adopt(replace(pending.quorum, step=pending.promise))
        self._tries.count = -self._tries.owed_at(pending.promise)  # no member has begun that step
        if old is not None:
            self._out.append(e.DropGroup(old.attempt))

    def _adopt(self, quorum: Quorum) -> None:
        self.quorums.adopt(quorum)
        if self._adopted is not None and quorum.attempt.quorum_id > self._adopted.quorum_id + 1:
            self.gaps += 1
            self.heal.healed_to = max(self.heal.healed_to, self.state.step)
        self._adopted = quorum.attempt
        self._tries.refused = ""
        self._too_few = 0
        self._out.append(e.UseGroup(quorum))
        self._out += self._offer.offer_kept(self.state, self.quorums)

    def _enter(self, quorum: Quorum) -> None:
        is_first = self.quorums.is_unentered
        heals = is_first and self.quorums.is_newcomer(quorum)
        number = self.quorums.next_step(self.state.step)
        if is_first and not heals:
            if self.heal.torn:
                self._give_up("its state is torn: a heal broke off")
                return
            unlike = quorum.state is not None and quorum.state != self.state
            if unlike or self.state.step != number:
                self._give_up(f"holds {self.state}, not what {quorum.attempt} begins with")
                return
        self._offer.keeps_state = False
        self._offer.trained_with = frozenset(member.key for member in quorum.members)
        self.heal.begin(heals, quorum.state)
        tag = Tag(quorum.attempt, number)
        comparison = self._comparisons.begin(quorum, tag, heals=heals)
        if self.repeats:
            comparison.meets_nobody()
        in_vain = self._tries.pay(number, heals=heals)
        repeats = in_vain is None and self.quorums.begin(tag)
        self._step = StepUnderWay(tag, repeats, self._now, comparison)
        self._step.is_enough = self.is_enough
        self.step_times.reached(number, self._now)
        self.begun += 1
        self.pace.goes_on(self._now)
        self._between_steps = StepPhase.IDLE
        if in_vain is not None:  # this try does not count under this quorum
            comparison.withdraw()
            self._void_refused(self._step, in_vain)
        elif is_first:
            self._announce(quorum, tag)

    def _announce(self, quorum: Quorum, tag: Tag) -> None:
        """Report the quorum in force, and offer or fetch its state. Once per attempt."""
        self._send(m.InForce(quorum.attempt, tag.step))
        self._out += self.heal.load(tag, quorum)
        self._out += self._offer.offer(tag, self.state, self.quorums)

    def _on_state_kept(self, _event: e.StateKept) -> None:
        self._offer.keeps_state = self._step is None and not self.healing
        self._out += self._offer.offer_kept(self.state, self.quorums)

    def _on_vote_started(self, _event: e.VoteStarted) -> None:
        if self._step is not None:
            self._step.vote()
            self.pace.waits(self._now)
            self._watch_mates(self._step)

    def _watch_mates(self, step: StepUnderWay) -> None:
        """Shorten the wait of a void step, which votes at once: a mate may be in the next step."""
        if step.is_voting and step.fate is Fate.VOID:
            step.deadline = self._now + min(GROUP_TIMEOUT_S, self._operation_timeout_s)

    def _on_decided(self, event: e.Decided) -> None:
        step = self._step
        if step is None:
            return
        commits = event.commit and not event.torn and self._may_commit(step)
        self._end_step(step, commits, event.shared and not event.torn, event.reason)
        if event.torn:
            self._give_up_torn("the ranks of the replica group voted for different steps")

    def _end_step(self, step: StepUnderWay, commits: bool, shared: bool, reason: str) -> None:
        stays = commits or (shared and step.operations.complete and not self.healing)
        self._out += self._offer.retire()
        if not step.operations.all_handed and step.fate is not Fate.VOID:
            self._out.append(e.FailOperations(reason or "the step was not committed"))
        if commits:
            self._tries.count = 0
            self.heal.commit(step.commits_as)
            self._peers_ended = False
            self.step_times.reached(step.tag.step + 1, self._now)
            self.pace.committed(self._now)
        else:
            self.pace.skip()
        self._step, self.was_taken = None, step.is_taken and not commits
        self._comparisons.end(step.comparison, committed=commits)
        self._between_since = self._now
        if not stays or commits:
            self._too_few = 0
        elif step.fate is Fate.OPEN and not step.is_enough:
            self._too_few += 1
            self._too_few_since = self._now if self._too_few == 1 else self._too_few_since
        if step.fate is Fate.OPEN and not stays:
            self._give_up(reason or "the step was not committed", step.tag.step, own=True)

    def _fail_script(self, step: StepUnderWay, reason: str) -> None:
        """End this worker alone. Its peers see that it is lost, and continue."""
        self._void(step, reason)
        self._out.append(e.FailScript(reason))

    def _on_state_reset(self, event: e.StateReset) -> None:
        reason = "the script has set its step"
        self.heal.reset(event.state)
        self._offer.keeps_state = False
        self._tries.count = 0
        self._comparisons.forget()
        self._give_up(reason, own=True)
        if self._step is not None and self._step.fate is not Fate.VOID:
            self._void(self._step, reason)

    def _on_went_away(self, event: e.WentAway) -> None:
        self._leave(event.reason)

    def _leave(self, reason: m.LeaveReason) -> None:
        self._out += self._offer.retire()
        if self._step is not None and not self._step.operations.all_handed:
            self._out.append(e.FailOperations(f"the script leaves: {reason.value}"))
        early = reason is m.LeaveReason.EARLY
        self._send(m.Leaving(reason, self.state.step if early else None))
        self._step = None
        self._between_steps = StepPhase.LEFT

    def _on_succeeds(self, event: e.Succeeds) -> None:
        self.heal.succeed(event.state)
        self.quorums.succeed(event.quorum, event.state.step - (not event.repeats))
        self._comparisons.succeed(event.shapes)
        self._adopted, self.begun = event.quorum.attempt, event.begun
        self._tries.count = event.tries
        self.repeats = True

    def _on_went_out(self, event: e.WentOut) -> None:
        step, quorum = self._step, event.quorum
        if self.repeats and step is not None:
            self._adopted = quorum.attempt
            self.quorums.succeed(quorum, step.tag.step)
            step.went_out(quorum.attempt)
            step.is_enough = self.is_enough

    # ------------------------------------------------------------ operations

    def _on_operation_issued(self, event: e.OperationIssued) -> None:
        step = self._step
        if step is None:
            self._out.append(e.FailOperations("no step is under way"))
            return
        step.operations.issue(event.batched, event.closes)
        step.comparison.add(event.shape)
        step.touched_at = self._now
        step.note_wait(self._now)
        if event.batched and not event.closes:
            self.pace.works()
        else:
            self.pace.waits(self._now)
        if step.fate is Fate.STANDS:
            self._void(
                step, "an operation was issued after an interrupt at which all were complete"
            )
        elif step.fate is Fate.VOID:
            self._out.append(e.FailOperations(step.void_reason))
        elif step.fate is Fate.OPEN:
            step.deadline = self._now + self._operation_timeout_s
            self._let_out(step)

    def _on_operations_ended(self, _event: e.OperationsEnded) -> None:
        step = self._step
        if step is None or step.comparison.ended:
            return
        step.comparison.end()
        step.note_wait(self._now)
        if step.fate is Fate.OPEN:
            self._let_out(step)
            if step.is_awaited:
                self.pace.waits(self._now)
            if step.is_awaited and step.deadline is None:
                step.deadline = self._now + self._operation_timeout_s

    def _let_out(self, step: StepUnderWay) -> None:
        """Launch operations that may be issued; ask about one that must be compared first."""
        ready = step.comparison.advance()
        if ready:
            self._out.append(e.Launch(ready.start, ready.stop))
        question = step.comparison.question()
        if question is not None:
            self._out.append(e.Ask(question))

    def _on_operation_answered(self, event: e.OperationAnswered) -> None:
        step = self._step
        if step is None or step.fate is not Fate.OPEN:
            return
        if event.entry.over:
            self._end_with_peers(step, event.replica_id)
            return
        step.comparison.answer(event.question, event.replica_id, event.entry)
        step.note_wait(self._now)
        if step.comparison.unlike:
            self._fail_script(step, f"{step.comparison.unlike}. {ALIKE}")
        else:
            step.touched_at = self._now
            self._let_out(step)
            if not step.is_awaited:
                step.deadline = None
                self.pace.goes_on(self._now)

    def _end_with_peers(self, step: StepUnderWay, replica_id: str) -> None:
        """The peers' scripts have ended, and no replica takes this step.

        From now on this newcomer heals before its pass, so that its script sees that it has ended.
        """
        reason = (
            f"replica {replica_id} has reached the end of its script, and does not take this step"
        )
        self._peers_ended = True
        self._void(step, reason)
        self._give_up(reason, own=True)

    def _on_operation_completed(self, event: e.OperationCompleted) -> None:
        step = self._step
        if (
            step is None
            or not step.counts(event.attempt)
            or not step.operations.finish(event.index)
        ):
            return  # C3
        step.touched_at = self._now
        step.note_wait(self._now)
        is_left = step.is_awaited
        step.deadline = self._now + self._operation_timeout_s if is_left else None
        if not step.operations.outstanding:
            self.pace.goes_on(self._now)
        ready = step.operations.take_ready()
        if ready:
            self._out.append(e.HandOut(ready))

    def _on_operation_failed(self, event: e.OperationFailed) -> None:
        step = self._step
        if step is None or not step.counts(event.attempt):
            return  # C3
        reason = f"operation {event.index}: {event.reason}"
        again = self._tries.fails_again(step.tag.attempt.quorum_id, step.tag.step, event.index)
        if event.refused or (event.refused is None and again):
            self._refuse_step(step, reason)
        else:
            self._give_up(reason)

    def _on_operation_refused(self, event: e.OperationRefused) -> None:
        if self._step is not None:
            self._refuse_step(self._step, event.reason)

    def _refuse_step(self, step: StepUnderWay, reason: str) -> None:
        """No attempt can carry out an operation of this step: void it, here and at all peers."""
        if step.fate is Fate.VOID:
            return
        self._tries.refused = reason
        step.comparison.withdraw()
        if step.fate is Fate.OPEN:
            self._give_up(reason, own=True)
        self._void_refused(step, reason)

    # ------------------------------------------------------------ healing

    def _on_overwrite_begun(self, event: e.OverwriteBegun) -> None:
        if self.heal.is_fresh and self._awaits_state(event.tag):
            self.heal.overwrite()

    def _on_state_loaded(self, event: e.StateLoaded) -> None:
        if not self._awaits_state(event.tag) or self.in_force is None:
            return
        wanted = self.in_force.state or event.state
        if event.state == wanted and event.state.step == event.tag.step:
            self.heal.loaded = event.state
        else:
            self._give_up(f"heal: donors hold {event.state}, not what {event.tag} begins with")

    def _on_state_applied(self, event: e.StateApplied) -> None:
        if not self.healing or self.tag is None:
            return
        if not self.heal.apply(self.tag):
            return
        self.step_times.skip()
        self.pace.skip()
        self.shown.heal = None
        attempt, number = self.tag.attempt, self.state.step
        self._send(m.Healed(attempt, number, event.donors, event.nbytes, event.duration_s))

    def _on_state_spoiled(self, event: e.StateSpoiled) -> None:
        if self.heal.spoil() and self.fate is Fate.OPEN:
            self._give_up(f"heal: {event.reason}")

    def _on_heal_failed(self, event: e.HealFailed) -> None:
        step = self._step
        if step is None or not self._awaits_state(event.tag):
            return
        if event.is_refused and self.heal.refuse():
            words = f"this replica cannot heal, and ends; the others train on. {event.reason}"
            self._fail_script(step, words)
        else:
            self._give_up(f"heal: {event.reason}")

    # ------------------------------------------------------------ giving up, and the verdict

    def _give_up(self, reason: str, step: int | None = None, *, own: bool = False) -> None:
        """Give up the quorum in force and the pending one, because of an error here.

        ``own``: see ``Errored``.
        """
        if self.in_force is None:
            return
        attempt = self.in_force.attempt
        position = self.position if step is None else step
        self._abort(self.quorums.seen)
        self._send(m.Errored(attempt, position, reason, own))

    def _give_up_torn(self, reason: str) -> None:
        """Give up every known quorum, because a mate is one quorum ahead or behind.

        Otherwise one rank would begin a step alone, and its next vote would meet a wrong step too.
        """
        quorum = self.in_force or (self.pending.quorum if self.pending is not None else None)
        if quorum is not None:
            self._abort(self.quorums.seen)
            self._send(m.Errored(quorum.attempt, self.state.step, reason))

    def _abort(self, attempt: Attempt) -> None:
        self.step_times.skip()
        self._abort_groups(self.quorums.give_up(attempt))
        self.pace.skip()
        step = self._step
        if step is not None:
            if not step.fate.awaits_quorum:
                step.touched_at = self._now
            step.interrupt(self._now + self._quorum_timeout_s, self.reduced is not None)

    def _abort_groups(self, attempts: Iterable[Attempt]) -> None:
        self._out += [e.AbortGroup(attempt) for attempt in attempts]

    def _judge(self, step: StepUnderWay, event: m.NewQuorum) -> None:
        """Apply the verdict of the quorum to the step under way."""
        quorum = event.quorum
        step.is_blind = self.isolated  # then the quorum may have been replaced (Q3)
        if event.pauses:
            step.awaited_since = None  # a member that announced a pause may take its time
        tag = self.reduced if self.healing else step.decisive
        held = self.heal.after
        if tag is not None and held is not None and quorum.state == held.committed(tag):
            step.stand()
        elif self._missing(event) > 0:
            self._void_refused(step, event.refused)
        elif self._repairable(step, quorum):
            step.repair(quorum.kept_by(self.key.group_rank))
            self.heal.keep_loaded_if(quorum.state)
        else:
            fate = f"is left out: it continues from {quorum.state}"
            if quorum.state == self.state:
                fate = "is computed again"
            elif not self.healing and quorum.state == self.state.committed(step.commits_as):
                step.is_taken = True
                fate = f"is in {quorum.state}, with the gradients of this replica: it heals to that"
            self._void(step, f"interrupted; in quorum {quorum.attempt} this step {fate}")

    def _void_refused(self, step: StepUnderWay, reason: str) -> None:
        self._tries.count += 1
        self._void(step, reason)

    def _void(self, step: StepUnderWay, reason: str) -> None:
        step.void(reason)
        self._watch_mates(step)
        self._out.append(e.FailOperations(reason))

    # ------------------------------------------------------------ the lighthouse

    def _on_interrupt(self, event: m.Interrupt) -> None:
        if event.attempt < self.quorums.seen:
            return  # Q2: stale
        self.repeats = False
        if event.attempt > self.quorums.interrupted:
            self._abort(event.attempt)
        self._send(self.report())

    def _on_new_quorum(self, event: m.NewQuorum) -> None:
        quorum = event.quorum
        if not self._is_new(quorum) or not self.quorums.is_member(quorum):
            return
        if self.in_force is not None or self.pending is not None:
            self._abort(self.quorums.seen)  # the Interrupt was lost on the way
        self._take(quorum, is_switch=False)
        if self._step is not None and self._step.fate.is_interrupted:
            self._judge(self._step, event)
        self._catch_up(event)

    def _catch_up(self, event: m.NewQuorum) -> None:
        """Try a step as many times as peers did, so that scripts that count their tries stay alike.

        Not within a replica group: its other workers do not know of such a try.
        """
        if self._decides_alone:
            self._tries.owe(event.quorum.first_step, self._missing(event), event.refused)
        elif event.quorum.state == self.state:
            self._tries.count = max(self._tries.count, event.refused_tries)
        if self.quorums.is_newcomer(event.quorum):
            self._tries.count = event.refused_tries

    def _is_new(self, quorum: Quorum) -> bool:
        """Whether ``quorum`` is newer than all known ones; sends Built again if it is built."""
        if self.quorums.has_built(quorum.attempt):
            self._send(m.Built(quorum.attempt))
        return quorum.attempt > self.quorums.seen

    def _take(self, quorum: Quorum, is_switch: bool) -> None:
        pending = self.quorums.take(quorum, is_switch=is_switch)
        if self.quorums.is_member(quorum):
            self._out.append(e.BuildGroup(quorum))
        else:  # this worker leaves at the switch
            pending.built = True
            self._send(m.Built(quorum.attempt))

    def _on_prepare(self, event: m.Prepare) -> None:
        quorum = event.quorum
        if not self._is_new(quorum):
            return
        joins = self.quorums.is_newcomer(quorum)
        is_bound = self.pending is not None and self.pending.confirmed
        is_idle = self.in_force is None and self.quorums.is_member(quorum)
        if not joins and (is_bound or is_idle):
            self._send(self.report())  # the lighthouse is wrong about this worker
            return
        if joins and self.in_force is not None:
            self._abort(self.quorums.seen)  # the peers have continued without this worker
        self._abort_groups(self.quorums.drop_pending())
        is_open = self._step is not None and self._step.fate.awaits_quorum
        if self._step is not None and is_open and not self._vote_stands:  # C1
            # The next quorum will not decide about this step.
            self._void(self._step, f"interrupted; this replica joins quorum {quorum.attempt} again")
        self._take(quorum, is_switch=True)

    def _on_built(self, event: m.Built) -> None:
        pending = self.quorums.awaits(event.attempt)
        if self.quorums.is_in_force(event.attempt):
            return
        if pending is None:
            self._out.append(e.DropGroup(event.attempt))
            return
        pending.built = True
        self._send(event)
        if not pending.is_switch:
            self._adopt(pending.quorum)
        if self._step is not None and self._step.fate is Fate.REPAIR:
            self._repair_under(self._step, pending.quorum)
        self._advance()

    def _repair_under(self, step: StepUnderWay, quorum: Quorum) -> None:
        step.go_out_again(quorum, self._now + self._operation_timeout_s)
        step.touched_at = self._now
        step.note_wait(self._now)
        self.quorums.begin(step.tag)
        step.is_enough = self.is_enough
        self._announce(quorum, step.tag)
        self._out.append(e.Reissue(step.kept))
        self._let_out(step)

    def _on_build_failed(self, event: m.BuildFailed) -> None:
        if self.quorums.awaits(event.attempt) is not None:
            self._send(event)

    def _on_propose(self, event: m.ProposeSwitch) -> None:
        pending = self.pending
        if pending is None or not pending.may_be_promised(event.attempt):
            self._refuse(event)
        elif pending.outdates(event.step):
            return
        elif self.quorums.promises_late(pending):
            pending.promise, pending.wanted = None, event.step
            self._refuse(event, later=True)
            self._advance()
        elif not self.quorums.can_promise(event.step):
            self._refuse(event)
        else:
            pending.promise = event.step
            self._send(m.Promised(event.attempt, event.step))
            self._advance()

    def _refuse(self, event: m.ProposeSwitch, *, later: bool = False) -> None:
        begun = self.quorums.last_begun
        current = self.position if begun is None else begun
        self._send(m.Refused(event.attempt, event.step, current, later))

    def _on_switch(self, event: m.Switch) -> None:
        pending = self.quorums.awaits(event.attempt)
        if self.quorums.is_in_force(event.attempt):
            self._send(m.InForce(event.attempt, event.step))
        elif pending is not None:
            is_newcomer = self.quorums.is_newcomer(pending.quorum)
            if is_newcomer and self.in_force is None and pending.promise is not None:
                pending.promise = max(pending.promise, event.step)  # it can join at any step
            pending.confirmed |= pending.promise == event.step
            self._advance()

    def _on_cancel(self, event: m.Cancel) -> None:
        pending = self.quorums.awaits(event.attempt)
        if pending is not None and pending.is_switch and not pending.confirmed:
            self._abort_groups(self.quorums.drop_pending())
            self._advance()

    def _on_peer_unreached(self, event: e.PeerUnreached) -> None:
        if self.in_force is not None and self.in_force.attempt == event.attempt:
            self._give_up(f"replica {event.replica_id} is not reached")

    def _on_leave_now(self, event: m.LeaveNow) -> None:
        """Leave at the next boundary. No lighthouse will agree on one."""
        if event.in_quorum or self.in_force is None:
            self._leaves_for = event.reason
            self._make_way()
            self._advance()

    def _make_way(self) -> None:
        """Give up a step that keeps the script from the boundary at which it is to leave."""
        step = self._step
        if step is None or not self._leaves_for or self._vote_stands:
            return
        reason = f"this replica leaves: {self._leaves_for.value}"
        if self.activity()[0] in FOR_PEERS:
            self._give_up(reason)
        if step.fate.awaits_quorum:
            self._void(step, reason)

    # ------------------------------------------------------------ time

    def _on_lease(self, event: m.Lease) -> None:
        self._lease.renew(event.until_s)
        self.agreed = event.agreed
        isolated_s = self._lease.begins_again(self._now)
        if isolated_s is not None:
            self._end_isolation(isolated_s)
        elif self._lease.ends(self._now):
            self._isolate()
        else:
            return
        self._advance()

    def _isolate(self) -> None:
        self._abort(self.quorums.seen)  # Q3: from now on a quorum may form without this worker
        if self._step is not None:
            self._step.is_blind = True

    def _end_isolation(self, isolated_s: float) -> None:
        """Report again. The time of isolation counts for no deadline."""
        if self._step is not None:
            self._step.put_off(isolated_s)
        if self.has_reported:  # before its first step a script is not ready for a quorum
            self._send(self.report())  # a lighthouse may not ask for it

    def _on_ticked(self, event: e.Ticked) -> None:
        self.shown.pause, self.shown.beats, self.shown.heal = event.pause, event.beats, event.heal
        self.shown.collective = event.collective
        if event.pause is not None:
            self.step_times.skip()
            self.pace.skip()
        self._make_way()
        self._look_at_deadlines()
        self._show_progress(event.waited_s)

    def _look_at_deadlines(self) -> None:
        step = self._step
        if step is None or step.deadline is None or self._now < step.deadline or self.isolated:
            return
        if step.fate is Fate.OPEN:
            self._time_out(step)
        elif step.fate is Fate.VOID:
            step.deadline = None
            self._give_up_torn("a mate does not come to the vote: it is in another step")
        elif not self.is_decidable and not self._vote_stands:  # C1
            self._void(step, f"no quorum for {self._quorum_timeout_s:g} s")

    def _time_out(self, step: StepUnderWay) -> None:
        """Give the attempt up. If the wait was too long, void the step too, here and at all peers.

        Unlike a refusal this counts as a failed attempt, because one member may hang.
        """
        limit_s, waited_s = self._results_timeout_s, step.awaited_s(self._now)
        self._give_up(f"no operation completed for {self._operation_timeout_s:g} s")
        if limit_s is not None and waited_s >= limit_s:
            step.comparison.withdraw()
            self._void_refused(step, f"its results did not come for {waited_s:.3g} s")
