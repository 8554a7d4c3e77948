"""Which replica is replaced when attempts fail, in small worlds in which one node is broken."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ftrun.core import messages as m
from ftrun.core.ids import SHARED_LINEAGE, StateId
from ftrun.core.lighthouse.blame import Blame
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.quorum import Endpoint

ATTEMPTS = 10
BROKEN: dict[str, Callable[[int, int, int], bool]] = {
    "nobody reaches it": lambda bad, _, to: to == bad,
    "it reaches nobody": lambda bad, at, _: at == bad,
    "neither": lambda bad, at, to: bad in (at, to),
}


def replica(number: int, node: int) -> Replica:
    found = Replica(str(number), "x", f"agent-{node}", f"10.0.0.{node}:1")
    found.reports[0] = m.Report(StateId(0, SHARED_LINEAGE), Endpoint(f"10.0.0.{node}", "h:1"))
    return found


def worlds() -> Iterator[tuple[list[int], int, str]]:
    """The node of each replica, the broken one, and how it is."""
    for nodes, each in itertools.product((3, 4), (1, 2)):
        for bad, how in itertools.product(range(nodes), BROKEN):
            yield [n // each for n in range(nodes * each)], bad, how


def failure(
    places: list[int], store: int, is_cut: Callable[[int, int], bool], rng: random.Random
) -> tuple[int, int]:
    """The first replica that reports, and the node that it does not reach: the store is first."""
    found = [(n, store) for n, node in enumerate(places) if node != store and is_cut(node, store)]
    if not found:
        pairs = itertools.product(enumerate(places), sorted(set(places)))
        found = [(n, to) for (n, node), to in pairs if node != to and is_cut(node, to)]
    return rng.choice(found)


def blamed(blame: Blame, places: list[int], bad: int, how: str, rng: random.Random) -> int:
    """The node of the replica that is replaced after ten attempts."""
    replicas = [replica(number, node) for number, node in enumerate(places)]
    for _ in range(ATTEMPTS):
        store = int(blame.meets_at(replicas).agent_id[-1])
        at, to = failure(places, store, lambda a, b: BROKEN[how](bad, a, b), rng)
        blame.unreached(replicas[at], f"10.0.0.{to}", replicas)
    return places[int(blame.worst(replicas))]


def wrong(blame: Callable[[], Blame]) -> int:
    """In how many of 480 schedules a healthy node's replica is replaced."""
    rng = random.Random(0)
    return sum(
        blamed(blame(), places, bad, how, rng) != bad
        for places, bad, how in worlds()
        for _ in range(480 // 42)
    )


def test_the_node_that_cannot_be_reached_is_to_blame() -> None:
    assert wrong(Blame) == 0


class _BlamesWhoeverReports(Blame):
    def unreached(self, reporter: Replica, host: str, live: Any) -> None:
        self.failed([reporter.replica_id])


class _BlamesWhoeverIsNamed(Blame):
    def unreached(self, reporter: Replica, host: str, live: Any) -> None:
        self.failed(r.replica_id for r in live if r.reports[0].endpoint.host == host)


class _MeetsAtTheSameStore(Blame):
    def meets_at(self, candidates: Any) -> Replica:
        first: Replica = candidates[0]
        return first


class _CountsByReplica(Blame):
    def unreached(self, reporter: Replica, host: str, live: Any) -> None:
        named = next(r for r in live if r.reports[0].endpoint.host == host)
        self.failed([reporter.replica_id, named.replica_id])


@pytest.mark.parametrize(
    "planted",
    [_BlamesWhoeverReports, _BlamesWhoeverIsNamed, _MeetsAtTheSameStore, _CountsByReplica],
)
def test_planted_bugs_are_found(planted: type[Blame]) -> None:
    assert wrong(planted) > 0


def test_of_two_nodes_the_one_that_is_not_reached_is_to_blame() -> None:
    for bad in (0, 1):
        assert blamed(Blame(), [0, 1], bad, "nobody reaches it", random.Random(0)) == bad


def test_errors_count_beside_ways() -> None:
    blame, replicas = Blame(), [replica(n, n) for n in range(3)]
    blame.failed(["1"])
    assert blame.worst(replicas) == "1"
    blame.unreached(replicas[2], "10.0.0.0", replicas)
    assert blame.worst(replicas) == "0"
    blame.failed(["1", "1"])
    assert blame.worst(replicas) == "1"
    assert Blame().worst(replicas) == "2"  # of equals the highest
    assert Blame().meets_at(replicas) is replicas[0]
    assert blame.meets_at(replicas) is replicas[1]


@pytest.mark.parametrize("host", ["10.0.0.2", "192.0.2.1"])
def test_a_host_of_its_own_or_of_nobody_is_an_error_of_the_one_that_reports(host: str) -> None:
    blame, replicas = Blame(), [replica(n, n) for n in range(3)]
    blame.unreached(replicas[2], host, replicas)
    assert (dict(blame.errors), dict(blame.ways)) == ({"2": 1}, {})
