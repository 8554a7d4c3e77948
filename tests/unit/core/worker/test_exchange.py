"""Named exchanges: every survivor comes to the same contributions, whatever dies when (E1, E2)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.ids import Attempt
from ftrun.core.worker.exchange import (
    ASKS,
    IN_STEP,
    PEEKS,
    SET_UP,
    STEPS_KEPT,
    Contribution,
    ExchangeName,
    ExchangeQuestion,
    Kept,
    Kind,
    Round,
    judge,
    may_answer,
)

NAME = ExchangeName(4, 1)


def value_of(replica_id: str, site: str = "train.py:7", body: bytes = b"") -> Contribution:
    return Contribution(replica_id, site, "all_reduce of float32 1", body or replica_id.encode())


@given(st.integers(-1, 10**12), st.integers(0, 10**8), st.sampled_from(Kind))
def test_a_name_can_be_read_again(step: int, index: int, kind: Kind) -> None:
    name = ExchangeName(step, index, kind)
    assert ExchangeName.parse(name.path()) == name


@pytest.mark.parametrize(
    "text", ["", "x.1", "3", "3.x", "-3.1", "3." + "9" * 10, "9" * 19 + ".1", "3.plan0"]
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(ValueError, match="no exchange"):
        ExchangeName.parse(text)


@pytest.mark.parametrize(
    "question",
    [
        ExchangeQuestion(NAME, Attempt(7, 2)),
        ExchangeQuestion(ExchangeName(SET_UP, 0)),
        ExchangeQuestion(NAME, Attempt(7, 2), of="3", how=PEEKS),
        ExchangeQuestion(NAME, Attempt(7, 2), how=PEEKS),
        ExchangeQuestion(NAME, Attempt(7, 2), of="3", how=IN_STEP),
        ExchangeQuestion(NAME, Attempt(7, 2), of="3", how=ASKS),
        ExchangeQuestion(NAME, Attempt(7, 2), of="12"),
        ExchangeQuestion(ExchangeName(SET_UP, 0), of="12", by="a1b2"),
    ],
)
def test_a_question_can_be_read_again(question: ExchangeQuestion) -> None:
    assert ExchangeQuestion.parse(question.path()) == question


@pytest.mark.parametrize(
    "path",
    [
        "/exchanges/",
        "/exchanges/1.x/3.1",
        "/exchanges/3.1/of/x",
        "/exchanges/1.1/3.1/of/x",
        "/exchanges/1.1/3.1/step",
        "/exchanges/1.1/3.1/asks",
        "/exchanges/1.1/3.1/peeks/2/3",
        "/exchanges/1.1/3.1/by/2",
        "/exchanges/1.1/3.1/of/2/a-b",
        "/exchanges/1.1/3.1/of/2/" + "a" * 99,
        "/exchanges/a/b/c/d",
    ],
)
def test_what_is_no_question(path: str) -> None:
    with pytest.raises(ValueError, match="no "):
        ExchangeQuestion.parse(path)


def test_a_predecessors_value_stays() -> None:
    kept = Kept("1")
    kept.add(NAME, [value_of("1", body=b"old")])
    assert kept.give(NAME, value_of("1", body=b"new")).body == b"old"


def test_an_answer_needs_the_own_value() -> None:
    kept = Kept("1")
    kept.add(NAME, [value_of("0")])
    assert kept.answer(NAME) is None
    kept.give(NAME, value_of("1"))
    assert [c.replica_id for c in kept.answer(NAME) or ()] == ["0", "1"]


def test_who_has_passed_a_name_gives_nothing_there_and_holds_up_nobody() -> None:
    kept, name = Kept("1"), ExchangeName(4, 0)
    kept.step_begun(4)
    assert kept.answer(name) is None, "it may still come there"
    kept.step_begun(5)
    assert kept.answer(name) == []
    kept.add(name, [value_of("0")])
    assert kept.answer(name) == [value_of("0")], "what it has heard of, it passes on"
    assert kept.answer(ExchangeName(SET_UP, 0)) is None


def test_old_steps_are_dropped() -> None:
    kept = Kept("0")
    for step in range(STEPS_KEPT + 3):
        kept.give(ExchangeName(step, 0), value_of("0"))
    assert not kept.under(ExchangeName(2, 0))
    assert kept.under(ExchangeName(3, 0))


def test_the_place_of_most_counts() -> None:
    found = [value_of("0", "a.py:1"), value_of("1", "b.py:2"), value_of("2", "b.py:2")]
    judgement = judge(value_of("0", "a.py:1"), found)
    assert judgement.is_out
    assert [c.replica_id for c in judgement.alike] == ["1", "2"]
    assert judgement.unlike == (
        "replica 0: all_reduce of float32 1 at a.py:1; "
        "replicas 1, 2: all_reduce of float32 1 at b.py:2"
    )
    assert not judge(value_of("1", "b.py:2"), found).is_out


def test_of_two_the_lowest_slot_counts() -> None:
    found = [value_of("10", "b.py:2"), value_of("9", "a.py:1")]
    assert judge(found[0], found).is_out
    assert not judge(found[1], found).is_out


def test_all_alike() -> None:
    judgement = judge(value_of("0"), [value_of("1"), value_of("0")])
    assert (judgement.unlike, judgement.is_out) == ("", False)
    assert [c.replica_id for c in judgement.alike] == ["0", "1"]


def test_who_only_reads_must_stand_at_the_same_place() -> None:
    found = [value_of("0"), value_of("1")]
    reads = judge(value_of("2"), found)
    assert (reads.unlike, reads.is_out) == ("", False)
    assert [c.replica_id for c in reads.alike] == ["0", "1"]
    elsewhere = judge(value_of("2", "other.py:1"), found)
    assert elsewhere.is_out
    assert "replica 2: all_reduce of float32 1 at other.py:1" in elsewhere.unlike


# ---------------------------------------------------------------- many replicas, and deaths


@dataclass
class Worker:
    """One replica: what it keeps, its round, its quorum."""

    replica_id: str
    kept: Kept = field(init=False)
    round: Round = field(init=False)
    attempt: Attempt | None = None
    members: tuple[str, ...] = ()
    has_given: bool = False
    result: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self.kept, self.round = Kept(self.replica_id), Round(self.replica_id)


class Group:
    """Replicas that exchange one value each, in a random order of everything that can happen.

    A quorum is issued when all survivors have given the former one up. Answers travel, also those
    of a replica that has died since.
    """

    def __init__(self, seed: int, *, keeps_late_answers: bool = False) -> None:
        self.rng = random.Random(seed)
        self.keeps_late_answers = keeps_late_answers
        self.workers = {str(i): Worker(str(i)) for i in range(self.rng.randint(2, 5))}
        self.quorum = Attempt(1, 0)
        self.is_broken = False
        self.answers: list[tuple[Worker, Attempt, str, list[Contribution]]] = []
        self.issue()

    def issue(self) -> None:
        """The quorum of all that live, once nobody is in the former one any more."""
        self.quorum = Attempt(1, self.quorum.number + 1)
        self.is_broken = False
        for worker in self.workers.values():
            worker.members = tuple(self.workers)

    def interrupt(self, worker: Worker) -> None:
        """A survivor gives the broken quorum up."""
        if self.is_broken:
            worker.attempt = None
            if all(other.attempt is None for other in self.workers.values()):
                self.issue()

    def enter(self, worker: Worker) -> None:
        """The newest quorum comes into force there."""
        if not self.is_broken:
            worker.attempt = self.quorum

    def die(self) -> None:
        if len(self.workers) > 1:
            del self.workers[self.rng.choice(list(self.workers))]
            self.is_broken = True

    def ask(self, worker: Worker) -> None:
        """A worker that waits asks a member, whose answer is under way then."""
        if not worker.has_given or worker.result is not None:
            return
        worker.round.begin(worker.attempt, worker.members)
        if worker.attempt is None:
            return
        if worker.round.is_complete:
            worker.result = tuple(c.replica_id for c in worker.kept.under(NAME))
            return
        peer = self.workers.get(self.rng.choice(sorted(worker.round.open)))
        if peer is None or not may_answer(worker.attempt, peer.attempt):
            return
        answer = peer.kept.answer(NAME)
        if answer is not None:
            self.answers.append((worker, worker.attempt, peer.replica_id, answer))

    def deliver(self) -> None:
        """One answer arrives, in any order."""
        if not self.answers:
            return
        worker, asked, peer_id, found = self.answers.pop(self.rng.randrange(len(self.answers)))
        stands = worker.attempt == asked or self.keeps_late_answers
        if worker.result is None and stands and worker.round.answered(asked, peer_id):
            worker.kept.add(NAME, found)

    def run(self) -> None:
        deaths = self.rng.randint(0, 3)
        slowness = self.rng.choice((0.42, 0.5, 0.7))  # the smaller, the slower the network
        for _ in range(3000):
            worker = self.rng.choice(list(self.workers.values()))
            chance = self.rng.random()
            if chance < 0.02 and deaths:
                deaths -= 1
                self.die()
            elif chance < 0.1:
                self.interrupt(worker)
            elif chance < 0.2:
                self.enter(worker)
            elif chance < 0.4 and not worker.has_given:
                worker.kept.give(NAME, value_of(worker.replica_id))
                worker.has_given = True
            elif chance < slowness:
                self.deliver()
            else:
                self.ask(worker)

    @property
    def results(self) -> set[tuple[str, ...]]:
        """The different results of the survivors."""
        return {w.result for w in self.workers.values() if w.result is not None}


@given(st.integers(0, 10**9))
def test_all_survivors_come_to_the_same(seed: int) -> None:
    group = Group(seed)
    group.run()
    assert len(group.results) <= 1, group.results


@pytest.mark.parametrize("keeps", [False, True])
def test_an_answer_that_comes_after_its_quorum_is_not_kept(keeps: bool) -> None:
    """Else a survivor that has answered in the next round would come to know more (E1)."""
    group = Group(0, keeps_late_answers=keeps)
    group.workers = {name: Worker(name) for name in "012"}
    group.issue()
    for worker in group.workers.values():
        group.enter(worker)
        worker.kept.give(NAME, value_of(worker.replica_id))
        worker.has_given = True
    first, second, dies = group.workers.values()
    second.round.begin(second.attempt, second.members)
    assert second.attempt is not None
    late = (second, second.attempt, "2", dies.kept.answer(NAME) or [])
    del group.workers["2"]
    group.is_broken = True
    for worker in (first, second):
        group.interrupt(worker)
    for worker in (first, second):
        group.enter(worker)
    while first.result is None:
        group.ask(first)
        group.deliver()
    group.answers.append(late)
    group.deliver()
    while second.result is None:
        group.ask(second)
        group.deliver()
    assert (len(group.results) == 1) is not keeps


def test_the_random_groups_do_come_to_results() -> None:
    done = 0
    for seed in range(50):
        group = Group(seed)
        group.run()
        done += all(worker.result is not None for worker in group.workers.values())
    assert done > 40


def test_an_answer_of_an_earlier_round_is_dropped() -> None:
    this_round = Round("0")
    this_round.begin(Attempt(1, 1), ("0", "1"))
    assert this_round.begin(Attempt(1, 2), ("0", "1"))
    assert not this_round.answered(Attempt(1, 1), "1")
    assert this_round.open == {"1"}
    assert not this_round.begin(Attempt(1, 2), ("0", "1"))
