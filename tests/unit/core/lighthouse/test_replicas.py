"""The roster: one incarnation per slot, and the last report of each of its workers."""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.core.activity import Activity
from ftrun.core.ids import Attempt, StateId
from ftrun.core.lighthouse.replicas import Replica, Replicas
from ftrun.core.messages import PendingQuorum, Progress, Report
from ftrun.core.quorum import Endpoint, Quorum

QUORUM = Quorum(Attempt(5, 2), (), "s:1")
STATE = StateId(0, "x")


def report(name: str = "h", **more: Quorum | Attempt) -> Report:
    return Report(STATE, Endpoint(name, f"{name}:1"), **more)  # type: ignore[arg-type]


def test_a_slot_has_one_incarnation() -> None:
    replicas = Replicas(set())
    first = Replica("0", "a", "A", "A:1")
    replicas.add(first)
    with pytest.raises(AssertionError, match="Q4"):
        replicas.add(Replica("0", "b", "A", "A:1"))
    assert replicas.find("0", "a") is first
    assert replicas.find("0", "b") is None
    replicas.ready.add("0")
    replicas.remove("0")
    assert replicas.get("0") is None
    assert not replicas.ready
    replicas.add(Replica("0", "b", "A", "A:1"))
    assert "0" in replicas
    assert len(replicas) == 1


def test_members_are_in_replica_order_with_endpoints_by_group_rank() -> None:
    replicas = Replicas(set())
    for name in ("10", "9"):
        replica = Replica(name, "a", "A", "A:1")
        replica.reports = {1: report("one"), 0: report("zero")}
        replicas.add(replica)
    ten_and_nine = replicas.members({"10", "9"}, 2)
    assert [member.replica_id for member in ten_and_nine] == ["9", "10"]
    assert [endpoint.host for endpoint in ten_and_nine[0].endpoints] == ["zero", "one"]
    assert [replica.replica_id for replica in replicas.of_agent("A")] == ["9", "10"]


def test_a_replica_is_known_when_all_its_workers_are() -> None:
    replica = Replica("0", "a", "A", "A:1")
    replica.reports[1] = report()
    assert not replica.is_known(2)
    replica.reports[0] = report()
    assert replica.is_known(2)


@pytest.mark.parametrize(
    ("more", "entangled"),
    [
        ({}, False),
        ({"in_force": QUORUM}, True),
        ({"pending": PendingQuorum(QUORUM)}, True),
        ({"in_force": QUORUM, "interrupted": Attempt(5, 1)}, True),
        ({"in_force": QUORUM, "interrupted": Attempt(5, 2)}, False),
        ({"pending": PendingQuorum(QUORUM), "interrupted": Attempt(6, 1)}, False),
    ],
)
def test_who_has_not_given_up_a_quorum_is_entangled(more: dict[str, Any], entangled: bool) -> None:
    replica = Replica("0", "a", "A", "A:1")
    replica.reports = {0: report(), 1: report(**more)}
    assert replica.is_in_quorum() == entangled


@pytest.mark.parametrize("activity", [None, Activity.QUORUM, Activity.HEALING])
def test_a_switch_ends_the_wait_for_a_quorum_and_nothing_else(activity: Activity | None) -> None:
    replica = Replica("0", "a", "A", "A:1", awaits_switch=True)
    replica.progress = Progress(3, 3, activity) if activity is not None else None
    replica.note_in_force()
    assert not replica.awaits_switch
    assert replica.is_overtaken == (activity is not Activity.HEALING)
