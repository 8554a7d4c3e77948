"""The end of a script, move by move. (Whole jobs: tests/sim/parting.py.)"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftrun.core.ids import Attempt, StateId, WorkerKey
from ftrun.core.messages import Mark, Roster
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.core.worker.asking import AskLighthouse, AskPeer
from ftrun.core.worker.exchange import ASKS, PEEKS, Contribution, ExchangeName, ExchangeQuestion
from ftrun.core.worker.parting import (
    AGAIN_S,
    COMPARED_WITHIN_S,
    LOOK_EVERY_S,
    Do,
    Parting,
    ShownStage,
    Stage,
    Stay,
)
from ftrun.core.worker.under_way import Fate

STATE = StateId(7, "abc")


def member(slot: str, incarnation: str, workers: int = 1) -> Member:
    endpoints = [Endpoint("127.0.0.1", f"{slot}{incarnation}:{rank}") for rank in range(workers)]
    return Member(slot, incarnation, tuple(endpoints), "store:1")


def quorum(number: int, *members: Member) -> Quorum:
    return Quorum(Attempt(number, 1), members, "store:1", 7, STATE, (), ())


@dataclass
class Machine:
    """What Parting looks at."""

    key: WorkerKey
    in_force: Quorum | None
    fate: Fate = Fate.OPEN
    in_step: bool = True
    healing: bool = False
    freezes_membership: bool = False
    state: StateId = STATE
    lingers: bool = False
    ended_with: Mark | None = None


class Case:
    """A worker of slot 0 at its end; ``said`` answers for its peers: by the endpoint."""

    def __init__(self, *members: Member, replicas: int = 2, rank: int = 0) -> None:
        self.machine = Machine(WorkerKey("0", "a", rank), quorum(1, *members))
        self.shown = ShownStage()
        self.parting = Parting(self.machine, replicas, self.shown)  # type: ignore[arg-type]
        self.now = 10.0

    def next(self, *over: str) -> object:
        """The next move; the lighthouse answers at once."""
        move = self.parting.next(self.now)
        if move == AskLighthouse(anew=True):
            self.parting.are_over(Roster(True, (), over), self.now)
            move = self.parting.next(self.now)
        return move

    def asked(self, *over: str) -> AskPeer:
        move = self.next(*over)
        assert isinstance(move, AskPeer)
        return move

    def answers(self, stage: Stage, state: StateId = STATE) -> None:
        """The peer that is asked answers."""
        ask = self.asked()
        shown = ShownStage()
        shown.state, shown.stage = state, stage
        found = shown.answer(WorkerKey(ask.replica_id, "b", 0), ask.question)
        if found is None:
            self.parting.failed(ask, self.now, reached=True)
        else:
            self.parting.answered(ask, found, self.now)


def pair() -> Case:
    case = Case(member("0", "a"), member("1", "b"))
    assert case.next() is Do.TELL, "the lighthouse learns that others have to join at this step"
    assert case.machine.lingers
    return case


def test_who_is_told_that_its_peers_train_on_from_its_state_leaves_early() -> None:
    case = pair()
    ask = case.asked()
    assert not ShownStage().answer(WorkerKey("1", "b", 0), ask.question, StateId(6, "abc"))
    for state in (StateId(7, "other"), STATE):
        found = ShownStage().answer(WorkerKey("1", "b", 0), ask.question, state)
        assert found, "it trains at this step"
        case.parting.answered(ask, found, case.now)
        assert case.parting.gone_on == ("1" if state == STATE else "")
    assert case.next() is None


def test_who_is_told_that_its_peers_are_further_leaves_early() -> None:
    case = pair()
    ask = case.asked()
    further = ShownStage().answer(WorkerKey("1", "b", 0), ask.question, StateId(9, "later"))
    assert further, "it trains at a later step"
    case.parting.answered(ask, further, case.now)
    assert (case.next(), case.parting.gone_on) == (None, "1")


def test_who_is_waited_for_where_its_script_does_not_come_any_more_leaves_early() -> None:
    case = pair()
    attempt = Attempt(1, 1)
    asks = ExchangeQuestion(ExchangeName(7, 0), attempt, of="1", how=ASKS)
    ShownStage().asked_in_vain(asks, attempt)  # it has not come to its end
    for question, in_force in (
        (replace(asks, name=ExchangeName(6, 0)), attempt),  # of an earlier step
        (replace(asks, how=PEEKS), attempt),
        (asks, None),  # this worker is not in that quorum yet
    ):
        case.shown.asked_in_vain(question, in_force)
        assert isinstance(case.next(), AskPeer)
    case.shown.asked_in_vain(asks, attempt)
    assert (case.next(), case.parting.gone_on) == (None, "1")


def test_who_hears_that_a_mate_has_left_early_leaves() -> None:
    case = pair()
    case.parting.are_over(None, case.now)
    case.parting.are_over(Roster(True, (), ("1",), ("1",)), case.now)
    assert case.parting.gone_on == ""
    case.parting.are_over(Roster(True, (), ("0",), ("0",)), case.now)
    assert (case.next(), case.parting.gone_on) == (None, "0")


def test_peers_are_asked_in_turn() -> None:
    case = Case(member("0", "a"), member("1", "b"), member("2", "c"), replicas=3)
    assert case.next() is Do.TELL
    asked = []
    for _ in range(4):
        ask = case.asked()
        asked.append(ask.replica_id)
        case.now += 0.2  # it is kept for that long
        case.parting.failed(ask, case.now, reached=True)
        case.now += 0.1
    assert asked == ["1", "2", "1", "2"]


def test_they_leave_once_both_know_that_both_are_there() -> None:
    case = pair()
    case.answers(Stage.HERE)
    assert case.shown.stage is Stage.HERE
    case.answers(Stage.HERE)
    assert case.shown.stage is Stage.KNOWS
    assert isinstance(case.next(), Stay), "the other one does not know yet"
    case.now += 0.1
    case.answers(Stage.KNOWS)
    assert case.next() is None


def test_who_hears_of_one_that_knows_knows_too() -> None:
    case = Case(member("0", "a"), member("1", "b"), member("2", "c"), replicas=3)
    assert case.next() is Do.TELL
    case.answers(Stage.KNOWS)
    assert case.asked().replica_id == "2"
    assert case.shown.stage is Stage.KNOWS
    case.answers(Stage.LEAVES)
    assert case.next() is None


def test_who_stands_at_another_state_is_not_there() -> None:
    case = pair()
    case.answers(Stage.KNOWS, StateId(7, "other"))
    assert case.shown.stage is Stage.HERE
    assert isinstance(case.next(), Stay)


def test_a_successor_is_waited_for_and_one_whose_part_is_over_is_not() -> None:
    case = pair()
    case.answers(Stage.HERE)
    case.machine.in_force, case.machine.fate = None, Fate.INTERRUPTED
    case.next()
    assert case.shown.stage is Stage.KNOWS
    case.machine.in_force, case.machine.fate = (
        quorum(2, member("0", "a"), member("1", "c")),
        Fate.OPEN,
    )
    assert case.next() is Do.TELL, "once more in this quorum"
    assert case.asked().endpoint.heal == "1c:0"
    case.now += LOOK_EVERY_S
    assert case.next("1") is None


def test_a_worker_that_was_replaced_inside_its_group_is_asked_at_its_new_address() -> None:
    case = pair()
    before = case.asked().endpoint
    case.answers(Stage.HERE)
    there = replace(before, heal="127.0.0.1:9")
    assert case.machine.in_force is not None
    case.machine.in_force = quorum(2, member("0", "a"), Member("1", "b", (there,), "store:1"))
    assert case.next() is Do.TELL
    assert case.asked().endpoint == there
    case.answers(Stage.KNOWS)
    assert case.next() is None


def test_the_step_is_begun_under_each_quorum_and_a_newcomer_heals() -> None:
    case = pair()
    case.parting.failed(case.asked(), case.now, reached=False)
    case.machine.fate = Fate.VOID
    assert case.next() is Do.END_TRY
    case.machine.in_step = False
    assert case.next() is Do.BEGIN
    case.machine.in_step, case.machine.fate, case.machine.healing = True, Fate.OPEN, True
    assert case.next() is Do.HEAL
    case.machine.healing = False
    assert isinstance(case.next(), Stay)
    case.machine.freezes_membership = True
    assert case.next() is Do.END_TRY, "nobody could join at this one"


def test_a_peer_that_is_gone_does_not_keep_it_from_the_next_quorum() -> None:
    case = pair()
    ask = case.asked()
    case.machine.fate = Fate.VOID
    case.parting.failed(ask, case.now, reached=False)
    case.now += 2 * LOOK_EVERY_S
    assert case.next() is Do.END_TRY


def test_the_workers_of_a_replica_leave_together() -> None:
    case = Case(member("0", "a", 2), replicas=1)
    assert case.next() is Do.TELL
    ask = case.asked()
    assert (ask.endpoint.heal, case.shown.stage) == ("0a:1", Stage.LEAVES)
    case.parting.failed(ask, case.now, reached=False)
    case.now += 1.5
    ask = case.asked()
    assert ask.endpoint.heal == "0a:1", "it may hang: it has not heard that this one leaves"
    mates = replace(ask.question, by="1")
    assert case.shown.answer(case.machine.key, mates) == [
        Contribution("0", "", "abc", str(int(Stage.LEAVES)).encode())
    ]
    case.parting.failed(ask, case.now, reached=False)
    assert case.next() is None


def test_a_question_for_a_stage_survives_its_address() -> None:
    question = pair().asked().question
    assert ExchangeQuestion.parse(question.path()) == question


def uncompared() -> Case:
    """All are here, and this one has shown its parameters."""
    case = pair()
    case.machine.ended_with = Mark(7, "abc", "", "digest")
    case.answers(Stage.HERE)
    assert case.next() == Stay(case.now + AGAIN_S), "it has asked the lighthouse at once"
    assert case.shown.stage is Stage.HERE
    return case


def test_none_knows_before_the_parameters_of_all_were_compared() -> None:
    case = uncompared()
    case.now += AGAIN_S
    assert case.parting.next(case.now) == AskLighthouse(anew=True)
    case.parting.are_over(Roster(True, compared="other"), case.now)
    assert isinstance(case.next(), Stay) and case.shown.stage is Stage.HERE
    case.parting.are_over(Roster(True, compared="abc"), case.now)
    case.now += LOOK_EVERY_S
    case.answers(Stage.KNOWS)
    assert case.next() is None and case.parting.is_compared


def test_a_peer_that_knows_was_compared_too() -> None:
    case = pair()
    case.machine.ended_with = Mark(7, "abc", "", "digest")
    case.answers(Stage.KNOWS)
    assert case.next() is None


def test_who_gets_no_judgement_leaves_all_the_same() -> None:
    case = uncompared()
    case.now += COMPARED_WITHIN_S / 2
    assert isinstance(case.next(), Stay)
    case.now += COMPARED_WITHIN_S / 2
    case.next()
    assert case.shown.stage is Stage.KNOWS and not case.parting.is_compared


def test_the_time_for_a_judgement_begins_again_with_a_successor() -> None:
    case = uncompared()
    case.now += COMPARED_WITHIN_S / 2
    case.machine.in_force = quorum(2, member("0", "a"), member("1", "c"))
    case.parting.are_over(Roster(True), case.now)
    assert case.next() is Do.TELL
    case.now += COMPARED_WITHIN_S
    case.answers(Stage.HERE)
    case.next()
    assert case.shown.stage is Stage.HERE
