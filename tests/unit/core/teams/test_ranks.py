"""Which node runs which worker, and what is known of those that have ended."""

from __future__ import annotations

from ftrun.core.ids import WorkerKey
from ftrun.core.messages import (
    FailedWorker,
    FailureEvidence,
    HandPlace,
    RankEnded,
    StartRanks,
)
from ftrun.core.teams.nodes import Node
from ftrun.core.teams.ranks import Ranks, first_rank, places

LEAD = Node("lead", "n0", "10.0.0.1", 2)
A, B = Node("a", "n1", "10.0.0.2", 1), Node("b", "n2", "10.0.0.3", 2)
TEAM = (LEAD, A, B)
ORDER = StartRanks("3", "inc", 1, 29500, "n0:29510", 0)


def key(rank: int) -> WorkerKey:
    return WorkerKey("3", "inc", rank)


def started() -> Ranks:
    ranks = Ranks()
    assert ranks.start(ORDER, TEAM, LEAD) == ["a", "b"]
    return ranks


def test_each_node_has_the_ranks_that_follow_those_of_the_nodes_before_it() -> None:
    assert [first_rank(TEAM, number) for number in range(4)] == [0, 2, 3, 5]
    assert places(TEAM, LEAD, "job") == {
        "a": HandPlace("job", 1, 3, 2, 5, "10.0.0.1"),
        "b": HandPlace("job", 2, 3, 3, 5, "10.0.0.1"),
    }
    ranks = started()
    assert ranks.all() == [key(2), key(3), key(4)]
    assert [ranks.node_of(key(rank)) for rank in range(5)] == ["", "", "a", "b", "b"]
    assert [ranks.name_of("3", 1, rank) for rank in range(5)] == ["", "", "n1", "n2", "n2"]
    assert ranks.of_node("b") == [key(3), key(4)]
    ranks.clear()
    assert (ranks.all(), ranks.name_of("3", 1, 2)) == ([], "")


def test_the_last_lines_of_a_worker_are_known_until_its_group_starts_again() -> None:
    ranks = started()
    ended = RankEnded("inc", 3, 77, 1, is_dying=False, output="its last words")
    assert ranks.reported("a", ended) is None
    assert ranks.reported("b", ended) == key(3)
    ranks.end(key(3))
    assert ranks.reported("b", ended) is None
    for rank in (2, 4):
        ranks.end(key(rank))
    workers = tuple(
        FailedWorker(rank, 70 + rank, 1, "crash", "exit code 1", 0.0) for rank in (0, 3)
    )
    evidence = FailureEvidence("3", "inc", 1, workers=workers)
    lead, other = ranks.with_output(evidence).workers
    assert (lead.cause, lead.output) == ("exit code 1", "")
    assert (other.cause, other.output) == ("exit code 1, on n2", "its last words")
    ranks.start(ORDER, TEAM, LEAD)
    assert ranks.with_output(evidence).workers[1].output == ""


def test_a_worker_is_started_again_on_the_node_that_has_its_place_now() -> None:
    ranks, c = started(), Node("c", "n3", "10.0.0.4", 1)
    ranks.end(key(2))
    assert ranks.restart(key(2), 4, (LEAD, c, B)) == "c"
    assert (ranks.node_of(key(2)), ranks.name_of("3", 4, 2)) == ("c", "n3")
