"""Corners of the exchanges, of snapshots and of marks that no schedule needs to come to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.ids import Attempt
from ftrun.core.quorum import Endpoint
from ftrun.core.worker import events as e
from ftrun.core.worker import exchange
from ftrun.core.worker.asking import AskLighthouse, AskPeer, AwaitChange, Known
from ftrun.core.worker.exchange import (
    ASKS,
    PEEKS,
    ExchangeQuestion,
    Kept,
    Kind,
    answer_of,
)
from ftrun.core.worker.exchange_places import (
    PLACES_KEPT,
    AskingDonors,
    PeekingAtPlace,
    ShownPlaces,
    place_of,
)
from ftrun.core.worker.machine import StepMachine
from ftrun.core.worker.marks import INTERVAL_S, SELDOM, Marks
from ftrun.core.worker.parting import ShownStage, Stage
from ftrun.core.worker.snapshots import LIMIT_MIN_S, Decision, PartSchedule, SnapshotSchedule
from ftrun.core.worker.under_way import Fate
from tests.unit.core.worker.step_script import attempt_of, event_of, machine_of
from tests.unit.core.worker.step_script import quorum_of as quorum_in_words
from tests.unit.core.worker.test_exchanging import (
    KEY,
    NAME,
    Peer,
    quorum_of,
    roster_of,
    value_of,
)
from tests.unit.core.worker.test_parting import STATE, Case, member, pair

HERE = Attempt(1, 1)


def test_a_gap_while_nothing_is_waited_for_takes_nothing_back() -> None:
    kept = Kept("0")
    kept.give(NAME, value_of("0"))
    kept.note_gaps(1)
    assert kept.under(NAME) == [value_of("0")] and not kept.has_taken_back(NAME)


def test_while_it_is_undecided_nothing_is_declined() -> None:
    kept = Kept("0")
    kept.begins_to_peek(NAME)
    assert kept.decline(NAME) is None
    kept.has_decided(NAME, reads=True)
    assert kept.decline(NAME) == []


def test_a_peer_of_another_attempt_gets_no_answer() -> None:
    kept = Kept("0")
    question = ExchangeQuestion(NAME, Attempt(2, 1), how=ASKS)
    assert answer_of(kept, question, HERE, heals_to=None, gaps=0) is None


def test_what_is_kept_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "KEPT_BYTES_MAX", 2)
    kept = Kept("0")
    kept.add(NAME, [value_of("1", b"12")])
    assert not kept.is_full
    kept.add(NAME, [value_of("2")])
    assert kept.is_full


def test_who_has_been_answered_gets_all_though_others_are_waited_for() -> None:
    one = Peer(NAME)
    one.known = replace(one.known, quorum=quorum_of("0", "1", "2"))
    one.hears(value_of("1"))
    found = one.answer(ExchangeQuestion(NAME, HERE, of="1", how=PEEKS))
    assert found == [value_of("0"), value_of("1")], "1 has answered, so it is not waited for"
    assert one.exchanging.open == ("2",)


def test_whose_answers_are_missing_while_it_peeks() -> None:
    one = Peer(NAME, is_late=True)
    one.known = replace(one.known, quorum=quorum_of("0", "1", "2"))
    one.asks()
    assert one.exchanging.open == ("1", "2")
    one.exchanging.is_over()
    assert one.exchanging.next(one.known) is not None


def test_an_answer_that_nobody_asked_for_is_not_kept() -> None:
    one = Peer(NAME)
    one.known = replace(one.known, quorum=quorum_of("0", "1", "2"))
    ask = one.hears(value_of("1"))
    one.exchanging.answered(ask, [value_of("1", b"again")], one.known)
    one.exchanging.answered(
        replace(ask, question=replace(ask.question, how=PEEKS)), [value_of("2")], one.known
    )
    assert one.kept.under(NAME) == [value_of("0"), value_of("1")]


def test_places_of_old_steps_are_forgotten() -> None:
    places = ShownPlaces()
    for step in range(PLACES_KEPT + 2):
        places.show(step, lambda step=step: f"place {step}")  # type: ignore[misc]
    assert places.at(1) is None and places.at(PLACES_KEPT + 1) == f"place {PLACES_KEPT + 1}"


def test_donors_that_stand_elsewhere_are_asked_again_under_the_next_quorum() -> None:
    asking = AskingDonors(KEY, 3)
    known = Known(None, quorum_of("0", "1", newcomers=("0",)), 0.0)
    assert asking.next(replace(known, quorum=None)) is None
    first = asking.next(known)
    assert isinstance(first, AskPeer)
    asking.answered(first, [])
    assert asking.next(known) == AwaitChange("1")
    assert asking.next(known) == first


def test_peeking_at_a_place_asks_who_trains_until_one_has_it() -> None:
    peeking = PeekingAtPlace(KEY)
    assert peeking.next(Known(None, None, 0.0)) == AskLighthouse()
    known = Known(roster_of("a0", "a1", has_begun=True), None, 0.0)
    ask = peeking.next(known)
    assert isinstance(ask, AskPeer) and ask.replica_id == "1"
    peeking.failed(ask)
    assert peeking.next(known) == AskLighthouse(anew=True)
    again = peeking.next(known)
    assert isinstance(again, AskPeer)
    places = ShownPlaces()
    places.show(4, lambda: "here")
    peer = replace(KEY, replica_id="1")
    peeking.answered(again, place_of(places, peer, again.question, is_set_up=True) or [])
    assert peeking.found == "here"
    assert peeking.next(known) is None


def test_before_anybody_trains_there_is_no_place() -> None:
    peeking = PeekingAtPlace(KEY)
    assert peeking.next(Known(roster_of("a0", "a1"), None, 0.0)) is None
    assert peeking.next(Known(roster_of("a1", has_begun=True), None, 0.0)) is None, "it is over"


def test_most_marks_are_shown_now_and_then() -> None:
    marks = Marks()
    assert marks.wants(1, 0.0)
    assert not marks.wants(2, INTERVAL_S / 2)
    assert marks.wants(SELDOM, INTERVAL_S / 2)
    assert marks.wants(3, INTERVAL_S * 2)


def test_the_writer_takes_one_more_at_its_end_if_none_is_under_way() -> None:
    schedule = SnapshotSchedule(10.0, 0.0)
    assert not schedule.at_end(0.0), "who writes is not known yet"
    assert schedule.at_boundary(True, 0.0) is Decision.LOOK
    assert not schedule.at_end(1.0), "it looks for the newest one"
    schedule.looked(None, 1.0)
    assert schedule.is_idle and schedule.limit_s >= LIMIT_MIN_S
    assert schedule.at_end(2.0) and not schedule.is_idle
    assert not schedule.at_end(3.0)


def test_a_part_that_was_never_begun_cannot_fail() -> None:
    schedule = PartSchedule(10.0, 0.0)
    schedule.failed()
    assert schedule.counts.failed == 0


def stepping(quorum: str = "0 1") -> StepMachine:
    """A machine with a step under way in this quorum."""
    machine = machine_of("worker 0 holds 5/A")
    machine.handle(m.NewQuorum(quorum_in_words("1.5#1", "5/A", quorum)), 0.0)
    machine.handle(e.BoundaryReached(), 0.0)
    machine.handle(m.Built(attempt_of("1.5#1")), 0.0)
    assert machine.fate is Fate.OPEN
    return machine


def test_between_two_steps_the_end_of_operations_is_nothing() -> None:
    machine = machine_of("worker 0 holds 5/A")
    assert machine.handle(e.OperationsEnded(), 0.0) == []
    assert not machine.freezes_membership and not machine.is_alone


def test_a_step_that_is_void_has_nobody_to_exchange_with() -> None:
    machine = stepping()
    assert not machine.is_alone
    machine.handle(e.VoteStarted(), 0.0)
    machine.handle(m.Interrupt(attempt_of("1.5#1")), 0.0)
    machine.handle(e.Ticked(), 1000.0)
    assert machine.fate is Fate.VOID and machine.is_alone


def test_who_is_to_heal_at_its_next_boundary_has_nobody_to_exchange_with() -> None:
    """Its peers hold another state than the one that it has committed (seed 1747, focused)."""
    machine = stepping()
    machine.handle(e.Decided(False, reason="no data"), 0.0)
    machine.handle(m.Interrupt(attempt_of("1.5#1")), 0.0)
    machine.handle(m.NewQuorum(quorum_in_words("1.6#1", "4/B", "0 1", "0")), 0.0)
    machine.handle(m.Built(attempt_of("1.6#1")), 0.0)
    assert machine.in_force is not None and machine.is_alone


def test_a_peer_of_the_quorum_that_is_not_reached_ends_it_and_another_one_does_not() -> None:
    machine = stepping()
    assert machine.handle(e.PeerUnreached(attempt_of("1.4#1"), "1"), 0.0) == []
    out = machine.handle(e.PeerUnreached(attempt_of("1.5#1"), "1"), 0.0)
    errored = [x.message for x in out if isinstance(x, e.Send)]
    assert [type(x) for x in errored] == [m.Errored]
    assert isinstance(errored[0], m.Errored) and errored[0].reason == "replica 1 is not reached"


def test_a_roster_that_was_not_asked_for_is_shown_to_nobody() -> None:
    machine = machine_of("worker 0 holds 5/A")
    assert machine.handle(roster_of("a1"), 0.0) == []
    machine.handle(e.PeersAsked(), 0.0)
    assert machine.handle(roster_of("a1"), 0.0) == [e.ShowPeers(roster_of("a1"))]


def test_what_a_worker_is_at_when_its_script_ends() -> None:
    machine = stepping()
    machine.lingers = True
    assert machine.activity()[0] is Activity.ENDING
    left = machine_of("worker 0 holds 5/A")
    left.handle(e.WentAway(m.LeaveReason.FINISHED), 0.0)
    assert left.activity()[0] is Activity.LEFT


def test_a_newcomer_in_its_step_is_told_that_its_peers_are_at_their_end() -> None:
    newcomer, peer = machine_of("worker 1 holds 0/B"), machine_of("worker 0 holds 5/A")
    for text in ("boundary", "new quorum 1.1#1 at 5/A: 0 1 newcomers 1", "built 1.1#1"):
        newcomer.handle(event_of(text), 0.0)
        peer.handle(event_of(text), 0.0)
    [ask] = [x for x in newcomer.handle(event_of("issue"), 0.0) if isinstance(x, e.Ask)]
    assert peer.look_up(ask.question) is None
    peer.lingers = True
    entry = peer.look_up(ask.question)
    assert entry is not None and entry.over and newcomer.takes(entry) and not peer.takes(entry)
    out = newcomer.handle(e.OperationAnswered(ask.question, "0", entry), 0.0)
    assert any(isinstance(x, e.FailOperations) for x in out)
    [errored] = [x.message for x in out if isinstance(x, e.Send)]
    assert isinstance(errored, m.Errored) and errored.own
    for text in (
        *("decide no", "boundary", "interrupt 1.1#1"),
        *("new quorum 1.1#2 at 5/A: 0 1 newcomers 1", "built 1.1#2"),
    ):
        newcomer.handle(event_of(text), 0.0)
    assert newcomer.heals_first  # so that its script sees, after this step, where it is
    newcomer.handle(event_of("loaded 1.1#2@5 5/A"), 0.0)
    newcomer.handle(event_of("applied from 0"), 0.0)
    assert not newcomer.healing and newcomer.takes(entry)


@pytest.mark.parametrize(
    ("quorum", "lacks"),
    [
        ("at 6/A+1.1#1: 0 1 newcomers 0", True),
        ("at 6/A+1.1#1: 0 1 newcomers 1", True),
        ("at 5/A: 0 1", False),
        ("at 7/A+1.1#1+1.2#1: 0 1 newcomers 0", False),
    ],
    ids=[
        "the peers have committed the step",
        "the lighthouse does not know",
        "nobody has",
        "the peers are further, and elsewhere in the script",
    ],
)
def test_who_has_lost_a_step_between_two_steps_knows_whether_it_lacks_the_state(
    quorum: str, lacks: bool
) -> None:
    machine = machine_of("worker 0 holds 5/A")
    assert not machine.must_catch_up  # there is no quorum
    for text in ("boundary", "new quorum 1.1#1 at 5/A: 0 1", "built 1.1#1", "issue"):
        machine.handle(event_of(text), 0.0)
    assert not machine.must_catch_up  # it has begun this quorum's step
    for text in ("interrupt 1.1#1", f"new quorum 1.2#1 {quorum}", "decide no", "built 1.2#1"):
        machine.handle(event_of(text), 0.0)
    assert not machine.in_step and machine.must_catch_up == lacks


@pytest.mark.parametrize("step", [6, 8])
def test_who_joins_again_by_a_switch_catches_up_if_it_has_lost_the_last_step_alone(
    step: int,
) -> None:
    """No quorum is in force before its boundary, so it does not wait for one."""
    machine = machine_of("worker 0 holds 5/A heal_first=1")
    for text in (
        *("boundary", "new quorum 1.1#1 at 5/A: 0 1", "built 1.1#1", "issue"),
        *("interrupt 1.1#1", "decide no", "prepare 1.2#1: 0 1 newcomers 0", "built 1.2#1"),
    ):
        machine.handle(event_of(text), 0.0)
    assert not machine.is_alone and not machine.must_catch_up
    machine.handle(event_of(f"propose 1.2#1@{step}"), 0.0)
    assert machine.is_alone and machine.must_catch_up == (step == 6)
    machine.handle(event_of("boundary freeze to catch up"), 0.0)
    machine.handle(event_of(f"switch 1.2#1@{step}"), 0.0)
    assert machine.healing and machine.position == step
    assert machine.heals_first == (step == 6), "a later state belongs to another place"


def test_whom_a_worker_at_its_end_waits_for() -> None:
    case = pair()
    assert case.parting.awaited == ["1"]
    case.answers(Stage.KNOWS)
    ask = case.parting.next(case.now)
    assert ask is None and case.parting.awaited == []


def test_a_worker_that_is_not_at_its_end_gives_no_stage() -> None:
    question = pair().asked().question
    shown = ShownStage()
    assert shown.answer(KEY, question) is None
    shown.state, shown.stage = STATE, Stage.HERE
    later = replace(question, name=replace(question.name, index=question.name.index + 1))
    assert shown.answer(KEY, later) is None, "it has not come to that stage"
    assert question.name.kind is Kind.STAGE is not NAME.kind


def test_a_peer_that_is_no_mate_and_is_not_reached_has_not_left() -> None:
    case = Case(member("0", "a", 2), member("1", "b", 2))
    case.next()
    case.shown.mates.add("1")
    ask = case.asked()
    case.parting.failed(
        replace(ask, endpoint=Endpoint("h", "elsewhere:1")), case.now, reached=False
    )
    assert case.parting.awaited == ["1"]


def presents(machine: StepMachine) -> list[m.Present]:
    out = [x.message for x in machine.handle(e.PeersAsked(), 1.0) if isinstance(x, e.Send)]
    return [x for x in out if isinstance(x, m.Present)]


def test_the_end_that_is_shown_is_of_the_state_that_is_held() -> None:
    machine = machine_of("worker 0 holds 5/A")
    assert [x.ended for x in presents(machine)] == [None]
    state = machine.state
    machine.ended_with = m.Mark(state.step, state.lineage, "", "digest")
    assert [x.ended for x in presents(machine)] == [machine.ended_with]
    machine.ended_with = m.Mark(state.step - 1, "before", "", "digest")
    late = m.Mark(state.step, state.lineage, "", is_late=True)
    assert [x.ended for x in presents(machine)] == [late], "it has healed since"


@pytest.mark.parametrize(("found", "is_taken"), [("6/A+1.1#1", True), ("6/B", False)])
def test_a_step_that_peers_have_committed_with_its_gradients_is_no_loss(
    found: str, is_taken: bool
) -> None:
    machine = machine_of("worker 0 holds 5/A")
    for line in (
        "boundary", "new quorum 1.1#1 at 5/A: 0 1 2", "built 1.1#1", "issue", "interrupt 1.1#1",
        f"new quorum 1.2#1 at {found}: 0 1 newcomers 0", "built 1.2#1", "decide no: reset",
    ):  # fmt: skip
        machine.handle(event_of(line), 1.0)
    assert machine.was_taken is is_taken
