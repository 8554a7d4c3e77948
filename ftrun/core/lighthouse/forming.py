"""Quorums that begin from a standstill: EMPTY, REJOIN, FENCE and BUILD of phases.py.

Each rule says whether it has changed anything. Not here: who is lost, and why (membership.py).
"""

from __future__ import annotations

from collections import Counter

from ftrun.core import messages as m
from ftrun.core.ids import replica_order
from ftrun.core.lighthouse.choice import Choice, can_repair, choose, group_state
from ftrun.core.lighthouse.history import replicas, sentence
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.suspicion import SilenceCheck
from ftrun.core.quorum import Quorum


class Forming:
    """Gathers who is left or who has come, chooses the state and issues the quorum."""

    def __init__(self, state: MembershipState) -> None:
        self._state = state
        self._gathering_since: float | None = None
        self._is_lost = False  # nobody holds the job's state: the next quorum begins anew
        self._silence_check = SilenceCheck()
        self._tries = 0
        self._tried_step = -1
        self._errors: Counter[str] = Counter()

    # ------------------------------------------------------------ EMPTY

    def gather(self) -> bool:
        """Begin with all, or after the join timeout with enough → BUILD."""
        state = self._state
        ready = state.replicas.ready
        if not ready:
            self._gathering_since = state.deadline = None
            return False
        if self._gathering_since is None:
            self._gathering_since = state.now
            state.deadline = state.now + state.spec.join_timeout_s
        is_late = state.now >= self._gathering_since + state.spec.join_timeout_s
        if len(ready) >= (state.needed if is_late else state.slots.open_count):
            self._gathering_since = None
            state.history.begin(state.now, "form", f"{replicas(ready)} ready")
            return self._issue(set(ready))
        if state.is_due:
            state.deadline = None
            text = (
                f"{len(ready)} of {state.spec.replicas} replicas are here and at least "
                f"{state.needed} are needed: waiting for more."
            )
            state.outbox.notice("waiting", ready, text)
        return False

    # ------------------------------------------------------------ REJOIN

    def interrupt(self, lost: tuple[m.Loss, ...]) -> None:
        """All survivors give up what they are in and say what they hold → REJOIN."""
        state = self._state
        state.interrupt = state.attempts.highest
        state.stalled.clear()
        state.too_few.clear()
        state.enter(Phase.REJOIN, state.settings.rejoin_timeout_s)
        state.waiting.expect(state.live, state.workers)
        state.send(state.live, m.Interrupt(state.interrupt, lost))

    def rejoin(self) -> bool:
        """All have answered and are enough → BUILD; nobody is left → FENCE."""
        state = self._state
        if not state.live:
            state.enter(Phase.FENCE)
            self.notice_wait()
            return True
        if state.waiting.done:
            state.deadline = None
            return self._go_on()
        if self._is_silence_over():
            state.deadline = None
            cause = f"no answer within {state.settings.rejoin_timeout_s:g} s; it is replaced"
            state.replace(state.waiting.silent(), cause)
            return True
        return False

    def _is_silence_over(self) -> bool:
        """Whether who has not answered is given up: we may have been stopped, and they with us."""
        state = self._state
        if state.deadline is None or not state.is_due:
            return False
        timeout_s = state.settings.rejoin_timeout_s
        late_s = state.now - state.deadline
        if self._silence_check.ends(state.since, timeout_s, state.now, late_s):
            return True
        state.deadline = self._silence_check.next_look_at
        return False

    def _go_on(self) -> bool:
        """The survivors are enough, and nobody goes on without them → BUILD."""
        state = self._state
        if not self._may_decide():
            self._take_back()
        all_fenced_at = self._all_fenced_at()
        if not self._may_decide():
            if any(replica.leaving == "finished" for replica in state.replicas):
                return False  # who holds the job's state does its last work: then the job is over
            if state.now < all_fenced_at:
                state.deadline = all_fenced_at
                return False
        self._put_back_newcomers()
        ids = set(state.live)
        if len(ids) < state.needed or self._too_few_count():
            ids |= state.replicas.ready
        return len(ids) >= state.needed and self._issue(ids)

    def _put_back_newcomers(self) -> None:
        """A switch to a step at which a script lets nobody join: newcomers join at a later one.

        Unless the others are too few to train.
        """
        state, quorum = self._state, self._state.quorum
        if quorum is None or state.switch_step is None or self._too_few_count():
            return
        late = state.live & set(quorum.newcomers)
        others = [state.replicas[name] for name in state.live - late]
        if len(others) >= state.needed and any(_bars(replica, quorum) for replica in others):
            state.put_off(late)

    def _too_few_count(self) -> bool:
        """The survivors cannot commit the step that they are at without others."""
        survivors = (self._state.replicas[name] for name in self._state.live)
        return any(report.too_few for r in survivors for report in r.reports.values())

    def _may_decide(self) -> bool:
        """Whether the survivors can go on without asking those who are lost (Q3, C6).

        One of them was interrupted in every quorum that may be in force: in the middle of a switch
        these are two, leavers are of the first one only, and newcomers of the second. And one
        holds what the quorum began with: newcomers that have not healed do not.
        """
        state = self._state
        quorums = [q for q in (state.prior, state.quorum) if q is not None and q.members]
        survivors = [state.replicas[name] for name in state.live]
        are_stopped = all(
            any(q.index(r.replica_id, r.incarnation) is not None for r in survivors)
            for q in quorums
        )
        return are_stopped and not self._are_behind(survivors)

    def _are_behind(self, replicas: list[Replica]) -> bool:
        """Nobody holds what the last quorum began with; in a switch, what its predecessor did.

        If all its donors are here and none holds it, nobody does: results that they reported were
        outdated by one more operation of the script.
        """
        quorum = self._state.prior or self._state.quorum
        if quorum is None or any(_holds(replica, quorum) for replica in replicas):
            return False
        members = [r for r in replicas if quorum.index(r.replica_id, r.incarnation) is not None]
        here = {replica.replica_id for replica in members}
        return not quorum.donors or not here.issuperset(quorum.donors)

    def _take_back(self) -> None:
        """Members that were struck and are here again, and have given up what they were in."""
        state = self._state
        back = {name for name in state.replicas.ready if self._was_member(state.replicas[name])}
        state.readmit(back)

    # ------------------------------------------------------------ FENCE

    def departed(self) -> bool:
        """A member or stray is back → REJOIN; none can come any more → EMPTY (Q3, C6)."""
        state = self._state
        lingering = [r for r in state.replicas if r.leaving]
        back = {r.replica_id for r in state.replicas if not r.leaving and self._was_member(r)}
        if back:
            state.readmit(back)
            state.outbox.notice("joined", back, sentence(f"{replicas(back)} back again."))
            self.interrupt(())
            return True
        state.deadline = self._all_fenced_at()
        if lingering:
            state.deadline = None  # it has finished and does its last work
        if not state.is_due:
            return False
        if state.slots.finished():
            state.end(0, "some replicas have finished and nobody is left who could")
            return True
        state.departed.clear()
        state.install(None, ())
        state.enter(Phase.EMPTY)
        state.journal()
        self._is_lost = True
        return True

    def notice_wait(self, only: str | None = None) -> None:
        """Nobody is left to go on with: who is waited for, and how long; to all or one agent."""
        state = self._state
        unaccounted = [member.replica_id for member in state.departed.unaccounted()]
        wait_s = self._all_fenced_at() - state.now
        if unaccounted and wait_s > 0:
            text = (
                f"{replicas(unaccounted)} may live on with the job's state: the job waits for "
                f"{wait_s:.0f} s at most before it begins anew."
            )
            state.outbox.notice("waiting", unaccounted, sentence(text), only)

    def _all_fenced_at(self) -> float:
        return self._state.departed.all_fenced_at(self._state.silence_s)

    def _was_member(self, replica: Replica) -> bool:
        return self._state.departed.contains(replica.replica_id, replica.incarnation)

    # ------------------------------------------------------------ BUILD

    def _issue(self, ids: set[str]) -> bool:
        """The next quorum: these replicas, with the best state that any of them holds."""
        state = self._state
        replicas = state.replicas
        choice = self._choice(ids)
        if choice is None:
            cause = "it holds no whole state and nobody is left to heal from; it is replaced"
            state.replace(ids, cause)
            return True
        if state.live and not self._may_decide() and state.slots.finished():
            # Those who held the job's state are done; the rest would train it all over again.
            state.end(0, "some replicas have finished and nobody who is left holds their work")
            return True
        quorum = self._quorum(choice)
        for name in ids:
            replicas[name].joins(name in choice.newcomers)
        state.install(quorum, ids)
        state.close_quorum(quorum)
        state.step_max = choice.state.step
        self._count_try(choice.state.step)
        state.enter(Phase.BUILD, state.settings.build_timeout_s)
        state.waiting.expect(ids, state.workers)
        state.journal()
        state.send(ids, m.NewQuorum(quorum))
        self._notice_anew(choice.state.step)
        return True

    def _notice_anew(self, step: int) -> None:
        """Told when it is certain: a job that ends by that loss does not begin anew."""
        if self._is_lost:
            self._is_lost = False
            text = (
                "All replicas were lost, or had left, and nobody holds the job's state any more: "
                f"training begins again at step {step}"
                + (", where the script's own checkpoint begins." if step else ".")
            )
            self._state.outbox.notice("lost", (), text)

    def _choice(self, ids: set[str]) -> Choice | None:
        """Whose state is gone on with: the survivors', if they can decide, whatever others hold.

        Who was given up long ago may hold more steps of a history that is none any more (Q3). Who
        was struck from the quorum that they were interrupted in, and is here again, is one of them;
        who was to heal in it and has not, is none.
        """
        state = self._state
        held = {name: group_state(state.replicas[name].reports.values()) for name in ids}
        if state.live and self._may_decide():
            members = state.live | {name for name in ids if self._was_with_survivors(name)}
            voices = {name for name in members if not state.replicas[name].has_not_healed()}
            own = choose({name: held[name] for name in voices})
            if own is not None:
                voices |= {name for name, at in held.items() if at == own.state}
                held = {name: at if name in voices else None for name, at in held.items()}
        return choose(held)

    def _was_with_survivors(self, replica_id: str) -> bool:
        replica = self._state.replicas[replica_id]
        quorums = (self._state.prior, self._state.quorum)
        found = (q.index(replica_id, replica.incarnation) for q in quorums if q is not None)
        return any(index is not None for index in found)

    def _quorum(self, choice: Choice) -> Quorum:
        state = self._state
        names = (*choice.donors, *choice.newcomers)
        members = state.replicas.members(names, state.workers)
        groups = names if state.workers > 1 else ()  # one worker decides for itself
        cannot_repair = [n for n in groups if not can_repair(state.replicas[n].reports.values())]
        return Quorum(
            attempt=state.attempts.issue(members),
            members=members,
            store=state.replicas[choice.donors[0]].store,
            step=choice.state.step,
            state=choice.state,
            newcomers=choice.newcomers,
            donors=choice.donors,
            recomputes=tuple(cannot_repair),
        )

    def build(self) -> bool:
        """All have built it → STEADY."""
        state = self._state
        if state.is_due:
            silent = state.waiting.silent()
            self._errors.update(silent)
            state.failure = f"{replicas(silent)}: the group was not built in time"
            return True
        if not state.waiting.done:
            return False
        assert state.quorum is not None
        change = state.history.under_way
        began_at = change.began_at if change is not None else state.since
        state.enter(Phase.STEADY)
        state.history.complete(state.now, state.quorum)
        text = (
            f"{replicas(state.live)} in quorum {state.quorum.attempt} from step "
            f"{state.quorum.step} on, after {state.now - began_at:.3f} s."
        )
        state.outbox.notice("formed", state.live, sentence(text))
        return True

    # ------------------------------------------------------------ attempts that fail

    def blame(self, replica_id: str) -> None:
        """This replica has reported an error."""
        self._errors[replica_id] += 1

    def is_exhausted(self) -> bool:
        """So many attempts without progress that whoever failed most often must be replaced."""
        return self._tries >= self._state.settings.attempts_max

    def replace_worst(self) -> None:
        """Replace the replica that failed most often; of equals the one that came last."""
        state = self._state
        worst = max(state.live, key=lambda name: (self._errors[name], replica_order(name)))
        cause = f"it failed most often in {self._tries} attempts without progress; it is replaced"
        self._tries = 0
        self._errors.clear()
        state.replace([worst], cause)

    def _count_try(self, step: int) -> None:
        if step > self._tried_step:
            self._tries = 0
            self._errors.clear()
        self._tried_step = step
        self._tries += 1


def _holds(replica: Replica, quorum: Quorum) -> bool:
    """It is where ``quorum`` began, or further, in the same history."""
    held, began = group_state(replica.reports.values()), quorum.step or 0
    if held is not None and held.step == began == 0:
        return True  # whichever: there all heal before they reduce, so nobody can be ahead
    if held is None or replica.has_not_healed():
        return False
    return held.step > began or (held.step == began and quorum.state in (None, held))


def _bars(replica: Replica, quorum: Quorum) -> bool:
    """It is at the step at which ``quorum`` was to begin, and lets nobody join there."""
    return any(
        x.freezes_membership and x.state.step == quorum.step for x in replica.reports.values()
    )
