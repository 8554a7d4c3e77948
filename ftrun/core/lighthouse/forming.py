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
from ftrun.core.lighthouse.state import Stage
from ftrun.core.lighthouse.suspicion import Patience
from ftrun.core.quorum import Quorum


class Forming:
    """Gathers who is left or who has come, chooses the state and issues the quorum."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._gathering_since: float | None = None
        self._is_lost = False  # nobody holds the job's state: the next quorum begins anew
        self._patience = Patience()
        self._tries = 0
        self._tried_step = -1
        self._errors: Counter[str] = Counter()

    # ------------------------------------------------------------ EMPTY

    def gather(self) -> bool:
        """Begin with all, or after the join timeout with enough → BUILD."""
        stage = self._stage
        ready = stage.replicas.ready
        if not ready:
            self._gathering_since = stage.deadline = None
            return False
        if self._gathering_since is None:
            self._gathering_since = stage.now
            stage.deadline = stage.now + stage.spec.join_timeout_s
        is_late = stage.now >= self._gathering_since + stage.spec.join_timeout_s
        if len(ready) >= (stage.needed if is_late else stage.slots.open_count):
            self._gathering_since = None
            stage.history.begin(stage.now, "form", f"{replicas(ready)} ready")
            return self._issue(set(ready))
        if stage.is_due:
            stage.deadline = None
            text = (
                f"{len(ready)} of {stage.spec.replicas} replicas are here and at least "
                f"{stage.needed} are needed: waiting for more."
            )
            stage.outbox.notice("waiting", ready, text)
        return False

    # ------------------------------------------------------------ REJOIN

    def interrupt(self, lost: tuple[m.Loss, ...]) -> None:
        """All survivors give up what they are in and say what they hold → REJOIN."""
        stage = self._stage
        stage.interrupt = stage.attempts.highest
        stage.stalled.clear()
        stage.too_few.clear()
        stage.enter(Phase.REJOIN, stage.settings.rejoin_timeout_s)
        stage.waiting.expect(stage.live, stage.workers)
        stage.tell(stage.live, m.Interrupt(stage.interrupt, lost))

    def rejoin(self) -> bool:
        """All have answered and are enough → BUILD; nobody is left → FENCE."""
        stage = self._stage
        if not stage.live:
            stage.enter(Phase.FENCE)
            self.notice_wait()
            return True
        if stage.waiting.done:
            stage.deadline = None
            return self._go_on()
        if self._is_silence_over():
            stage.deadline = None
            cause = f"no answer within {stage.settings.rejoin_timeout_s:g} s; it is replaced"
            stage.replace(stage.waiting.silent(), cause)
            return True
        return False

    def _is_silence_over(self) -> bool:
        """Whether who has not answered is given up: we may have been stopped, and they with us."""
        stage = self._stage
        if stage.deadline is None or not stage.is_due:
            return False
        timeout_s = stage.settings.rejoin_timeout_s
        late_s = stage.now - stage.deadline
        if self._patience.ends(stage.since, timeout_s, stage.now, late_s):
            return True
        stage.deadline = self._patience.next_look_at
        return False

    def _go_on(self) -> bool:
        """The survivors are enough, and nobody goes on without them → BUILD."""
        stage = self._stage
        if not self._may_decide():
            self._take_back()
        all_fenced_at = self._all_fenced_at()
        if not self._may_decide():
            if any(replica.leaving == "finished" for replica in stage.replicas):
                return False  # who holds the job's state does its last work: then the job is over
            if stage.now < all_fenced_at:
                stage.deadline = all_fenced_at
                return False
        self._put_back_newcomers()
        ids = set(stage.live)
        if len(ids) < stage.needed or self._too_few_count():
            ids |= stage.replicas.ready
        return len(ids) >= stage.needed and self._issue(ids)

    def _put_back_newcomers(self) -> None:
        """A switch to a step at which a script lets nobody join: newcomers join at a later one.

        Unless the others are too few to train.
        """
        stage, quorum = self._stage, self._stage.quorum
        if quorum is None or stage.switch_step is None or self._too_few_count():
            return
        late = stage.live & set(quorum.newcomers)
        others = [stage.replicas[name] for name in stage.live - late]
        if len(others) >= stage.needed and any(_bars(replica, quorum) for replica in others):
            stage.live -= late
            stage.replicas.ready |= late

    def _too_few_count(self) -> bool:
        """The survivors cannot commit the step that they are at without others."""
        survivors = (self._stage.replicas[name] for name in self._stage.live)
        return any(report.too_few for r in survivors for report in r.reports.values())

    def _may_decide(self) -> bool:
        """Whether the survivors can go on without asking those who are lost (Q3, C6).

        One of them was interrupted in every quorum that may be in force: in the middle of a switch
        these are two, leavers are of the first one only, and newcomers of the second. And one
        holds what the quorum began with: newcomers that have not healed do not.
        """
        stage = self._stage
        quorums = [q for q in (stage.prior, stage.quorum) if q is not None and q.members]
        survivors = [stage.replicas[name] for name in stage.live]
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
        quorum = self._stage.prior or self._stage.quorum
        if quorum is None or any(_holds(replica, quorum) for replica in replicas):
            return False
        members = [r for r in replicas if quorum.index(r.replica_id, r.incarnation) is not None]
        here = {replica.replica_id for replica in members}
        return not quorum.donors or not here.issuperset(quorum.donors)

    def _take_back(self) -> None:
        """Members that were struck and are here again, and have given up what they were in."""
        stage = self._stage
        back = {name for name in stage.replicas.ready if self._was_member(stage.replicas[name])}
        self._release(back)
        stage.live |= back
        stage.replicas.ready -= back

    # ------------------------------------------------------------ FENCE

    def departed(self) -> bool:
        """A member or stray is back → REJOIN; none can come any more → EMPTY (Q3, C6)."""
        stage = self._stage
        lingering = [r for r in stage.replicas if r.leaving]
        back = {r.replica_id for r in stage.replicas if not r.leaving and self._was_member(r)}
        if back:
            self._release(back)
            stage.live = back
            stage.replicas.ready -= back
            stage.outbox.notice("joined", back, sentence(f"{replicas(back)} back again."))
            self.interrupt(())
            return True
        stage.deadline = self._all_fenced_at()
        if lingering:
            stage.deadline = None  # it has finished and does its last work
        if not stage.is_due:
            return False
        if stage.slots.finished():
            stage.end(0, "some replicas have finished and nobody is left who could")
            return True
        stage.departed.clear()
        stage.quorum = stage.prior = stage.switch_step = None
        stage.enter(Phase.EMPTY)
        stage.journal()
        self._is_lost = True
        return True

    def notice_wait(self, only: str | None = None) -> None:
        """Nobody is left to go on with: who is waited for, and how long; to all or one agent."""
        stage = self._stage
        unaccounted = [member.replica_id for member in stage.departed.unaccounted()]
        wait_s = self._all_fenced_at() - stage.now
        if unaccounted and wait_s > 0:
            text = (
                f"{replicas(unaccounted)} may live on with the job's state: the job waits for "
                f"{wait_s:.0f} s at most before it begins anew."
            )
            stage.outbox.notice("waiting", unaccounted, sentence(text), only)

    def _all_fenced_at(self) -> float:
        return self._stage.departed.all_fenced_at(self._stage.silence_s)

    def _release(self, replica_ids: set[str]) -> None:
        for name in replica_ids:
            self._stage.departed.release(name, self._stage.replicas[name].incarnation)

    def _was_member(self, replica: Replica) -> bool:
        return self._stage.departed.contains(replica.replica_id, replica.incarnation)

    # ------------------------------------------------------------ BUILD

    def _issue(self, ids: set[str]) -> bool:
        """The next quorum: these replicas, with the best state that any of them holds."""
        stage = self._stage
        replicas = stage.replicas
        choice = self._choice(ids)
        if choice is None:
            cause = "it holds no whole state and nobody is left to heal from; it is replaced"
            stage.replace(ids, cause)
            return True
        if stage.live and not self._may_decide() and stage.slots.finished():
            # Those who held the job's state are done; the rest would train it all over again.
            stage.end(0, "some replicas have finished and nobody who is left holds their work")
            return True
        stage.quorum = self._quorum(choice)
        for name in ids:
            replicas[name].joins(name in choice.newcomers)
        stage.prior = None
        stage.switch_step = None
        stage.live = set(ids)
        replicas.ready -= ids
        stage.close_quorum(stage.quorum)
        stage.step_max = choice.state.step
        self._count_try(choice.state.step)
        stage.enter(Phase.BUILD, stage.settings.build_timeout_s)
        stage.waiting.expect(ids, stage.workers)
        stage.journal()
        stage.tell(ids, m.NewQuorum(stage.quorum))
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
            self._stage.outbox.notice("lost", (), text)

    def _choice(self, ids: set[str]) -> Choice | None:
        """Whose state is gone on with: the survivors', if they can decide, whatever others hold.

        Who was given up long ago may hold more steps of a history that is none any more (Q3). Who
        was struck from the quorum that they were interrupted in, and is here again, is one of them;
        who was to heal in it and has not, is none.
        """
        stage = self._stage
        held = {name: group_state(stage.replicas[name].reports.values()) for name in ids}
        if stage.live and self._may_decide():
            members = stage.live | {name for name in ids if self._was_with_survivors(name)}
            voices = {name for name in members if not stage.replicas[name].has_not_healed()}
            own = choose({name: held[name] for name in voices})
            if own is not None:
                voices |= {name for name, at in held.items() if at == own.state}
                held = {name: at if name in voices else None for name, at in held.items()}
        return choose(held)

    def _was_with_survivors(self, replica_id: str) -> bool:
        replica = self._stage.replicas[replica_id]
        quorums = (self._stage.prior, self._stage.quorum)
        found = (q.index(replica_id, replica.incarnation) for q in quorums if q is not None)
        return any(index is not None for index in found)

    def _quorum(self, choice: Choice) -> Quorum:
        stage = self._stage
        names = (*choice.donors, *choice.newcomers)
        members = stage.replicas.members(names, stage.workers)
        groups = names if stage.workers > 1 else ()  # one worker decides for itself
        cannot_repair = [n for n in groups if not can_repair(stage.replicas[n].reports.values())]
        return Quorum(
            attempt=stage.attempts.issue(members),
            members=members,
            store=stage.replicas[choice.donors[0]].store,
            step=choice.state.step,
            state=choice.state,
            newcomers=choice.newcomers,
            donors=choice.donors,
            recomputes=tuple(cannot_repair),
        )

    def build(self) -> bool:
        """All have built it → STEADY."""
        stage = self._stage
        if stage.is_due:
            silent = stage.waiting.silent()
            self._errors.update(silent)
            stage.failure = f"{replicas(silent)}: the group was not built in time"
            return True
        if not stage.waiting.done:
            return False
        assert stage.quorum is not None
        change = stage.history.under_way
        began_at = change.began_at if change is not None else stage.since
        stage.enter(Phase.STEADY)
        stage.history.complete(stage.now, stage.quorum)
        text = (
            f"{replicas(stage.live)} in quorum {stage.quorum.attempt} from step "
            f"{stage.quorum.step} on, after {stage.now - began_at:.3f} s."
        )
        stage.outbox.notice("formed", stage.live, sentence(text))
        return True

    # ------------------------------------------------------------ attempts that fail

    def blame(self, replica_id: str) -> None:
        """This replica has reported an error."""
        self._errors[replica_id] += 1

    def is_exhausted(self) -> bool:
        """So many attempts without progress that whoever failed most often must be replaced."""
        return self._tries >= self._stage.settings.attempts_max

    def replace_worst(self) -> None:
        """Replace the replica that failed most often; of equals the one that came last."""
        stage = self._stage
        worst = max(stage.live, key=lambda name: (self._errors[name], replica_order(name)))
        cause = f"it failed most often in {self._tries} attempts without progress; it is replaced"
        self._tries = 0
        self._errors.clear()
        stage.replace([worst], cause)

    def _count_try(self, step: int) -> None:
        if step > self._tried_step:
            self._tries = 0
            self._errors.clear()
        self._tried_step = step
        self._tries += 1


def _holds(replica: Replica, quorum: Quorum) -> bool:
    """It is where ``quorum`` began, or further, in the same history."""
    state, began = group_state(replica.reports.values()), quorum.step or 0
    if state is not None and state.step == began == 0:
        return True  # whichever: there all heal before they reduce, so nobody can be ahead
    if state is None or replica.has_not_healed():
        return False
    return state.step > began or (state.step == began and quorum.state in (None, state))


def _bars(replica: Replica, quorum: Quorum) -> bool:
    """It is at the step at which ``quorum`` was to begin, and lets nobody join there."""
    return any(x.holds and x.state.step == quorum.step for x in replica.reports.values())
