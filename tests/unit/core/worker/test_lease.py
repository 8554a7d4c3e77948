"""A worker's lease: it ends once, and a later one ends the isolation and gives its length (Q3)."""

from __future__ import annotations

from ftrun.core.worker.lease import WorkerLease


def test_before_the_first_message_there_is_no_limit() -> None:
    assert not WorkerLease().ends(1e12)


def test_it_ends_once_and_begins_again_with_a_later_one() -> None:
    lease = WorkerLease()
    lease.renew(60.0)
    assert not lease.ends(59.9)
    assert lease.ends(60.5) and lease.isolated
    assert not lease.ends(61.0)
    lease.renew(60.0)
    assert lease.begins_again(62.0) is None
    lease.renew(90.0)
    assert lease.begins_again(64.5) == 4.0
    assert not lease.isolated and lease.begins_again(65.0) is None
