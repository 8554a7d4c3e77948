"""When the memory of one group goes to the disk."""

from __future__ import annotations

from ftrun.core.replay.falls import Fall
from ftrun.core.worker.group_snapshots import GroupSnapshots, InMemory, Written, why_unsound
from ftrun.core.worker.snapshots import Decision, SnapshotCounts

EVERY_S = 10.0
NOTHING, TAKE, SKIP = Decision.NOTHING, Decision.TAKE, Decision.SKIP


def begun(at: float = 0.0) -> GroupSnapshots:
    """It has seen its first state, and found no snapshot."""
    plan = GroupSnapshots(EVERY_S)
    assert plan.look(InMemory(None), at) is NOTHING
    assert plan.look(InMemory(1), at) is Decision.LOOK
    plan.schedule(at).looked(None, at)
    assert plan.look(InMemory(2), at + 0.5 * EVERY_S) is Decision.PREPARE
    plan.schedule(at).prepared()
    return plan


def test_one_is_taken_each_interval_if_there_is_a_newer_state() -> None:
    plan = begun()
    assert plan.look(InMemory(5), 9.0) is NOTHING
    assert plan.look(InMemory(5), 10.0) is TAKE
    assert plan.written(5, 11.0) == Written(True, 0)
    assert plan.look(InMemory(5), 20.0) is NOTHING, "there is nothing new"
    assert plan.look(InMemory(6), 20.0) is TAKE
    assert plan.written(6, 21.0) == Written(False, 0)
    assert plan.counts == SnapshotCounts(written=2)


def test_nothing_is_written_of_states_that_may_be_incomplete() -> None:
    plan = begun()
    assert plan.look(InMemory(5, is_sound=False), 10.0) is NOTHING
    assert not plan.at_end(InMemory(5, is_sound=False), 10.0)
    assert why_unsound((0, Fall.LOG_FULL, Fall.SCRIPT)) is Fall.SCRIPT
    assert why_unsound((0, Fall.LOG_FULL)) is None


def test_what_was_skipped_is_told_when_it_begins_and_when_it_ends() -> None:
    plan = begun()
    assert plan.look(InMemory(5), 10.0) is TAKE
    plan.schedule(10.5).failed()
    assert plan.look(InMemory(5), 20.0) is TAKE
    plan.written(5, 21.0)
    assert plan.look(InMemory(7), 30.0) is TAKE
    assert plan.look(InMemory(8), 40.0) is SKIP
    assert plan.look(InMemory(9), 50.0) is NOTHING, "it is told once"
    assert plan.written(7, 51.0) == Written(False, 2)
    assert plan.look(InMemory(9), 51.0) is TAKE, "it is overdue"
    assert plan.counts == SnapshotCounts(written=2, skipped=2, failed=1)


def test_one_that_takes_too_long_is_abandoned_though_nothing_is_new() -> None:
    plan = begun()
    plan.begins_from(4)
    assert plan.look(InMemory(4), 10.0) is NOTHING
    assert plan.look(InMemory(5), 10.0) is TAKE
    limit_s = plan.schedule(10.0).limit_s
    plan.newest = 5
    assert plan.look(InMemory(5), 10.1 + limit_s) is Decision.ABANDON


def test_the_last_one_is_of_a_newer_state_of_a_script_that_has_not_come_to_its_end() -> None:
    plan = GroupSnapshots(EVERY_S)
    assert not plan.at_end(InMemory(None), 0.0)
    assert not plan.at_end(InMemory(5, is_over=True), 0.0)
    assert plan.counts == SnapshotCounts()
    assert plan.at_end(InMemory(5), 0.0)
    assert plan.written(5, 1.0) == Written(False, 0), "it has a line of its own"
    assert not plan.at_end(InMemory(5), 2.0)
