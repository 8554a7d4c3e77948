"""The vote of a replica group of two workers: one rank's flag reaches all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from ftrun.core.ids import Attempt, Tag, WorkerKey
from ftrun.training.context import WorkerContext
from ftrun.training.session import Session
from ftrun.training.vote import GroupVote

DEADLINE_S = 20.0
TAG = Tag(Attempt(1, 1), 7)


def context(rank: int) -> WorkerContext:
    return WorkerContext(
        key=WorkerKey("0", "a" * 16, rank),
        job_id="job",
        replicas=1,
        min_replicas=1,
        workers_per_replica=2,
        host="127.0.0.1",
        socket_path="",
        token="",
        device="cpu",
        connect_timeout_s=DEADLINE_S,
    )


def test_all_ranks_hear_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False,
        timeout=timedelta(seconds=DEADLINE_S),
    )  # fmt: skip
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))

    def votes(rank: int) -> list[object]:
        vote = GroupVote(context(rank), DEADLINE_S)
        session = Session.__new__(Session)  # Of it only what asks the group.
        session.vote = vote
        mine = rank == 1
        try:
            return [
                session.any_in_group(mine),
                session.any_in_group(False),
                session.any_in_group(True),
                vote.decide(TAG, True),
                vote.decide(TAG, mine, True),
                vote.decide(TAG, True, mine),
                vote.decide(Tag(TAG.attempt, TAG.step + rank), True, True),
                vote.lowest(7, "a"),
                vote.lowest(7, f"of {rank}"),
                vote.lowest(-rank, "a"),
            ]
        finally:
            vote.close()

    with ThreadPoolExecutor(2) as pool:
        heard = list(pool.map(votes, range(2), timeout=2 * DEADLINE_S))
    ballots = [(True, False), (False, True), (True, False), (None, False)]
    lowest = [(7, True), (7, False), (-1, False)]
    assert heard == [[True, False, True, *ballots, *lowest]] * 2


def test_a_vote_says_that_it_is_waited_for_at_once() -> None:
    """By that a replacement knows that its predecessor has come no further (in_place.py)."""
    seen: list[bool] = []

    class Group:
        def allreduce(self, _: object, options: dist.AllreduceOptions) -> object:
            seen.append(options.asyncOp)
            return SimpleNamespace(wait=bool)

    vote = GroupVote(context(0), DEADLINE_S, Group())
    vote.any(True)
    assert vote.decide(TAG, True).commits
    assert seen == [False, False]
