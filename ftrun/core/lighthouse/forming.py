"""Quorums that begin from a standstill: EMPTY, REJOIN, FENCE and BUILD of phases.py.

Each rule returns whether it has changed anything. Not here: the decision after a loss
(succession.py), how replicas are lost (losses.py).
"""

from __future__ import annotations

from collections.abc import Collection

from ftrun.base.words import counted
from ftrun.core import messages as m
from ftrun.core.activity import BY_INTENTION
from ftrun.core.ids import replica_order
from ftrun.core.lighthouse.blame import Blame
from ftrun.core.lighthouse.choice import Choice, Standing, can_repair, standing
from ftrun.core.lighthouse.outcome import NOBODY_HOLDS_IT, NOBODY_IS_LEFT, outcome
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.succession import Candidate, Case, Succession, candidate, first, succeed
from ftrun.core.lighthouse.suspicion import SilenceCheck
from ftrun.core.lighthouse.words import replicas, sentence
from ftrun.core.quorum import Quorum

AGAIN = "its peers have tried this step without success"


class Forming:
    """Gathers newcomers or survivors and issues the quorum.

    ``goes_on_at``: the deadline for gathering newcomers or waiting for removed members; None: no
    limit.
    """

    def __init__(self, state: MembershipState) -> None:
        self.goes_on_at: float | None = None
        self._state = state
        self._gathering_since: float | None = None
        self._is_lost = False  # no replica holds the job's state: the next quorum starts over
        self._silence_check = SilenceCheck()
        self._spared: frozenset[str] = frozenset()
        self._tries = 0
        self._tried_step = -1
        self._blame: Blame | None = None  # since the last commit; None: no failure

    # ------------------------------------------------------------ EMPTY

    def gather(self) -> bool:
        """All replicas are ready, or enough of them after the join timeout → BUILD."""
        state = self._state
        ready = state.replicas.ready
        if not ready:
            self._gathering_since = self.goes_on_at = None
            return False
        if self._gathering_since is None:
            self._gathering_since = state.now
            self.goes_on_at = state.now + state.spec.join_timeout_s
        is_late = state.now >= self._gathering_since + state.spec.join_timeout_s
        absent = len(state.latecomers)
        if state.nodes < state.spec.nodes and len(state.outbox.agents) >= state.nodes:
            absent += state.slots.free_count  # a registrar has waited for nodes that would run them
        all_that_can = max(state.needed, state.slots.open_count - absent)
        if len(ready) >= (state.needed if is_late else all_that_can):
            self._gathering_since = None
            state.begin_change("form", f"{replicas(ready)} ready")
            return self._issue(first(self._candidates(ready), state.needed))
        if self._is_due:
            self.goes_on_at = None
            text = (
                f"{len(ready)} of {state.spec.replicas} replicas are here, and at least "
                f"{state.needed} are needed. The job waits for more."
            )
            state.outbox.notice("waiting", ready, text)
        return False

    # ------------------------------------------------------------ REJOIN

    def interrupt(self) -> None:
        """Ask all survivors to give up their quorum and to report their state → REJOIN."""
        state = self._state
        state.interrupt = state.attempts.highest
        state.stalled.clear()
        state.too_few.clear()
        state.enter(Phase.REJOIN)
        state.expect(state.live, state.settings.rejoin_timeout_s)
        self._spared = frozenset()
        state.send(state.live, m.Interrupt(state.interrupt))

    def rejoin(self) -> bool:
        """All survivors have answered and are enough → BUILD; there is no survivor → FENCE."""
        state = self._state
        if not state.live:
            state.enter(Phase.FENCE)
            self.notice_wait()
            return True
        if state.waiting.done:
            return self._go_on()
        if self._spared and self._spared != self._to_spare():  # an answer, or the end of a mend
            assert state.waiting.until is not None, "they are waited for"
            usual_at = state.now + state.settings.rejoin_timeout_s
            state.waiting.until = min(state.waiting.until, usual_at)
            self._spared = frozenset()
        if state.waiting.is_over(state.now) and self._is_silence_over():
            cause = f"no answer within {state.now - state.since:.0f} s; it is replaced"
            spared = self._to_spare()
            late = frozenset(state.waiting.silent()) - spared
            state.replace(late, cause)
            self._spare(spared)
            return bool(late)
        return False

    def _to_spare(self) -> frozenset[str]:
        """The silent survivors for which the lighthouse waits as long as a start may take.

        These are replicas in which a worker is being replaced, if the user has asked for that.
        While no survivor has answered, they are all survivors: one may be replacing a worker, and
        without it no replica would have the job's state.
        """
        state = self._state
        silent = frozenset(state.waiting.silent())
        if state.now >= state.since + state.spec.join_timeout_s:
            return frozenset()
        if state.live <= silent:
            return silent
        waits = state.spec.waits_for_mends
        return frozenset(name for name in silent if waits and state.replicas[name].mends)

    def _spare(self, spared: frozenset[str]) -> None:
        """Wait longer for these replicas, if there are any."""
        state = self._state
        self._spared, state.waiting.until = spared, None
        if not spared:
            return
        state.waiting.until = state.since + state.spec.join_timeout_s
        why = "no other replica holds the job's state"
        if not state.live <= spared:
            why = "a worker is being replaced there"
        left_s = state.waiting.until - state.now
        text = (
            f"The lighthouse waits {left_s:.0f} s more at most for {replicas(spared)}, because "
            f"{why}."
        )
        state.outbox.notice("waiting", spared, text)

    def _is_silence_over(self) -> bool:
        """Whether silent survivors are given up: at the second check (suspicion.py)."""
        state, waiting = self._state, self._state.waiting
        assert waiting.until is not None
        timeout_s, late_s = state.settings.rejoin_timeout_s, state.now - waiting.until
        if self._silence_check.ends(state.since, timeout_s, state.now, late_s):
            return True
        waiting.until = self._silence_check.next_look_at
        return False

    def _go_on(self) -> bool:
        """The survivors decide, or replicas that they would need have been fenced → BUILD."""
        state, case = self._state, self._case()
        found, self.goes_on_at = succeed(case), None
        state.readmit(found.survivors - state.live)
        state.put_off(state.live - found.survivors)
        if found.wait_for:
            self.goes_on_at = None if case.finishing else self._all_fenced_at()
            return False
        if not found.may_decide and not any(survivor.has_healed for survivor in case.survivors):
            state.put_off(found.survivors)  # they were to heal, and no replica is left to heal from
            return True
        return bool(found.members) and self._issue(found)

    def _case(self) -> Case:
        state = self._state
        finishing = frozenset(
            r.replica_id for r in state.replicas.values() if r.leaving is m.LeaveReason.FINISHED
        )
        departed: frozenset[str] = frozenset()
        if state.now < self._all_fenced_at():
            departed = frozenset(member.replica_id for member in state.departed.unaccounted())
        return Case(
            state.quorum,
            self._candidates(state.live),
            self._candidates(state.replicas.ready),
            state.needed,
            prior=state.prior,
            is_switch=state.switch_step is not None,
            finishing=finishing,
            departed=departed,
        )

    def _candidates(self, replica_ids: Collection[str]) -> tuple[Candidate, ...]:
        found = [self._state.replicas[name] for name in replica_ids]
        return tuple(candidate(r, was_removed=self._was_member(r)) for r in found)

    # ------------------------------------------------------------ FENCE

    def departed(self) -> bool:
        """A removed member is back → REJOIN; none can come back any more → EMPTY (Q3, C6)."""
        state = self._state
        lingering = [r for r in state.replicas.values() if r.leaving]
        stay = [r for r in state.replicas.values() if not r.leaving]
        back = {r.replica_id for r in stay if self._was_member(r)}
        if back:
            state.readmit(back)
            state.outbox.notice("joined", back, sentence(f"{replicas(back)} back again."))
            self.interrupt()
            return True
        # A replica that has finished is still ending its process.
        self.goes_on_at = None if lingering else self._all_fenced_at()
        if not self._is_due:
            return False
        if state.slots.done():
            # The holders of the job's state are done; the others would train from the beginning.
            state.end(*outcome(state, NOBODY_HOLDS_IT if stay else NOBODY_IS_LEFT))
            return True
        state.departed.clear()
        state.install(None, ())
        state.enter(Phase.EMPTY)
        state.journal()
        self._is_lost = not any(replica.is_anew for replica in state.replicas.values())
        return True

    def notice_wait(self, only: str | None = None) -> None:
        """Report the lost replicas that the job waits for, and how long.

        ``only``: to this agent.
        """
        state = self._state
        unaccounted = [member.replica_id for member in state.departed.unaccounted()]
        wait_s = self._all_fenced_at() - state.now
        if unaccounted and wait_s > 0:
            text = (
                f"{replicas(unaccounted)} may still run and hold the job's state. The job waits "
                f"for that, {wait_s:.0f} s at most, before it starts over."
            )
            state.outbox.notice("waiting", unaccounted, sentence(text), only)

    @property
    def _is_due(self) -> bool:
        return self.goes_on_at is not None and self._state.now >= self.goes_on_at

    def _all_fenced_at(self) -> float:
        return self._state.departed.all_fenced_at(self._state.silence_s)

    def _was_member(self, replica: Replica) -> bool:
        return self._state.departed.contains(replica.replica_id, replica.incarnation)

    # ------------------------------------------------------------ BUILD

    def _issue(self, found: Succession) -> bool:
        """Issue the next quorum: ``found.members`` with the state that was chosen."""
        state, ids, choice = self._state, found.members, found.choice
        if choice is None:
            cause = "its state is incomplete and no replica is left to heal from; it is replaced"
            state.replace(ids, cause)
            return True
        last = state.quorum
        stands = self._standing(ids, last) if last and len(last.members) == len(ids) else None
        if stands is not None:
            choice = Choice(stands.state, tuple(sorted(ids, key=replica_order)), ())
        if found.survivors and not found.may_decide and state.slots.done():
            # The holders of the job's state are done; the rest would train from the beginning.
            state.end(*outcome(state, NOBODY_HOLDS_IT))
            return True
        lost = state.step_max - choice.state.step
        is_new, refused, tries = self._refused(choice)
        if is_new:
            self.forgive()  # earlier attempts, too, may have failed by this operation
        quorum = self._quorum(choice, stands)
        for name in ids:
            state.replicas[name].joins(name in choice.newcomers, state.now)
        state.install(quorum, ids)
        state.close_quorum(quorum)
        state.step_max = choice.state.step
        self._count_try(choice.state.step)
        state.enter(Phase.BUILD)
        state.expect(ids, state.settings.build_timeout_s)
        state.journal()
        state.send(ids, m.NewQuorum(quorum, refused, tries, self._pauses(ids)))
        self._notice_anew(choice.state.step, 0 if found.may_decide and not self._is_lost else lost)
        return True

    def _refused(self, choice: Choice) -> tuple[bool, str, int]:
        """Whether an operation of the last attempt was refused; whose and why; failed tries (C8).

        This looks at the replicas that hold the state, and at those that were about to heal to it.
        A replica that refused a step which others have committed heals.
        """
        last = self._state.quorum
        begins_again = last is not None and last.step == choice.state.step
        found = [
            (report.refused_tries, report.refused, name)
            for name in sorted((*choice.donors, *choice.newcomers), key=replica_order)
            for report in self._state.replicas[name].reports.values()
            if report.state == choice.state or (report.healing and begins_again)
        ]
        tries = max((count for count, _, _ in found), default=0)
        texts = [f"refused at replica {name}: {text}" for _, text, name in found if text]
        return bool(texts), texts[0] if texts else AGAIN if tries else "", tries

    def _pauses(self, ids: Collection[str]) -> bool:
        """Whether a member's loop pauses by intention: peers then wait without a limit."""
        found = (self._state.replicas[name].progress for name in ids)
        return any(word is not None and word.phase in BY_INTENTION for word in found)

    def _notice_anew(self, step: int, lost: int) -> None:
        """Report that training starts over. Only now, because the loss might have ended the job.

        ``lost``: the number of steps lost, as far as is known.
        """
        is_lost, self._is_lost = self._is_lost, False
        text = f"No replica that is left has a later state. Training continues from step {step}."
        if is_lost:
            text = (
                "All replicas were lost or had left, so no replica holds the job's state. Training "
                f"restarts at step {step}"
                + (
                    ", the step of the state that was loaded from memory or a disk."
                    if step
                    else ", or where the script's own checkpoint begins."
                )
            )
        if lost > 0:
            were = "is" if lost == 1 else "are"
            text += f" {counted(lost, 'step')} {were} lost, as far as is known."
        if is_lost or lost > 0:
            self._state.outbox.notice("lost", (), text)

    def _quorum(self, choice: Choice, stands: Standing | None) -> Quorum:
        state = self._state
        names = (*choice.donors, *choice.newcomers)
        members = state.replicas.members(names, state.workers)
        host = state.replicas[names[0]]
        if self._blame is not None:
            host = self._blame.meets_at([state.replicas[name] for name in names])
        asks = state.workers > 1 or state.spec.waits_for_mends  # else each one decides for itself
        groups = names if asks and stands is None else ()
        reports = {name: state.replicas[name].reports.values() for name in groups}
        cannot_repair = [n for n, of in reports.items() if not can_repair(of, choice.state)]
        return Quorum(
            attempt=state.attempts.issue(members),
            members=members,
            store=host.store,
            step=choice.state.step,
            state=choice.state,
            newcomers=choice.newcomers,
            recomputes=tuple(cannot_repair),
            stands_as=None if stands is None else stands.attempt,
            standing=() if stands is None else stands.kept,
        )

    def _standing(self, names: Collection[str], last: Quorum) -> Standing | None:
        """What stands of the step under way in the same members' next quorum (choice.standing).

        Its results come from all contributors, so the rest of the step must come from all, too.
        """
        state = self._state
        if {m.key for m in state.replicas.members(names, state.workers)} != {
            m.key for m in last.members
        }:
            return None
        found = standing([state.replicas[name].reports for name in names])
        if found is None or found.attempt not in (last.attempt, last.stands_as):
            return None
        return None if last.newcomers and last.step == found.state.step else found

    def build(self) -> bool:
        """All have built the group → STEADY."""
        state = self._state
        if state.waiting.is_over(state.now):
            silent = state.waiting.silent()
            self._blames.failed(silent)
            state.failure = f"{replicas(silent)}: the group was not built in time"
            return True
        if not state.waiting.done:
            return False
        assert state.quorum is not None
        began_at = state.changing_since if state.changing_since is not None else state.since
        state.enter(Phase.STEADY)
        for name in state.live:
            state.replicas[name].is_overtaken = True
        state.changed |= state.live
        state.end_change(state.quorum)
        text = (
            f"{replicas(state.live)} {'trains' if len(state.live) == 1 else 'train'} in quorum "
            f"{state.quorum.attempt} from step {state.quorum.step} on. It formed in "
            f"{state.now - began_at:.3f} s."
        )
        state.outbox.notice("formed", state.live, sentence(text))
        return True

    # ------------------------------------------------------------ attempts that fail

    def blame(self, replica: Replica, unreached: str = "") -> None:
        """This replica has reported an error. ``unreached``: a host that it could not reach."""
        if unreached:
            live = (self._state.replicas[name] for name in self._state.live)
            self._blames.unreached(replica, unreached, live)
        else:
            self._blames.failed([replica.replica_id])

    @property
    def _blames(self) -> Blame:
        self._blame = self._blame or Blame()
        return self._blame

    def excuse(self) -> None:
        """Do not count the attempt, because no replica is at fault for its failure.

        A replica is in an announced pause, or has decided by itself to give the attempt up.
        """
        self._tries = max(0, self._tries - 1)

    def forgive(self) -> None:
        """Do not count any attempt since the last commit."""
        self._tries = 0
        self._blame = None

    def is_exhausted(self) -> bool:
        """Whether the attempts without progress are so many that a replica must be replaced."""
        return self._tries >= self._state.settings.attempts_max

    def replace_worst(self) -> None:
        """Replace the replica that is most to blame (blame.py)."""
        state = self._state
        worst = self._blames.worst(state.replicas[name] for name in state.live)
        found = self._blames.words(state.replicas[worst])
        cause = f"{found} in {self._tries} attempts without progress; it is replaced"
        self.forgive()
        state.replace([worst], cause)

    def _count_try(self, step: int) -> None:
        if step > self._tried_step:
            self.forgive()
        self._tried_step = step
        self._tries += 1
