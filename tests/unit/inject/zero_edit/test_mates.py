"""The workers of one replica exchange through their lead, and never differ in what they get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from ftrun.core.ids import WorkerKey
from ftrun.core.worker.exchange import Contribution
from ftrun.errors import UserError
from ftrun.inject.zero_edit import mates as module
from ftrun.inject.zero_edit.mates import Mates
from ftrun.training.context import WorkerContext
from ftrun.training.exchanges import Exchanged

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
    """The exchanges of one worker with a replica that gives the same, reversed."""

    is_in_set_up: bool = True
    asked: list[str] = field(default_factory=list)

    def exchange(self, site: str, what: str, body: bytes, timeout_s: float) -> Exchanged:
        self.asked.append(what)
        own = Contribution("1", site, what, body)
        return Exchanged((Contribution("0", site, what, body[::-1]), own))

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
        body = f"<{mates.rank}>".encode()
        return mates.exchange(own, "train.py:3", "sum", body, DEADLINE_S)  # type: ignore[arg-type]

    found = both(work)
    assert found[0] == found[1] == {0: b">3<", 1: b">2<", 2: b"<2>", 3: b"<3>"}
    # The lighthouse waits for all workers, so the one that asks nobody says that it is there.
    assert [peers.asked for peers in exchanges] == [["sum"], ["peers"]]


def test_mates_at_different_places_are_told(both: Callable[..., Any]) -> None:
    def work(mates: Mates) -> str:
        what = "sum" if mates.is_lead else "barrier"
        with pytest.raises(UserError) as caught:
            mates.exchange(Peers(), f"train.py:{mates.rank}", what, b"", 1.0)  # type: ignore[arg-type]
        return str(caught.value)

    words = "the workers of replica 1 are out of step: sum at train.py:2, and barrier at train.py:3"
    assert both(work) == [words, words]


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
