"""Operations that differ between replicas never meet: who asks whom, and which is at fault."""

from __future__ import annotations

import pytest

from ftrun.core import messages as m
from ftrun.core.ids import Tag, WorkerKey
from ftrun.core.quorum import Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.comparison import Comparison, Entry, Question, Shape
from ftrun.core.worker.machine import StepMachine
from ftrun.core.worker.under_way import Fate
from tests.unit.core.worker.step_script import machine_of, quorum_of, tag_of

TAG = tag_of("1.5#1@5")
TEN, TWENTY, FIFTH = Shape(sizes=(10,)), Shape(sizes=(20,)), Shape(sizes=(5, 2))
QUORUM = quorum_of("1.5#1", None, "0 1 2")


def comparison(replica: int, committed: list[Shape] | None, quorum: Quorum = QUORUM) -> Comparison:
    return Comparison(WorkerKey(str(replica), f"i{replica}", 0), quorum, committed, TAG)


def told(shape: Shape | None, changed: bool = True) -> Entry:
    return Entry(shape, changed, cleared=True)


def asked(of: Comparison) -> tuple[int, list[str], bool]:
    question = of.question()
    assert question is not None
    return question.index, [member.replica_id for member in question.members], question.cleared


def answer(to: Comparison, index: int, replica: int, entry: Entry) -> None:
    to.answer(Question(TAG, to.repeat, index, (), cleared=False), str(replica), entry)


def test_a_question_has_an_address() -> None:
    question = Question(TAG, 2, 3, (), cleared=True)
    assert question.path() == f"/operations/{TAG.path()}/2/3?cleared=1"


def test_what_has_not_changed_goes_out_at_once() -> None:
    step = comparison(1, [TEN, TWENTY])
    for index, shape in enumerate([FIFTH, TWENTY]):  # as many elements as before
        step.add(shape)
        assert step.advance() == range(index, index + 1)
    step.end()
    assert step.advance() == range(2, 2) and step.question() is None
    assert step.is_complete


def test_who_is_alone_compares_nothing() -> None:
    step = comparison(0, None, quorum_of("1.5#1", None, "0"))
    step.add(TEN)
    assert step.advance() == range(1) and step.question() is None
    step.end()
    assert not step.advance() and step.is_complete


@pytest.mark.parametrize("before", [None, [TWENTY], []])
def test_who_is_not_the_reference_asks_it_for_what_has_changed(before: list[Shape] | None) -> None:
    step = comparison(1, before)
    step.add(TEN)
    assert not step.advance()
    assert asked(step) == (0, ["0"], True)
    assert step.question() is None, "asked once"
    answer(step, 0, 0, told(FIFTH))
    assert step.advance() == range(1) and not step.unlike


def test_the_reference_asks_everybody() -> None:
    step = comparison(0, [TWENTY])
    step.add(TEN)
    assert asked(step) == (0, ["1", "2"], False)
    answer(step, 0, 1, told(TEN))
    assert not step.advance(), "2 has not answered yet"
    answer(step, 0, 2, told(TEN))
    assert step.advance() == range(1)


def test_what_comes_later_waits_for_what_is_compared() -> None:
    step = comparison(1, [TEN, TEN])
    step.add(TWENTY)
    step.add(TEN)
    assert not step.advance() and asked(step)[0] == 0
    answer(step, 0, 0, told(TWENTY))
    assert step.advance() == range(2) and step.question() is None


def test_the_first_donor_is_the_reference() -> None:
    quorum = quorum_of("1.5#1", None, "0 1 2", "0")
    assert quorum.donors == ("1", "2")
    step = comparison(0, None, quorum)
    step.add(TEN)
    assert asked(step) == (0, ["1"], True)


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (TWENTY, "replica 1 has a sum of 10 float32, where replica 0 has a sum of 20 float32"),
        (Shape(dtype="int64", sizes=(10,)), "where replica 0 has a sum of 10 int64"),
        (Shape("max", "float32", (2, 5)), "where replica 0 has a max of 2 x 5 float32"),
        (None, "replica 1 has a sum of 10 float32, where replica 0 has nothing more"),
    ],
)
def test_who_differs_from_the_reference_is_wrong(theirs: Shape | None, words: str) -> None:
    step = comparison(1, [])
    step.add(TEN)
    assert step.question() is not None
    answer(step, 0, 0, told(theirs))
    assert "as operation 0 of step 5" in step.unlike and words in step.unlike
    assert not step.advance() and step.question() is None


def test_a_step_that_ends_early_is_compared_too() -> None:
    step = comparison(1, [TEN])
    step.end()
    assert not step.advance() and not step.is_complete
    assert asked(step) == (0, ["0"], True)
    answer(step, 0, 0, told(TEN, changed=False))
    assert "replica 1 has nothing more, where replica 0 has a sum of 10" in step.unlike


def test_the_reference_stays_where_another_has_changed_too() -> None:
    step = comparison(0, [])
    step.add(TEN)
    assert step.question() is not None
    answer(step, 0, 1, told(TWENTY))
    answer(step, 0, 2, told(TEN))
    assert step.advance() == range(1) and not step.unlike


@pytest.mark.parametrize("unlike", [[told(TWENTY, changed=False)], [told(TWENTY), told(None)]])
def test_the_reference_is_wrong_where_one_has_not_changed_or_most_differ(
    unlike: list[Entry],
) -> None:
    step = comparison(0, [])
    step.add(TEN)
    assert step.question() is not None
    for replica, entry in enumerate(unlike, start=1):
        assert not step.unlike
        answer(step, 0, replica, entry)
    assert "replica 0 has a sum of 10 float32, where replica" in step.unlike


def test_an_answer_to_another_question_is_none() -> None:
    step = comparison(1, None)
    step.add(TEN)
    assert step.question() is not None
    answer(step, 1, 0, told(TEN))
    answer(step, 0, 2, told(TEN))
    step.answer(Question(Tag(TAG.attempt, 6), 0, 0, (), cleared=True), "0", told(TEN))
    step.answer(Question(TAG, 1, 0, (), cleared=True), "0", told(TEN))
    assert not step.advance()


def test_in_the_next_quorum_all_is_compared_again() -> None:
    step = comparison(1, None)
    step.add(TEN)
    step.question()
    answer(step, 0, 0, told(TEN))
    assert step.advance() == range(1)
    step.goes_on(quorum_of("1.6#1", None, "1 2"), 0)
    assert step.cleared == 0
    assert asked(step) == (0, ["2"], False), "it is the reference now"


def test_what_stands_is_not_compared_again() -> None:
    step = comparison(1, None)
    step.add(TEN)
    step.add(TEN)
    for index in range(2):
        step.question()
        answer(step, index, 0, told(TEN))
        step.advance()
    step.goes_on(quorum_of("1.6#1", None, "1 2"), 1)
    assert step.cleared == 1
    step.goes_on(quorum_of("1.7#1", None, "1 2"), 2)
    assert step.cleared == 1, "it was to go out again, and has not"


# ---------------------------------------------------------------- the machine


def member(replica: int) -> StepMachine:
    machine = machine_of(f"worker {replica} holds 5/A")
    machine.handle(m.NewQuorum(quorum_of("1.5#1", "5/A", "0 1")), 0.0)
    machine.handle(e.BoundaryReached(), 0.0)
    machine.handle(m.Built(TAG.attempt), 0.0)
    assert machine.fate is Fate.OPEN
    return machine


def question(index: int, *, cleared: bool = True, repeat: int = 0, tag: Tag = TAG) -> Question:
    return Question(tag, repeat, index, (), cleared)


def carry(to: StepMachine, instructions: list[e.Instruction], *peers: StepMachine) -> list[object]:
    """Ask ``peers`` the questions of ``to``; returns its other instructions."""
    rest: list[object] = []
    for instruction in instructions:
        if not isinstance(instruction, e.Ask):
            rest.append(instruction)
            continue
        for peer in peers:
            entry = peer.look_up(instruction.question)
            if entry is not None:
                told = e.OperationAnswered(instruction.question, peer.key.replica_id, entry)
                rest += carry(to, to.handle(told, 0.0), *peers)
    return rest


def test_two_that_are_alike_go_out_and_commit() -> None:
    one, two = member(0), member(1)
    asks = one.handle(e.OperationIssued(shape=TEN), 0.0)
    assert one.look_up(question(0)) is None, (
        "the reference does not know yet that its own may be out"
    )
    assert one.look_up(question(0, cleared=False)) == Entry(TEN, changed=True, cleared=False)
    assert carry(one, asks, two) == [], "its peer has none yet"
    late = two.handle(e.OperationIssued(shape=TEN), 0.0)
    assert carry(one, asks, two) == [e.Launch(0, 1)]
    assert carry(two, late, one) == [e.Launch(0, 1)]
    for machine, peer in ((one, two), (two, one)):
        machine.handle(e.OperationCompleted(TAG.attempt, 0), 0.0)
        peer.handle(e.OperationsEnded(), 0.0)
    assert not one.is_decidable, "the other might have more"
    assert one.look_up(question(1, cleared=False)) == Entry(None, changed=True, cleared=False)


def test_an_unlike_one_is_the_scripts_error_and_the_step_is_void() -> None:
    one, two = member(0), member(1)
    asks = one.handle(e.OperationIssued(shape=TEN), 0.0)
    late = two.handle(e.OperationIssued(shape=TWENTY), 0.0)
    assert carry(one, asks, two) == [e.Launch(0, 1)], "the first donor stays"
    released, fails = carry(two, late, one)
    assert isinstance(released, e.FailOperations) and isinstance(fails, e.FailScript)
    assert "replica 1 has a sum of 20 float32, where replica 0 has a sum of 10" in fails.reason
    assert two.fate is Fate.VOID


def committed(shapes: list[Shape]) -> StepMachine:
    """A machine that was alone for a step, so that it asked nothing."""
    machine = machine_of("worker 0 holds 5/A")
    machine.handle(m.NewQuorum(quorum_of("1.5#1", "5/A", "0")), 0.0)
    machine.handle(e.BoundaryReached(), 0.0)
    machine.handle(m.Built(TAG.attempt), 0.0)
    for index, shape in enumerate(shapes):
        machine.handle(e.OperationIssued(shape=shape), 0.0)
        machine.handle(e.OperationCompleted(TAG.attempt, index), 0.0)
    machine.handle(e.OperationsEnded(), 0.0)
    assert machine.is_decidable
    machine.handle(e.Decided(commit=True), 0.0)
    return machine


def test_who_has_gone_on_still_answers_for_the_step_before() -> None:
    machine = committed([TEN])
    assert machine.look_up(question(0)) == Entry(TEN, changed=True, cleared=True)
    machine.handle(e.BoundaryReached(), 0.0)
    assert machine.look_up(question(1)) == Entry(None, changed=True, cleared=True)
    long_ago = question(0, tag=Tag(TAG.attempt, 4))
    assert machine.look_up(long_ago) == Entry(None, changed=False, cleared=True)
    assert machine.look_up(question(0, tag=Tag(TAG.attempt, 6))) is None, "it has issued none there"
    assert machine.look_up(question(0, tag=tag_of("1.6#1@5"))) is None, (
        "the question is about another quorum"
    )


def test_who_waits_for_an_answer_for_too_long_gives_up() -> None:
    machine = member(1)
    machine.handle(e.OperationIssued(shape=TEN), 0.0)
    machine.handle(e.Ticked(), 59.0)
    assert machine.fate is Fate.OPEN
    machine.handle(e.Ticked(), 61.0)
    assert machine.fate is Fate.INTERRUPTED
    machine = member(1)
    machine.handle(e.OperationsEnded(), 0.0)
    machine.handle(e.Ticked(), 61.0)
    assert machine.fate is Fate.INTERRUPTED


def test_nothing_is_compared_with_a_step_of_which_an_operation_was_refused() -> None:
    """What followed the refused one would be taken for it, and a peer's own for the mistake."""
    reference, refuser = member(0), member(1)
    refuser.handle(e.OperationIssued(shape=TEN), 0.0)
    assert refuser.look_up(question(0, cleared=False)) is not None
    refuser.handle(e.OperationRefused("not a tensor"), 0.0)
    refuser.handle(e.OperationIssued(shape=FIFTH), 0.0)
    refuser.handle(e.OperationsEnded(), 0.0)
    for index in range(3):
        assert refuser.look_up(question(index, cleared=False)) is None
    for shape in (TEN, TWENTY):
        issued = reference.handle(e.OperationIssued(shape=shape), 0.0)
        assert not [x for x in carry(reference, issued, refuser) if isinstance(x, e.FailScript)]


def test_the_wait_is_over_when_no_peer_has_more() -> None:
    one, two = member(0), member(1)
    asks = one.handle(e.OperationsEnded(), 0.0)
    late = two.handle(e.OperationsEnded(), 0.0)
    assert carry(one, asks, two) == carry(two, late, one) == []
    for machine in (one, two):
        assert machine.is_decidable
        machine.handle(e.Ticked(), 61.0)
        assert machine.fate is Fate.OPEN, "nothing is waited for any more"


def test_an_answer_for_a_step_that_is_over_changes_nothing() -> None:
    machine = committed([TEN])
    told = e.OperationAnswered(question(0), "1", Entry(TWENTY, changed=True, cleared=True))
    assert machine.handle(told, 0.0) == []
