"""What the workers of a replica tell each other about snapshots, in torch's store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.core.ids import WorkerKey
from ftrun.training.context import WorkerContext
from ftrun.training.snapshot_meeting import DRAFT, END, PART, Meeting
from tests.unit.process_groups.ranks import HOST, open_store


def meetings(address: str, workers: int = 2) -> list[Meeting]:
    """The workers of one replica."""
    first = WorkerContext(
        "job", WorkerKey("0", "abc", 0), 1, 1, workers, HOST, "", "", group_store=address
    )
    keys = [WorkerKey("0", "abc", rank) for rank in range(workers)]
    return [Meeting(replace(first, key=key)) for key in keys]


def test_a_worker_that_comes_late_hears_that_there_is_a_last_one() -> None:
    """The lead has told it, and begins the last one: it forgets all that was told before."""
    held, address = open_store()
    lead, other = meetings(address)
    deadline = clock.now() + 60
    lead.tell(6, DRAFT, "draft-6", deadline)
    lead.tell(7, END, "takes", deadline)
    lead.forget(deadline)
    assert other.hear(7, END, deadline) == "takes"
    assert held.num_keys() == 1
    with pytest.raises(PeerError):
        other.hear(6, DRAFT, clock.now() + 0.1)


def test_an_error_is_raised_where_it_is_heard() -> None:
    _held, address = open_store()
    lead, other = meetings(address)
    deadline = clock.now() + 60
    other.tell(6, PART, "", deadline, "its disk is full", rank=1)
    with pytest.raises(PeerError, match="worker 1 of this replica: its disk is full"):
        lead.hear(6, PART, deadline, rank=1)


def test_what_was_removed_while_it_was_read_is_a_peers_error() -> None:
    """torch's store answers with nothing, if a key is removed after the wait for it has ended."""
    held, address = open_store()
    lead, _other = meetings(address)
    held.set("ftrun/snapshots/abc/6/part/1", b"")  # type: ignore[arg-type]
    with pytest.raises(PeerError, match="cannot be read"):
        lead.hear(6, PART, clock.now() + 60, rank=1)
