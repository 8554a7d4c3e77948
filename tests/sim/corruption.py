"""Random lives of replicas whose memory corrupts their parameters, with the real lighthouse.

At the end all show their parameters once more. In some schedules a script changes them in one rank
after its loop, which cannot be told from a corruption.

The oracle knows each replica's parameters, and those that all held when they were last equal: the
truth. Each corruption differs from all others, so a witness that equals most witnesses holds the
truth.
"""

from __future__ import annotations

import random

from ftrun.base.errors import ExitCode
from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.failure_kinds import CORRUPTED, HEAL, REPORT, STOP
from ftrun.core.lighthouse.divergence import Divergence
from ftrun.core.quorum import Endpoint
from tests.sim.violation import Violation
from tests.unit.core.books.booked_job import BookedJob

ROUNDS, EVERY = 12, 100


class World:
    """One schedule. ``healed``, ``undecided``: how many corruptions ended so."""

    def __init__(self, seed: int, kind: type[Divergence] = Divergence) -> None:
        self.draws = draws = random.Random(seed)
        self.action = draws.choice((HEAL, HEAL, STOP, REPORT))
        self.job = BookedJob(draws.randint(2, 5), action=self.action)
        self.job.core.membership.divergence = kind(self.job.core.state)
        self.job.form()
        self.step = EVERY
        self.lives = self.healed = self.undecided = self.ended_unlike = 0
        self.holds = dict.fromkeys(self.job.incarnations, "T")
        self.truth, self.witnesses = "T", set[tuple[str, str]]()
        self.ended = set[tuple[str, str]]()

    def run(self) -> None:
        """Run the schedule; raises Violation."""
        for number in range(ROUNDS):
            is_quiet = number >= ROUNDS - 3
            fault = "" if is_quiet else self.draws.choice(("", "corrupt", "die", "both"))
            if fault in ("corrupt", "both"):
                self.lives += 1
                self.holds[self._any()] = f"x{self.lives}"
            if fault in ("die", "both"):
                self._replace(self._any())
            self._compare(self.draws.random() < 0.2 and not is_quiet)
            if self.job.core.state.outcome is not None:
                self._require(self.action == STOP, "the job has ended, and nobody asked for that")
                code = self.job.core.state.outcome.exit_code
                self._require(code == ExitCode.CORRUPTED, "it has another exit code")
                return
        self._check_end()
        self._end()

    def _any(self) -> str:
        return self.draws.choice(sorted(self.holds))

    def _replace(self, *names: str) -> None:
        """They die, and their successors heal, each from one of the quorum's donors."""
        job, state = self.job, self.job.core.state
        for name in names:
            self.lives += 1
            if name in state.replicas:
                job.lose(name)
            job.start(name, f"life{self.lives}")
            job.report(name)
        for other in self.holds.keys() - set(names):
            job.report(other, self.step)
        self._require(state.quorum is not None, "nobody is left")
        job.build(*self.holds.keys() - set(names))
        plan = job.core.membership.switching.plan
        if plan is None:
            raise Violation("Z2", "nobody joins those that are left")
        for name in self.holds:
            job.say(name, m.Built(plan.attempt))
        for name in self.holds:
            job.say(name, m.Promised(plan.attempt, plan.step))
        for name in self.holds:
            job.say(name, m.InForce(plan.attempt, plan.step))
        quorum = state.quorum
        assert quorum is not None
        self._require(state.live == self.holds.keys(), "not all are back")
        for name in names:
            assert name not in quorum.donors
            donor = self.draws.choice(quorum.donors)
            job.say(name, m.Healed(quorum.attempt, self.step + 1, (donor,), 8, 0.1))
            self.holds[name] = self.holds[donor]

    def _compare(self, one_is_late: bool) -> None:
        """All show their parameters of one state, in any order; one may never do so."""
        self.step += EVERY
        names = sorted(self.holds)
        self.draws.shuffle(names)
        shown = names[one_is_late:]
        before = len(self.job.sent)
        for name in shown:
            mark = m.Mark(self.step, f"s{self.step}", "SGD lr 0.1", self.holds[name])
            self.job.progress(name, self.step, Activity.STEP, marks=(mark,))
        new = self.job.sent[before:]
        self.undecided += sum(
            isinstance(x, m.Notice) and "is unknown which are right" in x.text for x in new
        )
        orders = [x for x in new if isinstance(x, m.RestartReplica)]
        for order in orders:
            if order.reason.startswith(CORRUPTED):
                self.healed += 1
                self._require(self.action == HEAL, "nobody asked for that")
                held = self.holds[order.replica_id]
                self._require(held != self.truth, f"{order.replica_id} held what all had held")
        if orders and self.job.core.state.outcome is None:
            self._replace(*(order.replica_id for order in orders))
        elif len(shown) == len(names) and len(set(self.holds.values())) == 1:
            self.truth = self.holds[names[0]]
            self.witnesses = set(self.job.incarnations.items())

    def _end(self) -> None:
        """All reach their end; before it, one may be corrupted or changed by its script."""
        before = dict(self.holds)
        fault = self.draws.choice(("", "corrupt", "script"))
        name, is_late = self._any(), fault == "script"
        if fault:
            self.lives += 1
            self.holds[name] = f"x{self.lives}"
        self.step += 1
        is_odd, is_over = len(set(self.holds.values())) > 1, False
        for _ in range(len(self.holds) + 1):
            is_over = self._show_ends(is_late)
            if is_over or self.job.core.state.outcome is not None:
                break
        outcome = self.job.core.state.outcome
        if outcome is not None:
            self._require(self.action == STOP and not is_late, "the job ends, and nobody may judge")
            return
        self._require(is_over, "those that have come to the end may not leave")
        is_alike = len(set(self.holds.values())) == 1
        for name in self.holds:
            self.job.say(name, m.Leaving(m.LeaveReason.FINISHED))
            self.job.send(name, m.ReplicaFinished(name, self.job.incarnations[name]))
        outcome = self.job.core.state.outcome
        if outcome is None:
            raise Violation("Z2", "all have finished, and the job has not")
        was_alike = len(set(before.values())) == 1
        if is_late or is_alike:
            self._require(outcome.exit_code == 0, f"it ends with {outcome.exit_code}, and is well")
        elif was_alike and before[name] == self.truth:
            self.ended_unlike += 1
            self._require(outcome.exit_code == ExitCode.CORRUPTED, "it ends unlike, and with 0")
        known = [x.text for x in self.job.sent if isinstance(x, m.Notice)]
        is_named = any("It is unknown whether" in x for x in known)
        self._require(is_named or not (is_late and is_odd), "the difference is not named")

    def _show_ends(self, is_late: bool) -> bool:
        """Each shows its end, in any order; returns whether they may leave then."""
        lineage = f"s{self.step}"
        names = sorted(self.holds)
        self.draws.shuffle(names)
        for name in [*names, names[0]]:
            mark = m.Mark(self.step, lineage, "", self.holds[name], is_late=is_late)
            before = len(self.job.sent)
            self.ended.add((name, self.job.incarnations[name]))
            self.job.say(name, m.Present(Endpoint("h", "h:1"), ended=mark))
            new = self.job.sent[before:]
            orders = [x for x in new if isinstance(x, m.RestartReplica)]
            if orders:
                self._require(self.action == HEAL and not is_late, "nobody may judge that")
                for order in orders:
                    is_right = self.holds[order.replica_id] == self.truth
                    is_wrong = is_right and order.reason.startswith(CORRUPTED)
                    self._require(not is_wrong, f"{order.replica_id} held what all had held")
                self.healed += 1
                self._replace(*(order.replica_id for order in orders))
                return False
            rosters = [x.message for x in new if isinstance(x, m.ToWorkers)]
            is_over = any(isinstance(x, m.Roster) and x.compared == lineage for x in rosters)
            are_all = set(self.job.incarnations.items()) <= self.ended
            self._require(are_all or not is_over, "not all have shown their ends")
        return is_over

    def _check_end(self) -> None:
        odd = len(set(self.holds.values())) > 1
        alive = self.witnesses & set(self.job.incarnations.items())
        held = [self.holds[name] for name, _ in alive]
        is_known = 2 * held.count(self.truth) > len(held)
        if odd and alive and self.action == STOP:
            self._require(not any(x != self.truth for x in held), "the job continues")
        if alive and self.action == HEAL and is_known:
            self._require(not any(x != self.truth for x in held), "one that is odd may be a donor")
        if self.action == HEAL and alive and not is_known and odd:
            self._require(self.undecided > 0, "nobody was told")

    def _require(self, holds: bool, words: str) -> None:
        if not holds:
            raise Violation("Z2", f"{words} ({self.action}, {self.holds}, truth {self.truth})")
