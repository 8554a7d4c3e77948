"""A change without an interruption: newcomers join and leavers leave at one agreed step.

PREPARE, PROPOSE and SWITCH of phases.py. Nothing here interrupts a replica. Not here: what the loss
of a member does to a switch (membership.py), the record of a switch (plan.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from ftrun.core import messages as m
from ftrun.core.ids import Attempt, replica_order
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.plan import Plan, purpose
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.words import replicas, sentence
from ftrun.core.quorum import Quorum

MIXED = "members do not let others join at the same steps"


class Switching:
    """Plans, prepares, proposes and confirms switches.

    The ``on_…`` methods take the workers' answers; ``prepare``, ``propose``, ``confirm`` and
    ``complete`` are the rules of the phases and return whether they have changed anything.
    ``begins_at``: when the next switch begins; None: there is nothing to do.
    """

    def __init__(self, state: MembershipState) -> None:
        self.plan: Plan | None = None
        self.begins_at: float | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._state = state

    # ------------------------------------------------------------ answers

    def on_built(self, replica_id: str, rank: int, attempt: Attempt) -> None:
        if self._state.phase is Phase.PREPARE and self._is_ours(attempt):
            self._state.waiting.answer(replica_id, rank)

    def on_build_failed(self, replica_id: str, failure: m.BuildFailed) -> bool:
        """One worker could not prepare: try again later.

        Returns False if it meant another attempt.
        """
        if self.plan is None or not self._is_ours(failure.attempt):
            return False
        culprits = self.plan.quorum.newcomers or (replica_id,)
        self._fail(culprits, f"replica {replica_id} could not build it: {failure.reason}")
        return True

    def on_promised(self, replica: Replica, rank: int, promise: m.Promised) -> None:
        """One worker will not begin the step under the old quorum (Q5).

        A member's promise may be later than the proposal, but all members' must be equal. Newcomers
        begin no step under the old quorum, so they accept any.
        """
        plan = self.plan
        if plan is None or not self._is_asked(promise.attempt) or promise.step < plan.step:
            return
        if replica.replica_id not in plan.quorum.newcomers:
            plan.promised = promise.step if plan.promised is None else plan.promised
            if promise.step != plan.promised or promise.step <= plan.begun:
                self._fail((), MIXED)
                return
        self._state.waiting.answer(replica.replica_id, rank)

    def on_refused(self, replica: Replica, rank: int, refusal: m.Refused) -> None:
        """One worker has begun the step already: propose a later one. Or it promises later.

        The margin doubles, so that the proposal overtakes even quick steps.
        """
        state, plan = self._state, self.plan
        if plan is None or not self._is_proposed(refusal.attempt, refusal.step):
            return
        if refusal.later:
            state.waiting.put_off(replica.replica_id, rank)
            state.is_dirty = True
            plan.begun = max(plan.begun, refusal.current)
            if plan.promised is not None and plan.promised <= plan.begun:
                self._fail((), MIXED)  # the two members would wait for each other
            return
        if refusal.current < refusal.step:
            self._fail((), f"replica {replica.replica_id} is not prepared for it")
            return  # it would refuse a later step too
        state.step_max = max(state.step_max, refusal.current)
        plan.refusals += 1
        plan.margin = min(2 * plan.margin, state.settings.margin_max)
        if plan.refusals > state.settings.refusals_max:
            self._fail((), "the members were past the step each time")
        else:
            self._propose(plan)

    def _is_ours(self, attempt: Attempt) -> bool:
        return self.plan is not None and attempt == self.plan.attempt

    def _is_asked(self, attempt: Attempt) -> bool:
        return self._state.phase is Phase.PROPOSE and self._is_ours(attempt)

    def _is_proposed(self, attempt: Attempt, step: int) -> bool:
        return self._is_asked(attempt) and self.plan is not None and step == self.plan.step

    # ------------------------------------------------------------ STEADY

    def consider(self) -> bool:
        """Set the time of the next switch, if there is something to do; begin when it is due.

        Joins within a moment share a switch. Replicas that have finished are removed first.
        """
        state = self._state
        if state.drains:
            due = state.now
        elif state.replicas.ready:
            due = state.now + state.settings.join_gather_s
        else:
            self.begins_at = None
            return False
        due = max(due, self._retry_at)
        self.begins_at = due if self.begins_at is None else min(self.begins_at, due)
        return state.now >= self.begins_at and self._begin()

    def _begin(self) -> bool:
        """All build the next group next to the one in force; leavers are sent it too.

        Leavers go first, because they need not wait until others may join. If no replica would stay
        to heal from, the ready replicas join first.
        """
        state, self.begins_at = self._state, None
        leavers, newcomers = frozenset(state.drains & state.live), set(state.replicas.ready)
        if self._leaves_first:
            newcomers.clear()
        elif newcomers:
            leavers = frozenset()
        stayers = state.live - leavers
        if any(state.replicas[name].leaving for name in state.live):
            return False
        everyone = frozenset(state.live | newcomers)
        quorum = self._next_quorum(stayers, newcomers)
        joining = tuple(state.replicas[name] for name in quorum.newcomers)
        for replica in joining:
            replica.joins(must_heal=True, now=state.now, by_switch=True)
        self.plan = Plan(quorum, everyone, joining)
        state.begin_change("switch", purpose(newcomers, leavers))
        state.enter(Phase.PREPARE)
        state.expect(everyone, state.settings.build_timeout_s)
        state.send(everyone, m.Prepare(quorum))
        return True

    @property
    def _leaves_first(self) -> bool:
        """Whether some members are to leave and others stay."""
        stayers = self._state.live - self._state.drains
        return bool(stayers) and len(stayers) < len(self._state.live)

    def _next_quorum(self, stayers: set[str], newcomers: set[str]) -> Quorum:
        state = self._state
        members = state.replicas.members(stayers | newcomers, state.workers)
        donors = tuple(sorted(stayers, key=replica_order))
        return Quorum(
            attempt=state.attempts.issue(members),
            members=members,
            store=state.replicas[donors[0]].store if donors else "",
            newcomers=tuple(sorted(newcomers, key=replica_order)),
        )

    # ------------------------------------------------------------ PREPARE, PROPOSE

    def prepare(self) -> bool:
        """All have built it → PROPOSE."""
        return self._hindered() or self._answered(self._propose)

    def propose(self) -> bool:
        """All have promised → SWITCH."""
        return self._hindered() or self._answered(self._confirm)

    def _answered(self, go_on: Callable[[Plan], None]) -> bool:
        assert self.plan is not None
        if not self._state.waiting.done:
            return False
        go_on(self.plan)
        return True

    def _hindered(self) -> bool:
        """Cancel the switch if a newcomer has gone or an answer is late. Returns whether it did."""
        state, plan = self._state, self.plan
        assert plan is not None
        gone = plan.gone(state.replicas) if state.is_dirty else []
        if gone:
            self._cancel(f"{replicas(gone)} went away")
            return True
        if state.waiting.is_put_off and self._leaves_first:
            self._cancel("a replica leaves first")
            return True
        if state.waiting.is_over(state.now):
            return self._is_late(plan)
        return False

    def _is_late(self, plan: Plan) -> bool:
        """Blame silent replicas, but not those that will answer once their scripts let members
        join.

        The latter are asked again after each ``promise_timeout_s``: one that hangs does not answer
        again.
        """
        state = self._state
        silent = state.waiting.overdue()
        freeze_ends_at = state.since + state.settings.freeze_timeout_s
        if silent:
            self._fail(silent, f"no answer of {replicas(silent)}")
        elif state.now < freeze_ends_at:
            until = min(freeze_ends_at, state.now + state.settings.promise_timeout_s)
            asked = state.waiting.ask_again(until)
            state.send(asked, m.ProposeSwitch(plan.attempt, plan.step))
            return False
        else:
            freeze_s = state.settings.freeze_timeout_s
            self._fail((), f"no step at which members may join within {freeze_s:g} s")
        return True

    def _propose(self, plan: Plan) -> None:
        state = self._state
        plan.step = max(state.step_max + plan.margin, plan.step + 1)
        plan.promised, plan.begun = None, 0
        state.enter(Phase.PROPOSE)
        state.expect(plan.everyone, state.settings.promise_timeout_s)
        state.send(plan.everyone, m.ProposeSwitch(plan.attempt, plan.step))

    def _confirm(self, plan: Plan) -> None:
        """All have promised: the switch is certain once it is on disk."""
        state = self._state
        step = plan.step if plan.promised is None else plan.promised
        quorum = replace(plan.quorum, step=step)
        state.install(quorum, state.live | plan.everyone, prior=state.quorum, switch_step=step)
        state.close_quorum(quorum)
        state.journal()
        self.plan = None
        self.carry_out(plan.everyone, plan.everyone)

    # ------------------------------------------------------------ SWITCH

    def carry_out(self, everyone: Collection[str], behind: Collection[str]) -> None:
        """Confirm the switch to everyone; wait for the replicas that are ``behind``."""
        state = self._state
        assert state.quorum is not None and state.switch_step is not None
        state.enter(Phase.SWITCH)
        state.waiting.expect(behind, state.workers)
        state.send(everyone, m.Switch(state.quorum.attempt, state.switch_step))

    def complete(self) -> bool:
        """All train under the next quorum, and the leavers have left → STEADY."""
        state = self._state
        if not state.waiting.done:
            return False
        assert state.quorum is not None
        self._failures = 0
        state.install(state.quorum, state.live, switch_step=state.switch_step)
        state.enter(Phase.STEADY)
        state.end_change(state.quorum)
        joined = state.quorum.newcomers
        for name in state.live.intersection(joined):
            state.replicas[name].note_in_force()
        state.changed.update(joined)
        what = f"{replicas(joined)} joined" if joined else "a drain was carried out"
        text = f"{what} at step {state.switch_step}. The quorum is now {replicas(state.live)}."
        state.outbox.notice("switched", joined, sentence(text))
        return True

    # ------------------------------------------------------------ off

    def abandon(self) -> None:
        """No switch: an interrupt ends one under way for members, newcomers are sent a Cancel."""
        self.begins_at = None
        if self.plan is not None:
            newcomers = set(self.plan.quorum.newcomers)
            self._state.send(newcomers, m.Cancel(self.plan.attempt))
            self.plan = None

    def _cancel(self, why: str) -> None:
        """The switch is cancelled and the old quorum trains on, until the next try."""
        state, plan = self._state, self.plan
        assert plan is not None
        self.plan = None
        state.enter(Phase.STEADY)
        state.end_change(state.quorum, f"cancelled: {why}")
        state.send(plan.everyone, m.Cancel(plan.attempt))

    def _fail(self, culprits: tuple[str, ...], why: str) -> None:
        """The switch has failed: try again after a pause. After some failures replace the culprits.

        A slow worker is not replaced at once, because that costs more than another try.
        """
        state, plan = self._state, self.plan
        assert plan is not None
        settings = state.settings
        if len(culprits) == len(plan.everyone):
            culprits = plan.quorum.newcomers  # all wait for each other: blame the newest
        self._failures += 1
        pause_s = settings.join_gather_s * 2**self._failures
        self._retry_at = state.now + min(settings.switch_retry_max_s, pause_s)
        self._cancel(why)
        if self._failures >= settings.switch_failures_max:
            cause = f"it held up a switch {self._failures} times ({why})"
            state.replace(culprits, cause)
            self._failures = 0
