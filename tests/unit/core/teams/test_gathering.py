"""The nodes of one group: who gets which place, and what people are shown."""

from __future__ import annotations

import math

from ftrun.core.teams.gathering import SPARES_MAX, Gathering
from ftrun.core.teams.nodes import (
    GiveUp,
    Instruction,
    Node,
    NodeCame,
    NodeGone,
    RefuseNode,
    Show,
    TeamFormed,
    TeamRules,
    TimerFired,
)


def node(name: str, rank: int | None = None) -> Node:
    return Node(f"id-{name}", name, "10.0.0.1", 2, rank)


LEAD = node("n0", 0)


def gathering(least: int, most: int, lead: Node = LEAD) -> Gathering:
    return Gathering(TeamRules(least, most, 100.0, 10.0), lead, 0.0)


def came(team: Gathering, one: Node, at: float = 0.0) -> list[Instruction]:
    return team.handle(NodeCame(one), at)


def test_a_whole_team_is_formed_at_once_in_the_order_of_ranks() -> None:
    team = gathering(3, 3)
    assert came(team, node("b", 2)) == []
    assert not team.is_formed
    assert came(team, node("a", 1)) == [TeamFormed((LEAD, node("a", 1), node("b", 2)))]
    assert team.is_formed
    assert team.next_deadline() is None


def test_nodes_without_a_rank_are_in_the_order_of_arrival() -> None:
    lead, a, b = node("n0"), node("a"), node("b")
    team = gathering(3, 3, lead)
    came(team, a)
    assert came(team, b) == [TeamFormed((lead, a, b))]


def test_one_that_has_a_rank_takes_the_place_of_one_that_has_none() -> None:
    lead, a = node("n0"), node("a", 0)
    assert came(gathering(2, 2, lead), a) == [TeamFormed((a, lead))]


def test_two_ranks_alike_and_one_too_high_are_refused() -> None:
    team = gathering(3, 3)
    came(team, node("a", 1))
    (refused,) = came(team, node("b", 1))
    assert isinstance(refused, RefuseNode)
    assert refused.reason.startswith("--node-rank 1 is a's (10.0.0.1) already")
    (refused,) = came(team, node("c", 3))
    assert isinstance(refused, RefuseNode)
    assert "no such node with --nnodes 3" in refused.reason


def test_too_few_are_named_and_given_up() -> None:
    team = gathering(2, 2)
    assert team.next_deadline() == 5.0
    (shown,) = team.handle(TimerFired(), 5.0)
    assert shown == Show(
        "1 of 2 nodes have come: n0 (10.0.0.1, node rank 0); no node has come with --node-rank 1; "
        "gives up in 95 s."
    )
    assert team.handle(TimerFired(), 20.0) == []
    (given_up,) = team.handle(TimerFired(), 100.0)
    assert isinstance(given_up, GiveUp)
    assert given_up.reason.endswith("no node has come with --node-rank 1 within 100 s")


def test_the_last_call_lets_more_come() -> None:
    lead, a, b = node("n0"), node("a"), node("b")
    team = gathering(2, 4, lead)
    assert came(team, a, 4.0) == []
    assert team.next_deadline() == 5.0
    (shown,) = team.handle(TimerFired(), 6.0)
    assert shown == Show("2 of 2 to 4 nodes have come: n0 (10.0.0.1), a (10.0.0.1); more may come "
                         "for 8 s.")  # fmt: skip
    assert came(team, b, 12.0) == []
    assert team.handle(TimerFired(), 14.0) == [TeamFormed((lead, a, b))]


def test_a_node_that_comes_late_makes_all_begin_again() -> None:
    lead, a, b = node("n0"), node("a"), node("b")
    team = gathering(1, 3, lead)
    assert came(team, a) == []
    team.handle(TimerFired(), 10.0)
    assert came(team, b, 20.0) == [TeamFormed((lead, a, b), "the team has 3 nodes, and had 2")]


def test_a_lost_node_is_replaced_and_those_that_stay_keep_their_places() -> None:
    lead, a, b, c = node("n0"), node("a"), node("b"), node("c")
    team = gathering(3, 3, lead)
    came(team, a)
    came(team, b)
    (shown,) = team.handle(NodeGone(a.node_id, "it is gone"), 1.0)
    assert shown == Show("Node a (10.0.0.1) is lost: it is gone.")
    assert came(team, c, 2.0) == [TeamFormed((lead, c, b))]


def test_a_spare_takes_the_place_at_once() -> None:
    lead, a, b = node("n0"), node("a"), node("b")
    team = gathering(2, 2, lead)
    came(team, a)
    (shown,) = came(team, b)
    assert shown == Show("b (10.0.0.1) stands by: the team has its 2 nodes")
    *shown_too, formed = team.handle(NodeGone(a.node_id, "it is gone"), 1.0)
    assert len(shown_too) == 2
    assert formed == TeamFormed((lead, b))
    assert team.handle(NodeGone("unknown", ""), 1.0) == []


def test_without_a_replacement_the_others_go_on_in_a_smaller_team() -> None:
    lead, a, b = node("n0", 0), node("a", 1), node("b", 2)
    team = gathering(1, 3, lead)
    came(team, a)
    came(team, b)
    team.handle(NodeGone(a.node_id, "it is gone"), 1.0)
    assert team.next_deadline() == 6.0
    (formed,) = team.handle(TimerFired(), 11.0)
    assert formed == TeamFormed((lead, b), "the team has 2 nodes, and had 3")
    (formed,) = came(team, node("c", 1), 12.0)
    assert formed == TeamFormed((lead, b, node("c", 1)), "the team has 3 nodes, and had 2")


def test_there_is_a_limit_to_nodes_that_stand_by() -> None:
    team = gathering(1, 1, node("n0"))
    team.handle(TimerFired(), 0.0)
    for number in range(SPARES_MAX):
        came(team, node(f"s{number}"))
    (refused,) = came(team, node("more"))
    assert isinstance(refused, RefuseNode)
    assert "stand by already" in refused.reason


def test_the_invariants_hold_in_between() -> None:
    team = gathering(1, 2)
    team.check()
    came(team, node("a", 1))
    team.check()
    came(team, node("b"))
    team.check()


def test_a_node_that_is_lost_before_there_is_a_team_was_never_there() -> None:
    team = gathering(3, 3)
    came(team, node("a", 1))
    team.handle(NodeGone("id-a", "it is gone"), 50.0)
    assert came(team, node("b", 1), 50.0) == []
    team.handle(TimerFired(), 100.0)
    assert not team.is_formed


def test_a_team_that_a_registrar_fills_is_never_given_up() -> None:
    team = Gathering(TeamRules(2, 2, math.inf, 10.0), LEAD, 0.0)
    for at in (5.0, 35.0, 1e6):
        (shown,) = team.handle(TimerFired(), at)
        assert isinstance(shown, Show)
        assert "1 of 2 nodes have come" in shown.text
        assert "on their way, or lost" in shown.text
