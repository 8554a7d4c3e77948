"""A worker's record of quorums, question by question. Not here: its actions (transcripts/step)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ftrun.core.ids import WorkerKey
from ftrun.core.worker.quorums import Pending, Quorums
from tests.unit.core.worker.step_script import attempt_of, quorum_of, tag_of

FIRST = quorum_of("1.1#1", "5/A", "0 1")
JOIN = quorum_of("1.2#1", None, "0 1 2", "2")
DRAIN = quorum_of("1.2#1", None, "1")
DRAIN_2 = quorum_of("1.3#1", None, "0 1")


def in_force() -> Quorums:
    quorums = Quorums(WorkerKey("0", "i0", 0))
    quorums.take(FIRST, is_switch=False)
    quorums.adopt(FIRST)
    return quorums


def promised(step: int) -> Quorums:
    quorums = in_force()
    quorums.begin(tag_of("1.1#1@5"))
    pending = quorums.take(JOIN, is_switch=True)
    pending.built, pending.promise = True, step
    return quorums


def test_who_is_what_in_a_quorum() -> None:
    quorums = Quorums(WorkerKey("0", "i0", 0))
    assert quorums.is_member(JOIN) and not quorums.is_newcomer(JOIN) and quorums.is_donor(JOIN)
    assert not quorums.is_donor(FIRST), "no member needs the state"
    assert quorums.is_newcomer(quorum_of("1.2#1", None, "0 1", "0"))
    assert not quorums.is_member(DRAIN)
    other = Quorums(WorkerKey("0", "another incarnation", 0))
    assert not other.is_member(JOIN)


def test_what_is_built() -> None:
    quorums = in_force()
    pending = quorums.take(JOIN, is_switch=True)
    assert quorums.has_built(FIRST.attempt) and not quorums.has_built(JOIN.attempt)
    pending.built = True
    assert quorums.has_built(JOIN.attempt) and not quorums.has_built(attempt_of("1.3#1"))
    assert quorums.awaits(JOIN.attempt) is pending and quorums.awaits(FIRST.attempt) is None


def test_a_quorum_begins_where_it_says() -> None:
    quorums = in_force()
    assert quorums.is_unentered and quorums.next_step(9) == 5 and quorums.last_begun == 5
    assert not quorums.begin(tag_of("1.1#1@5"))
    assert not quorums.is_unentered and quorums.next_step(6) == 6 and quorums.last_begun == 5
    assert quorums.begin(tag_of("1.1#1@5")), "a retry"
    assert not quorums.begin(tag_of("1.1#1@6"))


def test_without_a_quorum_nothing_has_begun() -> None:
    quorums = Quorums(WorkerKey("0", "i0", 0))
    assert quorums.last_begun is None and quorums.next_step(7) == 7
    assert quorums.can_promise(0) and not quorums.at_promise(99)


@pytest.mark.parametrize(("step", "can"), [(5, False), (6, True)])
def test_a_step_that_has_begun_is_not_promised(step: int, can: bool) -> None:
    assert in_force().can_promise(step) is can


def test_who_has_held_others_off_promises_at_its_boundary_only() -> None:
    quorums = in_force()
    join, drain = Pending(JOIN, is_switch=True), Pending(DRAIN, is_switch=True)
    assert not quorums.promises_late(join) and not quorums.bars(join)
    quorums.at_boundary(True)
    assert quorums.promises_late(join) and quorums.bars(join)
    quorums.at_boundary(False)
    assert quorums.promises_late(join) and not quorums.bars(join)
    quorums.at_boundary(True)
    assert not quorums.promises_late(drain) and not quorums.bars(drain), "no member joins"


def test_others_may_join_at_the_next_boundary_until_the_next_quorum_has_begun() -> None:
    """Q9: seeds 40041449 and 40017379."""
    quorums = in_force()
    assert not quorums.awaits_newcomers, "the first quorum has none"
    pending = quorums.take(JOIN, is_switch=True)
    assert quorums.awaits_newcomers
    quorums.adopt(pending.quorum)
    assert quorums.awaits_newcomers, "they join with the step that begins"
    quorums.begin(tag_of("1.2#1@6"))
    assert not quorums.awaits_newcomers
    assert not quorums.take(DRAIN_2, is_switch=True).built and not quorums.awaits_newcomers
    quorums.give_up(DRAIN_2.attempt)
    assert quorums.awaits_newcomers, "nobody knows who is in the next quorum"


def test_a_newcomer_holds_nobody_off() -> None:
    newcomer = Quorums(WorkerKey("2", "i2", 0))
    newcomer.at_boundary(True)
    pending = Pending(JOIN, is_switch=True)
    assert not newcomer.promises_late(pending) and not newcomer.bars(pending)


def test_where_a_promise_stops() -> None:
    quorums = promised(7)
    assert not quorums.at_promise(6) and quorums.at_promise(7)
    newcomer = Quorums(WorkerKey("2", "i2", 0))
    newcomer.take(JOIN, is_switch=True).promise = 7
    assert newcomer.at_promise(0), "a newcomer waits for the switch"


def test_proposals_only_rise_until_one_is_confirmed() -> None:
    pending = Pending(JOIN, is_switch=True)
    assert not pending.outdates(5)
    pending.promise = 6
    assert pending.outdates(5) and not pending.outdates(6) and not pending.outdates(8)
    pending.confirmed = True
    assert pending.outdates(8)


def test_giving_up_names_the_groups_to_abort() -> None:
    quorums = promised(7)
    assert quorums.give_up(attempt_of("1.3#1")) == [FIRST.attempt, JOIN.attempt]
    assert quorums.in_force is None and quorums.pending is None
    assert quorums.interrupted == quorums.seen == attempt_of("1.3#1")
    assert quorums.give_up(attempt_of("1.3#1")) == []


def test_a_switch_to_leave_by_has_no_group() -> None:
    quorums = in_force()
    quorums.take(DRAIN, is_switch=True)
    assert quorums.drop_pending() == [] and quorums.pending is None


def gives_up_what_it_trains_in(quorums: Quorums, pending: Pending) -> None:
    quorums.interrupted = FIRST.attempt


def prepares_what_nobody_spoke_of(quorums: Quorums, pending: Pending) -> None:
    pending.quorum = replace(JOIN, attempt=attempt_of("1.3#1"))


def prepares_what_is_in_force(quorums: Quorums, pending: Pending) -> None:
    pending.quorum = FIRST


def promises_unbuilt(quorums: Quorums, pending: Pending) -> None:
    pending.built = False


def promises_what_is_no_switch(quorums: Quorums, pending: Pending) -> None:
    pending.is_switch = False


def is_certain_of_nothing(quorums: Quorums, pending: Pending) -> None:
    pending.promise, pending.confirmed = None, True


def begins_what_it_promised_not_to(quorums: Quorums, pending: Pending) -> None:
    quorums.begin(tag_of("1.1#1@7"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (gives_up_what_it_trains_in, "Q2: trains in a quorum that is over"),
        (prepares_what_nobody_spoke_of, "Q2: prepares a quorum that is over"),
        (prepares_what_is_in_force, "Q2: prepares an older quorum"),
        (promises_unbuilt, "has not built"),
        (promises_what_is_no_switch, "no switch"),
        (is_certain_of_nothing, "without a promise"),
        (begins_what_it_promised_not_to, "Q5"),
    ],
)
def test_check_finds_what_must_not_be(
    spoil: Callable[[Quorums, Pending], None], words: str
) -> None:
    quorums = promised(7)
    quorums.check()
    assert quorums.pending is not None
    spoil(quorums, quorums.pending)
    with pytest.raises(AssertionError, match=words):
        quorums.check()
