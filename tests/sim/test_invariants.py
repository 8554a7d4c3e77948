"""Each invariant can fail: for each a history that breaks it, written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ftrun.core import messages as m
from ftrun.core.ids import Attempt, StateId, Tag, WorkerKey, pack_quorum_id
from ftrun.core.quorum import Member, Quorum
from ftrun.core.worker.heal import REFUSALS_MAX
from tests.sim.invariants import CANNOT_SERVE, Invariants, Violation
from tests.sim.rings import Contribution, Result
from tests.sim.samples import SampleRules, plan_of

A = WorkerKey("0", "aa", 0)
B = WorkerKey("1", "bb", 0)
C = WorkerKey("2", "cc", 0)


def attempt(seq: int, number: int = 1) -> Attempt:
    return Attempt(pack_quorum_id(1, seq), number)


def quorum(seq: int, *keys: WorkerKey, number: int = 1, step: int = 0) -> Quorum:
    members = tuple(Member(key.replica_id, key.incarnation, (), "store") for key in keys)
    return Quorum(attempt(seq, number), members, "store", step, StateId(step, "x"))


def commit(rules: Invariants, key: WorkerKey, seq: int, before: StateId, **changes: object) -> None:
    """A sound commit of one operation, unless ``changes`` break it."""
    tag = Tag(attempt(seq), before.step)
    part = Contribution(key, tag, 0, base=7, value=1, counts=True)
    known: dict[str, object] = {
        "after": before.committed(tag),
        "results": [(Result(tag.attempt, (part,)), 1)],
        "divisor": 1,
        "content": 7,
    }
    known |= changes
    after = known.pop("after")
    rules.committed(key, tag, before, after, **known)  # type: ignore[arg-type]


def one_id_two_lists(rules: Invariants) -> None:
    rules.lighthouse_sent(0.0, m.NewQuorum(quorum(1, A, B)))
    rules.lighthouse_sent(0.0, m.NewQuorum(quorum(1, A, C, number=2)))


def a_lower_attempt(rules: Invariants) -> None:
    rules.acts_on(A, attempt(2), "builds")
    rules.acts_on(A, attempt(1), "builds")


def less_given_up(rules: Invariants) -> None:
    rules.gave_up(A, attempt(2))
    rules.gave_up(A, attempt(1))


def two_histories(rules: Invariants) -> None:
    rules.in_force(quorum(1, A))
    rules.in_force(quorum(2, B))
    start = StateId(0, "x")
    for key, seq in ((A, 1), (B, 2)):
        commit(rules, key, seq, start)
        rules.holds(key, start.committed(Tag(attempt(seq), 0)), 8 + seq)


def left_alone(rules: Invariants) -> None:
    rules.leave_together({A.incarnation, B.incarnation})
    rules.switch_confirmed(quorum(2, B, C), 3)


def left_behind_and_going_on(rules: Invariants) -> None:
    rules.in_force(quorum(1, A))
    rules.in_force(quorum(2, B))
    commit(rules, B, 2, StateId(0, "x"))
    commit(rules, A, 1, StateId(0, "x"))


def left_out_for_nothing(rules: Invariants) -> None:
    rules.lighthouse_sent(0.0, m.NewQuorum(quorum(1, A, B)))
    rules.lighthouse_sent(0.0, m.NewQuorum(quorum(2, A)))


def a_newcomer_among_survivors(rules: Invariants) -> None:
    rules.lighthouse_sent(0.0, m.NewQuorum(quorum(1, A, B)))
    rules.excuse("bb", "it died")
    rules.lighthouse_sent(0.0, m.NewQuorum(quorum(2, A, C)))


def a_broken_promise(rules: Invariants) -> None:
    rules.promised(A, attempt(2), 5)
    rules.reduces(A, Tag(attempt(1), 5))


def late_for_a_switch(rules: Invariants) -> None:
    rules.switch_confirmed(quorum(2, A, step=0), 0)
    rules.in_force(quorum(1, A))
    commit(rules, A, 1, StateId(0, "x"))


def late_for_a_switch_that_one_was_told_of(rules: Invariants) -> None:
    rules.switch_confirmed(quorum(2, A, B, step=0), 0)
    rules.switch_received(B, attempt(2))
    rules.journal_lost()
    rules.in_force(quorum(1, A))
    commit(rules, A, 1, StateId(0, "x"))


def no_grace(rules: Invariants) -> None:
    rules.takeover_began(0.0, 1.0, quorum(1, A, B))
    rules.back(0.2, A)
    rules.lighthouse_sent(0.5, m.Interrupt(attempt(1)))


def ranks_at_odds(rules: Invariants) -> None:
    tag = Tag(attempt(1), 0)
    rules.decided(A, tag, True)
    rules.decided(replace(A, group_rank=1), tag, False)


def against_the_vote(rules: Invariants) -> None:
    tag = Tag(attempt(1), 0)
    rules.voted(A, tag, False)
    rules.decided(replace(A, group_rank=1), tag, True)


def two_steps_at_once(rules: Invariants) -> None:
    rules.in_force(quorum(1, A))
    commit(rules, A, 1, StateId(0, "x"), after=StateId(2, "y"))


def of_another_tag(rules: Invariants) -> None:
    tag = Tag(attempt(1, 2), 0)
    part = Contribution(A, tag, 0, base=7, value=1, counts=True)
    commit(rules, A, 1, StateId(0, "x"), results=[(Result(tag.attempt, (part,)), 1)])


def a_result_missing(rules: Invariants) -> None:
    commit(rules, A, 1, StateId(0, "x"), results=[None])


def zeros_that_count(rules: Invariants) -> None:
    tag = Tag(attempt(1), 0)
    parts = tuple(Contribution(key, tag, 0, 7, 1, counts=key is A) for key in (A, B))
    commit(rules, A, 1, StateId(0, "x"), results=[(Result(tag.attempt, parts), 2)], divisor=2)


def from_another_state(rules: Invariants) -> None:
    tag = Tag(attempt(1), 0)
    part = Contribution(B, tag, 0, base=8, value=1, counts=True)
    commit(rules, A, 1, StateId(0, "x"), results=[(Result(tag.attempt, (part,)), 1)])


def one_name_two_contents(rules: Invariants) -> None:
    rules.holds(A, StateId(0, "x"), 1)
    rules.holds(B, StateId(0, "x"), 2)


def donors_at_odds(rules: Invariants) -> None:
    tag = Tag(attempt(1), 0)
    rules.offers(A, tag, StateId(0, "x"), 1)
    rules.offers(B, tag, StateId(0, "y"), 2)


def what_was_given_up(rules: Invariants) -> None:
    rules.gave_up(A, attempt(2))
    rules.reduces(A, Tag(attempt(1), 0))


def disjoint_and_not_fenced(rules: Invariants) -> None:
    rules.lighthouse_sent(0.0, m.NewQuorum(quorum(1, A)))
    rules.lease("aa", 3.0)
    rules.excuse("aa", "its stream broke")
    rules.lighthouse_sent(2.0, m.NewQuorum(quorum(2, B)))


def refused_once_too_often(rules: Invariants) -> None:
    for _ in range(REFUSALS_MAX):
        rules.refused(A)
    rules.heals(A)
    for _ in range(REFUSALS_MAX + 1):
        rules.refused(A)


def a_donor_that_ends(rules: Invariants) -> None:
    rules.raises(A, CANNOT_SERVE)  # of its own, at its start
    rules.cannot_serve(A)
    rules.raises(A, "its optimizer")
    rules.raises(A, CANNOT_SERVE)


def one_vote_of_two(rules: Invariants) -> None:
    rules = Invariants(slots=3, workers=2, min_replicas=1)
    tag = Tag(attempt(1), 0)
    rules.voted(A, tag, True)
    rules.decided(A, tag, True)


def a_vote_of_the_try_before(rules: Invariants) -> None:
    rules = Invariants(slots=3, workers=2, min_replicas=1)
    tag, mate = Tag(attempt(1), 0), replace(A, group_rank=1)
    for key in (A, mate):
        rules.voted(key, tag, True)
        rules.decided(key, tag, False, repeats=True)
    rules.voted(A, tag, True)
    rules.decided(A, tag, True)


def another_state_without_a_heal(rules: Invariants) -> None:
    rules.holds(A, StateId(0, "x"), 1)
    rules.holds(A, StateId(4, "y"), 2)


def given_out_and_changed(rules: Invariants) -> None:
    rules.hands_out(A, Tag(attempt(1), 0), 0, again=True)


@pytest.mark.parametrize(
    ("code", "history"),
    [
        ("Q1", one_id_two_lists),
        ("Q2", a_lower_attempt),
        ("Q2", less_given_up),
        ("Q3", two_histories),
        ("Q3", left_behind_and_going_on),
        ("Q4", left_out_for_nothing),
        ("Q4", a_newcomer_among_survivors),
        ("Q10", left_alone),
        ("Q5", a_broken_promise),
        ("Q5", late_for_a_switch_that_one_was_told_of),
        ("Q5", late_for_a_switch),
        ("Q6", no_grace),
        ("C1", ranks_at_odds),
        ("C1", against_the_vote),
        ("C2", two_steps_at_once),
        ("C3", of_another_tag),
        ("C3", a_result_missing),
        ("C4", zeros_that_count),
        ("C4", from_another_state),
        ("S1", one_name_two_contents),
        ("S2", donors_at_odds),
        ("Q2", what_was_given_up),
        ("Q4", disjoint_and_not_fenced),
        ("C1", one_vote_of_two),
        ("C1", a_vote_of_the_try_before),
        ("C2", another_state_without_a_heal),
        ("S7", given_out_and_changed),
        ("H1", refused_once_too_often),
        ("H1", a_donor_that_ends),
    ],
)
def test_a_broken_invariant_is_named(code: str, history: Callable[[Invariants], None]) -> None:
    with pytest.raises(Violation) as caught:
        history(Invariants(slots=3, workers=1, min_replicas=1))
    assert caught.value.code == code


def test_a_switch_that_only_a_lost_journal_and_the_dead_knew_of_was_never_confirmed() -> None:
    rules = Invariants(slots=3, workers=1, min_replicas=1)
    rules.switch_confirmed(quorum(2, A, B, step=0), 0)
    rules.switch_received(B, attempt(2))
    rules.journal_lost()
    rules.died(B)
    rules.in_force(quorum(1, A))
    commit(rules, A, 1, StateId(0, "x"))


def test_a_member_that_is_back_after_the_grace_is_no_survivor() -> None:
    rules = Invariants(slots=3, workers=1, min_replicas=1)
    rules.lighthouse_sent(0.0, m.NewQuorum(quorum(1, A, B)))
    rules.takeover_began(1.0, 1.0, quorum(1, A, B))
    rules.back(2.5, A)
    rules.excuse(B.incarnation, "it was stopped")
    rules.lighthouse_sent(3.0, m.NewQuorum(quorum(2, A, C)))


def test_a_rank_that_is_late_for_one_try_forgets_no_vote_of_the_next() -> None:
    """Seed 30118694: it was paused, and its mate had voted again by then."""
    rules = Invariants(slots=3, workers=2, min_replicas=1)
    tag, mate = Tag(attempt(1), 0), replace(A, group_rank=1)
    for key in (A, mate):
        rules.voted(key, tag, True)
    rules.decided(A, tag, False, repeats=True)
    rules.voted(A, tag, True)
    rules.decided(mate, tag, False, repeats=True)
    rules.voted(mate, tag, True)
    rules.decided(mate, tag, True)


START, NEXT = StateId(0, "x"), StateId(1, "y")


def parts(*drawn: tuple[WorkerKey, int, int]) -> list[Contribution]:
    tag = Tag(attempt(1), 0)
    return [
        Contribution(key, tag, 0, 7, 1, counts=True, drawn=((first, stop),))
        for key, first, stop in drawn
    ]


def trains_a_sample_twice(rules: SampleRules) -> None:
    rules.committed(A, START, NEXT, parts((A, 0, 4), (B, 3, 7)))


def trains_what_an_earlier_step_has_trained(rules: SampleRules) -> None:
    rules.committed(A, START, NEXT, parts((A, 0, 4)))
    rules.committed(A, NEXT, StateId(2, "z"), parts((A, 3, 4)))


def draws_what_was_trained(rules: SampleRules) -> None:
    rules.committed(A, START, NEXT, parts((A, 0, 4)))
    rules.drew(B, NEXT, ((2, 6),))


def commits_one_state_from_unlike_samples(rules: SampleRules) -> None:
    rules.committed(A, START, NEXT, parts((A, 0, 4), (B, 4, 8)))
    rules.committed(B, START, NEXT, parts((B, 4, 8)))


@pytest.mark.parametrize(
    "history",
    [
        trains_a_sample_twice,
        trains_what_an_earlier_step_has_trained,
        draws_what_was_trained,
        commits_one_state_from_unlike_samples,
    ],
)
def test_d1_can_fail(history: Callable[[SampleRules], None]) -> None:
    with pytest.raises(Violation, match="D1"):
        history(SampleRules(plan_of(3, repairs=True)))


def test_d2_can_fail() -> None:
    plan = plan_of(3, repairs=True)
    rules = SampleRules(plan)
    rules.committed(A, START, NEXT, parts((A, 0, 4), (C, 8, 12)))
    rules.holds(A, NEXT, plan.after(plan.start(), (0, 2)))
    with pytest.raises(Violation, match="D2"):
        rules.holds(B, NEXT, plan.after(plan.start(), (0, 1, 2)))
