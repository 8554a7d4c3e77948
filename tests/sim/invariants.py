"""Checks the invariants Q1-Q6, Q10, C1-C4, S1, S2 and H1 of INVARIANTS.md on a history.

Each method takes a fact and raises a ``Violation`` if it breaks an invariant. Nothing here depends
on the simulation: the history of a run with real processes can be checked as well. Not here: L1,
which must know when faults have stopped (world.py), the rules with a memory of their own
(quorum_rules.py, commit_rules.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from ftrun.core import messages as m
from ftrun.core.ids import NO_ATTEMPT, Attempt, StateId, Tag, WorkerKey
from ftrun.core.quorum import Quorum
from ftrun.core.worker.heal import REFUSALS_MAX
from tests.sim.commit_rules import CommitRules, LineageRules
from tests.sim.quorum_rules import Incarnation, PromiseRules, QuorumRules
from tests.sim.violation import Sum, Violation, require

CANNOT_SERVE = "cannot serve its state"

__all__ = ["CANNOT_SERVE", "Invariants", "Violation"]


class Invariants:
    """The memory of one job's history, and the checks at each fact."""

    def __init__(
        self, slots: int, workers: int, min_replicas: int, contributors_max: int | None = None
    ) -> None:
        self.quorums = QuorumRules(slots, min_replicas, workers)
        self.promises = PromiseRules()
        self.lineages = LineageRules(workers)
        self.commits = CommitRules(workers, contributors_max)
        self._acted: dict[WorkerKey, Attempt] = {}
        self._given_up: dict[WorkerKey, Attempt] = {}
        self._succeeded: set[str] = set()  # incarnations whose slot another one took
        self._contents: dict[tuple[StateId, int], tuple[int, WorkerKey]] = {}
        self._offers: dict[tuple[Attempt, int], tuple[StateId, WorkerKey]] = {}
        self._serves_not: set[WorkerKey] = set()
        self._refusals: Counter[WorkerKey] = Counter()
        self._leave_together: frozenset[str] = frozenset()  # incarnations
        self._claims: dict[str, StateId] = {}  # of incarnations

    # ------------------------------------------------------------ the lighthouse

    def takeover_began(self, now: float, grace_s: float, quorum: Quorum | None) -> None:
        """A lighthouse has started; ``quorum`` is in its journal."""
        self.quorums.takeover_began(now, grace_s, quorum)

    def back(self, now: float, key: WorkerKey) -> None:
        """A worker's Report has reached the lighthouse."""
        self.quorums.back(now, key)

    def lighthouse_sent(
        self, now: float, message: m.ToWorker, removed: Collection[tuple[str, str]] = ()
    ) -> None:
        """It sends ``message``. ``removed``: former members that are not known to be dead."""
        if isinstance(message, m.NewQuorum):
            self._check_claims(message.quorum)
        self.quorums.sent(now, message, removed)

    def switch_confirmed(self, quorum: Quorum, step: int) -> None:
        """The switch to ``quorum`` at ``step`` is in the journal (Q10)."""
        stay = self._leave_together.intersection(x.incarnation for x in quorum.members)
        text = f"{sorted(stay)} stay at step {step}; others left that were asked with them"
        require(stay in (set(), self._leave_together), "Q10", text)
        self.quorums.switched(quorum)
        self.promises.confirmed(quorum.attempt, step)

    def switch_received(self, key: WorkerKey, attempt: Attempt) -> None:
        """A worker has received the confirmation of a switch."""
        self.promises.heard(key, attempt)

    def journal_lost(self) -> None:
        """The state directory of the lighthouse is gone."""
        self.promises.journal_lost()

    def excuse(self, incarnation: str, why: str) -> None:
        """The lighthouse may now treat this incarnation as lost, or gone."""
        self.quorums.excused[incarnation] = why

    def agent_lost(self, now: float, incarnations: Sequence[Incarnation]) -> None:
        """Their agent's stream is over: the lighthouse has removed them."""
        self.quorums.strike(now, incarnations)

    def lease(self, incarnation: str, until: float) -> None:
        """A worker of the incarnation has a lease: it may commit for this time."""
        leases = self.quorums.leases
        leases[incarnation] = max(until, leases.get(incarnation, 0.0))

    def too_few(self, key: WorkerKey, claimed: bool) -> None:
        """A worker's Report states that too few contributed for it, or no longer states that."""
        (self.quorums.too_few.add if claimed else self.quorums.too_few.discard)(key)

    def killed(self, incarnation: str) -> None:
        """Its agent kills it now, if it is not dead yet."""
        self.quorums.leases.pop(incarnation, None)

    def stood_still(self, incarnation: str) -> None:
        """The lighthouse has a replica replaced because its loop stands still (Q4)."""
        text = f"{incarnation} is replaced as one that stands still, and it trains"
        require(incarnation in self.quorums.excused, "Q4", text)

    def diverged(self, incarnation: str, reason: str) -> None:
        """The lighthouse has a replica replaced because its state is not its peers' (Z2).

        No simulated script diverges, because equal names of states are equal contents (S1).
        """
        raise Violation("Z2", f"{incarnation} {reason}, and it has not")

    def slot_ends(self, replica_id: str) -> None:
        """The slot's script has ended."""
        self.quorums.ended.add(replica_id)

    def left(self, key: WorkerKey) -> None:
        """A worker has left at a boundary, and commits nothing more."""
        self.quorums.left.add(key)
        self.promises.forgets(key)

    def leave_together(self, members: Collection[str]) -> None:
        """The nodes of these incarnations are asked to leave, all within the time that gathers
        drains."""
        self._leave_together = frozenset(members)

    def gives_away(self, living: Sequence[str], heard: Sequence[str]) -> None:
        """The lighthouse assigns a slot: it may give up the slot's incarnations on nodes without
        contact."""
        self._succeeded.update(set(living) - set(heard))

    def starts(self, replica_id: str, living: Sequence[str], heard: Sequence[str]) -> None:
        """An agent starts a slot with ``living`` incarnations (Q4).

        ``heard``: those of them at connected agents.
        An incarnation that was asked to leave must end before another takes its slot, unless
        another took it earlier, after the lighthouse rightly gave the first one up.
        """
        asked = "it was asked to leave", "it has left"
        others = [
            x for x in heard if self.quorums.excused.get(x) in asked and x not in self._succeeded
        ]
        self._succeeded.update(living)
        text = f"{replica_id} is started while {others} of it live"
        require(not others, "Q4", text)

    # ------------------------------------------------------------ workers

    def acts_on(self, key: WorkerKey, attempt: Attempt, what: str) -> None:
        """A worker builds or uses the group of ``attempt`` (Q2)."""
        before = self._acted.get(key, NO_ATTEMPT)
        if attempt < before:
            raise Violation("Q2", f"{key} {what} {attempt} after {before}")
        self._acted[key] = attempt

    def gave_up(self, key: WorkerKey, attempt: Attempt) -> None:
        """A worker reports the attempts that it has given up for good (Q2)."""
        before = self._given_up.get(key, NO_ATTEMPT)
        if attempt < before:
            raise Violation("Q2", f"{key} has given up {before}, and now only {attempt}")
        self._given_up[key] = attempt
        given_up = self.quorums.given_up
        given_up[key.incarnation] = max(attempt, given_up.get(key.incarnation, NO_ATTEMPT))
        self.promises.forgets(key, attempt)

    def promised(self, key: WorkerKey, attempt: Attempt, step: int) -> None:
        """A worker promises not to begin ``step`` under the quorum that it has."""
        self.promises.promised(key, attempt, step)

    def promise_void(self, key: WorkerKey, attempt: Attempt) -> None:
        """A Cancel, an Interrupt or a newer quorum has reached the worker."""
        self.promises.void(key, attempt)

    def reduces(self, key: WorkerKey, tag: Tag) -> None:
        """A worker issues a reduction (Q2, Q5)."""
        given_up = self._given_up.get(key, NO_ATTEMPT)
        text = f"{key} reduces {tag} and has given up {given_up}"
        require(tag.attempt > given_up, "Q2", text)
        self.promises.reduces(key, tag)

    def hands_out(self, key: WorkerKey, tag: Tag | None, index: int, *, again: bool) -> None:
        """The script gets a result, or the operation is retried (S7)."""
        require(
            not again, "S7", f"{key} changes operation {index} of {tag}, which it has handed out"
        )

    def cannot_serve(self, key: WorkerKey) -> None:
        """A donor finds that it cannot serve its state: that is no reason to end (H1)."""
        self._serves_not.add(key)

    def refused(self, key: WorkerKey) -> None:
        """All donors of a newcomer have refused again; a heal resets the count (H1)."""
        self._refusals[key] += 1
        text = f"{key} was refused {self._refusals[key]} times in a row, and tries on"
        require(self._refusals[key] <= REFUSALS_MAX, "H1", text)

    def raises(self, key: WorkerKey, reason: str) -> None:
        """A worker's main thread ends with an error (H1)."""
        is_of_serving = key in self._serves_not and reason == CANNOT_SERVE
        require(not is_of_serving, "H1", f"{key} ends because it could not serve its state")

    def claims(self, key: WorkerKey, state: StateId) -> None:
        """A worker starts from the memory that its slot's last group has left."""
        self._claims[key.incarnation] = state
        self.lineages.heals(key)

    def _check_claims(self, quorum: Quorum) -> None:
        """A job without members that train resumes from the newest state that a member has claimed
        (E7)."""
        if self.quorums.knows(quorum):
            return
        claimed = [self._claims.get(x.incarnation) for x in quorum.members]
        newest = max((x.step for x in claimed if x is not None), default=0)
        text = f"{quorum.attempt} begins at {quorum.step}, and a member has {newest} in memory"
        require((quorum.step or 0) >= newest, "E7", text)

    def heals(self, key: WorkerKey) -> None:
        """The next state of this rank is not the result of its own step (C2)."""
        self.lineages.heals(key)
        self.quorums.healed.add(key)
        self._refusals.pop(key, None)

    def in_force(self, quorum: Quorum) -> None:
        """A worker trains under ``quorum`` now."""
        self.lineages.in_force(quorum)
        self.commits.in_force(quorum)

    def voted(self, key: WorkerKey, tag: Tag | None, flag: bool) -> None:
        """A rank votes within its group."""
        self.commits.voted(key, tag, flag)

    def decided(self, key: WorkerKey, tag: Tag, committed: bool, repeats: bool = False) -> None:
        """The step is over for this rank. ``repeats``: it is retried, because too few
        contributed."""
        self.commits.decided(key, tag, committed, repeats)

    def committed(
        self,
        key: WorkerKey,
        tag: Tag,
        before: StateId,
        after: StateId,
        results: Sequence[tuple[Sum, int] | None],
        divisor: int,
        content: int,
    ) -> None:
        """A rank has committed a step; ``content`` is its state before the step."""
        self.holds(key, before, content)
        self.commits.committed(key, tag, before, after)
        self.commits.check_results(key, tag, results, divisor, content)
        self.promises.committed(key, tag)
        self.lineages.committed(key, tag, before, after)

    def holds(self, key: WorkerKey, state: StateId, content: int) -> None:
        """A rank holds ``content`` under the name ``state`` (S1)."""
        place = (state, key.group_rank)
        known, whose = self._contents.setdefault(place, (content, key))
        if known != content:
            raise Violation("S1", f"{key} and {whose} hold unlike content as {state}")
        self.lineages.holds(key, state)

    def offers(self, key: WorkerKey, tag: Tag, state: StateId, content: int) -> None:
        """A donor serves its state under ``tag`` (S2, S4)."""
        self.holds(key, state, content)
        known, whose = self._offers.setdefault((tag.attempt, tag.step), (state, key))
        text = f"{key} gives {state} and {whose} gives {known} under {tag}"
        require(known == state, "S2", text)
        require(state.step == tag.step, "S4", f"{key} gives {state} under {tag}")

    def died(self, key: WorkerKey) -> None:
        """A worker's process has ended."""
        self.excuse(key.incarnation, "it died")
        self.quorums.dead.add(key.incarnation)
        self.promises.forgets(key)
        self.lineages.died(key)

    def isolated(self, key: WorkerKey) -> None:
        """A worker has received nothing for the isolation limit and does not commit."""
        self.lineages.fenced(key)
        self.promises.forgets(key)
