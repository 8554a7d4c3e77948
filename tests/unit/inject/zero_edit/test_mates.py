"""The workers of one replica get what their lead has, and never differ in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from ftrun.core.ids import WorkerKey
from ftrun.inject.zero_edit import mates as module
from ftrun.inject.zero_edit.mates import Mates
from ftrun.training.context import WorkerContext

DEADLINE_S = 20.0


def context(rank: int) -> WorkerContext:
    return WorkerContext(
        key=WorkerKey("1", "a" * 16, rank),
        job_id="job",
        replicas=2,
        min_replicas=1,
        workers_per_replica=2,
        host="127.0.0.1",
        socket_path="",
        token="",
    )


@dataclass
class Peers:
    """The exchanges of one worker."""

    is_in_set_up: bool = True
    asked: list[str] = field(default_factory=list)

    def peers(self, timeout_s: float) -> None:
        self.asked.append("peers")


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[Mates], Any]], Any]]:
    """Runs a function for both workers at once; gives both results."""
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False,
        timeout=timedelta(seconds=DEADLINE_S),
    )  # fmt: skip
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setattr(module, "MEETING_TIMEOUT", timedelta(seconds=1))
    workers = [Mates(context(rank)) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:

        def run(work: Callable[[Mates], Any]) -> Any:
            return [job.result(DEADLINE_S) for job in [pool.submit(work, m) for m in workers]]

        def meet(mates: Mates) -> None:
            group = mates.make_group("models", mates.ranks, timedelta(seconds=DEADLINE_S))
            mates.meet(group, timedelta(seconds=DEADLINE_S))

        run(meet)
        yield run


def test_all_get_what_the_lead_has_got(both: Callable[..., Any]) -> None:
    exchanges = [Peers(), Peers()]

    def work(mates: Mates) -> Any:
        own = exchanges[mates.rank - mates.first]
        return mates.from_lead(own, f"<{mates.rank}>".encode(), DEADLINE_S)  # type: ignore[arg-type]

    assert both(work) == [b"<2>", b"<2>"]
    # The lighthouse waits for all workers, so the one that asks nobody says that it is there.
    assert [peers.asked for peers in exchanges] == [[], ["peers"]]


def test_one_flag_counts_for_all(both: Callable[..., Any]) -> None:
    assert both(lambda mates: mates.any(mates.is_lead)) == [True, True]
    assert both(lambda mates: mates.any(False)) == [False, False]


def test_a_mate_that_is_elsewhere(both: Callable[..., Any]) -> None:
    assert both(lambda mates: mates.are_here()) == [True, True]
    assert both(lambda mates: mates.is_lead and mates.are_here()) == [False, False]


def test_the_ranks_of_a_replica() -> None:
    mates = Mates(context(1))
    assert (mates.rank, list(mates.ranks)) == (3, [2, 3])
    assert mates.owns([2, 3]) and mates.owns([3]) and not mates.owns([1, 3])
