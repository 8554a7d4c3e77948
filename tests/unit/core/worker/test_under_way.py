"""The step under way, question by question. Not here: its course (tests/transcripts/step)."""

from __future__ import annotations

import pytest

from ftrun.core.ids import Tag, WorkerKey
from ftrun.core.worker.comparison import Comparison
from ftrun.core.worker.under_way import TRANSITIONS, Fate, StepUnderWay
from tests.unit.core.worker.step_script import attempt_of, quorum_of, tag_of

TAG = tag_of("1.1#1@5")


def step_of(tag: Tag, repeats: bool = False) -> StepUnderWay:
    alone = quorum_of(str(tag.attempt), None, "0")
    return StepUnderWay(tag, repeats, 0.0, Comparison(WorkerKey("0", "i0", 0), alone, None, tag))


def reduced() -> StepUnderWay:
    step = step_of(TAG)
    step.operations.issue(batched=False, closes=False)
    step.operations.finish(0)
    step.operations.take_ready()
    return step


def test_it_has_results_when_all_is_complete() -> None:
    step = step_of(TAG)
    assert step.results is None, "nothing was issued"
    step.operations.issue(batched=False, closes=False)
    assert step.results is None
    step.operations.finish(0)
    assert step.results == TAG
    step.void("over")
    assert step.results is None


def test_operations_count_under_its_tag_and_while_it_is_open() -> None:
    step = step_of(TAG)
    assert step.counts(TAG.attempt) and not step.counts(attempt_of("1.1#2"))
    step.interrupt(1.0, stands=False)
    assert not step.counts(TAG.attempt)


def test_a_vote_alone_may_decide_a_step_without_operations() -> None:
    step = step_of(TAG)
    assert step.decisive is None
    step.vote()
    assert step.is_voting and step.decisive == TAG
    step.operations.issue(batched=False, closes=False)
    assert step.decisive is None


def test_what_is_void_is_not_voted_for() -> None:
    step = reduced()
    step.void("over")
    step.vote()
    assert step.voted is None and step.decisive is None
    step = reduced()
    step.vote()
    step.void("over")
    assert step.voted is None and step.void_reason == "over"


@pytest.mark.parametrize("fate", list(Fate))
def test_an_interrupt_holds_all_but_what_is_void(fate: Fate) -> None:
    step = reduced()
    step.fate = fate
    step.interrupt(60.0, stands=False)
    assert step.fate is (Fate.VOID if fate is Fate.VOID else Fate.INTERRUPTED)
    assert step.deadline == (None if fate is Fate.VOID else 60.0)


def test_it_goes_out_again_under_another_attempt() -> None:
    step = step_of(TAG, repeats=True)
    step.operations.issue(batched=True, closes=True)
    step.interrupt(60.0, stands=False)
    step.repair(0)
    assert step.fate is Fate.REPAIR
    step.go_out_again(quorum_of("1.2#1", None, "0 1"), deadline=9.0)
    assert step.fate is Fate.OPEN and step.tag == tag_of("1.2#1@5") and not step.repeats
    assert step.deadline == 9.0 and step.operations.outstanding


def test_there_is_no_deadline_for_nothing() -> None:
    step = step_of(TAG)
    step.interrupt(60.0, stands=False)
    step.repair(0)
    step.go_out_again(quorum_of("1.2#1", None, "0 1"), deadline=9.0)
    assert step.deadline is None


def test_time_that_does_not_count_moves_the_deadlines_that_there_are() -> None:
    step = step_of(TAG)
    step.put_off(3.0)
    assert step.deadline is None and step.awaited_s(10.0) == 0.0
    step.operations.issue(batched=False, closes=False)
    step.deadline = 5.0
    step.note_wait(1.0)
    step.put_off(3.0)
    assert step.deadline == 8.0 and step.awaited_s(10.0) == 6.0


def test_what_an_interrupt_found_standing_may_be_voted_for_and_nothing_else() -> None:
    step = reduced()
    step.interrupt(60.0, stands=True)
    step.vote()
    assert step.fate is Fate.INTERRUPTED_COMPLETE and step.voted == TAG
    step = reduced()
    step.interrupt(60.0, stands=False)
    step.interrupt(61.0, stands=True)  # a quorum may rely on the first report
    step.vote()
    assert step.fate is Fate.INTERRUPTED and step.voted is None
    step = step_of(TAG)
    step.interrupt(60.0, stands=False)
    step.repair(0)
    step.go_out_again(quorum_of("1.2#1", None, "0 1"), deadline=9.0)
    step.vote()
    assert step.voted == step.tag


@pytest.mark.parametrize("fate", list(Fate))
def test_only_what_the_table_allows_may_follow(fate: Fate) -> None:
    allowed = TRANSITIONS[fate]
    moves = {Fate.STANDS: StepUnderWay.stand, Fate.REPAIR: lambda step: step.repair(0)}
    for after, move in moves.items():
        step = step_of(TAG)
        step.fate = fate
        if after in allowed:
            move(step)
            assert step.fate is after
        else:
            with pytest.raises(AssertionError, match="→"):
                move(step)
