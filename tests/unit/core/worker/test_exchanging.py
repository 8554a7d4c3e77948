"""One exchange under way: whom it asks, what it keeps, when it is over; names and places."""

from __future__ import annotations

from dataclasses import replace

from ftrun.core.ids import Attempt, WorkerKey
from ftrun.core.messages import Roster, RosterEntry
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.core.worker.asking import (
    AskPeer,
    AwaitChange,
    AwaitQuorum,
    GiveUpQuorum,
    Known,
)
from ftrun.core.worker.exchange import (
    ASKS,
    PEEKS,
    SET_UP,
    Contribution,
    ExchangeName,
    ExchangeQuestion,
    Kept,
    Names,
    answer_of,
)
from ftrun.core.worker.exchange_places import (
    AskingDonors,
    PeekingAtPlace,
    ShownPlaces,
    place_of,
)
from ftrun.core.worker.exchanging import UNREACHED_S, Exchanging

NAME = ExchangeName(4, 1)
KEY = WorkerKey("0", "a0", 0)


def value_of(replica_id: str, body: bytes = b"") -> Contribution:
    return Contribution(replica_id, "train.py:7", "a value", body or replica_id.encode())


def quorum_of(*slots: str, number: int = 1, newcomers: tuple[str, ...] = ()) -> Quorum:
    members = [Member(x, f"a{x}", (Endpoint("h", f"h:{x}"),), "store") for x in slots]
    return Quorum(Attempt(number, 1), tuple(members), "store", step=4, newcomers=newcomers)


def roster_of(*incarnations: str, has_begun: bool = False) -> Roster:
    entries = [RosterEntry(x[1:], x, (Endpoint("h", f"h:{x}"),)) for x in incarnations]
    return Roster(has_begun, tuple(entries))


class Peer:
    """This worker, and what it knows."""

    def __init__(self, name: ExchangeName, *, is_late: bool = False) -> None:
        self.kept = Kept("0")
        self.exchanging = Exchanging(KEY, name, value_of("0"), self.kept)
        self.known = Known(None, None, 0.0, late_to=name.step if is_late else SET_UP)

    def asks(self) -> AskPeer:
        move = self.exchanging.next(self.known)
        assert isinstance(move, AskPeer), move
        return move

    def hears(self, *found: Contribution) -> AskPeer:
        ask = self.asks()
        self.exchanging.answered(ask, found, self.known)
        return ask

    @property
    def result(self) -> list[bytes]:
        assert self.exchanging.next(self.known) is None
        return [c.body for c in self.exchanging.judgement.alike]

    def answer(self, question: ExchangeQuestion) -> list[Contribution] | None:
        quorum = self.known.quorum
        attempt = None if quorum is None else quorum.attempt
        gaps = self.known.gaps
        return answer_of(self.kept, question, attempt, heals_to=None, gaps=gaps)


def test_all_members_are_asked_and_a_new_quorum_asks_them_again() -> None:
    one = Peer(NAME)
    assert one.exchanging.next(one.known) == AwaitQuorum()
    one.known = replace(one.known, quorum=quorum_of("0", "1", "2"))
    assert one.hears(value_of("1")).replica_id == "1"
    late = one.asks()
    one.known = replace(one.known, quorum=quorum_of("0", "1", number=2))
    one.exchanging.answered(late, [value_of("2")], one.known)
    assert one.hears(value_of("1")).replica_id == "1"
    assert one.result == [b"0", b"1"]


def test_a_member_that_is_not_reached_for_long_is_reported() -> None:
    one = Peer(NAME)
    one.known = replace(one.known, quorum=quorum_of("0", "1"))
    one.exchanging.failed(one.asks(), reached=True)
    assert isinstance(one.exchanging.next(one.known), AskPeer), "it has not come there yet"
    one.exchanging.failed(one.asks(), reached=False)
    assert one.exchanging.next(one.known) == AwaitChange("1")
    one.known = replace(one.known, now=UNREACHED_S)
    one.exchanging.failed(one.asks(), reached=False)
    assert one.exchanging.next(one.known) == GiveUpQuorum(Attempt(1, 1), "1")


def test_who_is_late_reads_what_a_member_has_completed() -> None:
    one = Peer(NAME, is_late=True)
    one.known = replace(one.known, quorum=quorum_of("0", "1"))
    assert one.answer(ExchangeQuestion(NAME, Attempt(1, 1))) is None, "not decided yet"
    assert one.hears(value_of("1"), value_of("2")).question.how == PEEKS
    assert one.hears(value_of("1"), value_of("2")).question.how == ASKS
    assert one.result == [b"1", b"2"]
    found = one.answer(ExchangeQuestion(NAME, Attempt(1, 1)))
    assert found == [value_of("1"), value_of("2")], "it answers, without a value of its own"


def test_who_is_late_and_waited_for_gives() -> None:
    one = Peer(NAME, is_late=True)
    one.known = replace(one.known, quorum=quorum_of("0", "1"))
    assert one.hears().question.of == "0"
    one.hears(value_of("1"))
    assert one.result == [b"0", b"1"]


def test_who_ends_knows_whom_it_owes_its_last_value() -> None:
    one = Peer(NAME)
    one.known = replace(one.known, quorum=quorum_of("0", "1", "2"))
    assert not one.kept.owes("012")
    one.hears(value_of("1"))
    one.hears(value_of("2"))
    assert one.result == [b"0", b"1", b"2"]
    assert one.kept.owes("012") == {"1", "2"}
    one.answer(ExchangeQuestion(NAME, Attempt(1, 1), of="2", how=ASKS))
    assert one.kept.owes("012") == {"1"} and not one.kept.owes("02")


def test_a_member_that_waits_shows_a_late_one_its_predecessors_value_only() -> None:
    one = Peer(NAME)
    one.known = replace(one.known, quorum=quorum_of("0", "1", "2"))
    one.hears(value_of("1"))
    peeks = ExchangeQuestion(NAME, Attempt(1, 1), of="2", how=PEEKS)
    assert one.answer(peeks) == []
    one.kept.add(NAME, [value_of("2", b"old")])
    assert one.answer(peeks) == [value_of("2", b"old")]
    one.hears(value_of("2"))
    assert one.result == [b"0", b"1", b"old"]
    assert len(one.answer(peeks) or ()) == 3, "it is complete"


def test_who_comes_back_takes_its_value_back() -> None:
    one = Peer(NAME)
    one.known = replace(one.known, quorum=quorum_of("0", "1"))
    one.asks()
    one.known = replace(one.known, quorum=quorum_of("0", "1", number=3), gaps=1)
    assert one.answer(ExchangeQuestion(NAME, Attempt(3, 1))) is None
    ask = one.hears(value_of("1"))
    assert ask.question.how == PEEKS and not ask.question.of
    one.hears(value_of("1"))
    assert one.result == [b"1"], "its peer had done without"


def test_who_is_alone_has_its_own_value() -> None:
    one = Peer(NAME)
    one.known = replace(one.known, is_alone=True)
    assert one.result == [b"0"]
    assert one.exchanging.is_void


def test_names_count_from_the_begin_of_a_step_and_another_try_has_the_same() -> None:
    names = Names()
    names.step_begun(2)
    assert names.next() == ExchangeName(2, 0)
    names.step_begun(3)
    assert [names.next().index for _ in range(2)] == [0, 1]
    names.step_begun(3)
    assert names.next() == ExchangeName(3, 0)
    assert names.is_void(3, in_step=False) and not names.is_void(4, in_step=False)
    assert not names.is_void(3, in_step=True)


def test_a_donor_tells_its_place() -> None:
    places = ShownPlaces()
    for step in range(4):
        places.show(step, lambda step=step: f"place {step}")  # type: ignore[misc]
    asking = AskingDonors(KEY, 3)
    known = Known(None, quorum_of("0", "1", "2", newcomers=("0",)), 0.0)
    first = asking.next(known)
    assert isinstance(first, AskPeer) and first.replica_id == "1"
    asking.failed(first)
    second = asking.next(known)
    assert isinstance(second, AskPeer) and second.replica_id == "2"
    found = place_of(places, KEY, second.question, is_set_up=True)
    asking.answered(second, found or [])
    assert asking.next(known) is None and asking.found == "place 3"
    old = replace(second.question, name=ExchangeName(1, second.question.name.index))
    assert place_of(places, KEY, old, is_set_up=True) is None


def test_a_try_in_vain_is_no_place_to_join_at() -> None:
    places = ShownPlaces()
    for step in (2, 3):
        places.show(step, lambda step=step: f"place {step}")  # type: ignore[misc]
    places.forget(3)
    assert places.at(3) is None and places.at(2) == "place 2"
    places.show(3, lambda: "the next batch")
    assert places.at(3) == "the next batch"


def test_those_that_train_may_have_no_place_yet() -> None:
    peeking = PeekingAtPlace(KEY)
    known = Known(roster_of("a1", "a2", has_begun=True), None, 0.0)
    for name in ("1", "2"):
        ask = peeking.next(known)
        assert isinstance(ask, AskPeer) and ask.replica_id == name
        answer = place_of(ShownPlaces(), KEY, ask.question, is_set_up=True)
        assert answer == []
        peeking.answered(ask, answer)
    assert peeking.next(known) is None and peeking.found is None
