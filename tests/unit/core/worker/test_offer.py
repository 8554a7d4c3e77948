"""To whom a state is offered that is kept between two steps."""

from __future__ import annotations

from dataclasses import replace

from ftrun.core.ids import WorkerKey
from ftrun.core.quorum import Endpoint, Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.offer import StateOffer
from ftrun.core.worker.quorums import Quorums
from tests.unit.core.worker.step_script import quorum_of, state_of

STATE = state_of("5/A")


def offered(trained_in: Quorum, now: Quorum) -> list[int]:
    """To how many replicas replica 0 offers its state, where it waits between two steps."""
    offer, quorums = StateOffer(), Quorums(WorkerKey("0", "i0", 0))
    offer.keeps_state = True
    offer.trained_with = frozenset(member.key for member in trained_in.members)
    quorums.take(now, is_switch=False)
    quorums.adopt(now)
    made = offer.offer_kept(STATE, quorums)
    return [x.receivers for x in made if isinstance(x, e.OfferState)]


def test_it_serves_who_has_lost_the_last_step() -> None:
    before = quorum_of("1.1#1", "3/A", "0 1 2")
    assert offered(before, quorum_of("1.1#2", "5/A", "0 1 2", "1")) == [1]


def test_it_serves_a_replica_one_of_whose_workers_was_replaced_meanwhile() -> None:
    before = quorum_of("1.1#1", "3/A", "0 1")
    now = quorum_of("1.1#2", "5/A", "0 1", "1")
    elsewhere = replace(now.members[1], endpoints=(Endpoint("127.0.0.1", "127.0.0.1:7"),))
    assert offered(before, replace(now, members=(now.members[0], elsewhere))) == [1]


def test_a_newcomer_waits_for_the_place_of_the_next_step() -> None:
    before = quorum_of("1.1#1", "3/A", "0 1")
    assert offered(before, quorum_of("1.2#1", "5/A", "0 1 2", "2")) == []
