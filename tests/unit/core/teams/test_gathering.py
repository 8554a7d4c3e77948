"""The nodes of one group: who gets which place, and what people are shown."""

from __future__ import annotations

import math
from dataclasses import replace

from ftrun.core.messages import HandHello
from ftrun.core.teams.gathering import (
    SILENT_S,
    SPARES_MAX,
    UNHEARD_S,
    Gathering,
    why_unlike,
)
from ftrun.core.teams.nodes import (
    GiveUp,
    HostsSilent,
    Instruction,
    LoseNode,
    Node,
    NodeAltered,
    NodeCame,
    NodeGone,
    NodesHeard,
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
    lost, shown = team.handle(NodeGone(a.node_id, "it is gone"), 1.0)
    assert lost == LoseNode(a, 1, "it is gone")
    assert shown == Show("Node a (10.0.0.1) is lost: it is gone.")
    assert came(team, c, 2.0) == [TeamFormed((lead, c, b))]


def test_a_spare_takes_the_place_at_once() -> None:
    lead, a, b = node("n0"), node("a"), node("b")
    team = gathering(2, 2, lead)
    came(team, a)
    (shown,) = came(team, b)
    assert shown == Show("b (10.0.0.1) stands by: the team has its 2 nodes")
    lost, *shown_too, formed = team.handle(NodeGone(a.node_id, "it is gone"), 1.0)
    assert lost == LoseNode(a, 1, "it is gone")
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


RULES = TeamRules(2, 2, 100.0, 10.0, silence_s=5.0)


def heard(**at: float) -> NodesHeard:
    return NodesHeard({f"id-{name}": when for name, when in at.items()})


def test_a_node_that_sends_nothing_is_lost_also_while_it_stands_by() -> None:
    a, b = node("a", 1), replace(node("b"), host="10.0.0.3")
    team = Gathering(RULES, LEAD, 0.0)
    came(team, a)
    came(team, b)
    assert team.next_deadline() == 1.0
    for at in range(1, 6):
        assert team.handle(heard(a=0.0, b=0.0), float(at)) == []
    lost, lost_too, shown, *_ = team.handle(heard(a=0.0, b=0.0), 5.5)
    assert lost == LoseNode(b, None, "it has sent nothing for 5 s", 5.5)
    assert lost_too == LoseNode(a, 1, "it has sent nothing for 5 s", 5.5)
    assert shown == Show("Node a (10.0.0.1, node rank 1) is lost: it has sent nothing for 5 s.")
    assert not team.is_formed


def test_a_lead_that_was_stopped_itself_looks_again_before_it_loses_anybody() -> None:
    a = node("a", 1)
    team = Gathering(RULES, LEAD, 0.0)
    came(team, a)
    assert team.handle(heard(a=1.0), 1.0) == []
    assert team.handle(heard(a=1.0), 60.0) == []
    assert team.handle(heard(a=60.5), 61.0) == []
    assert team.is_formed


def test_a_host_that_acknowledges_nothing_is_lost_once_if_that_lasts() -> None:
    a, b = node("a", 1), replace(node("b"), host="10.0.0.3")
    team = Gathering(TeamRules(2, 2, 100.0, 10.0), replace(LEAD, host="10.0.0.9"), 0.0)
    came(team, a)
    came(team, b)
    assert team.handle(HostsSilent(("10.0.0.1", "10.0.0.9")), 1.0) == []
    assert team.next_deadline() == 1.0 + SILENT_S
    assert team.handle(HostsSilent(()), 1.3) == []
    assert team.next_deadline() is None
    assert team.handle(HostsSilent(("10.0.0.1",)), 2.0) == []
    lost, *_, formed = team.handle(TimerFired(), 2.0 + SILENT_S)
    assert lost == LoseNode(a, 1, "its host, 10.0.0.1, acknowledges nothing", SILENT_S)
    assert isinstance(formed, TeamFormed)
    assert team.handle(HostsSilent(("10.0.0.1",)), 9.0) == []


def test_a_node_that_has_altered_parameters_is_set_aside_if_another_can_take_its_place() -> None:
    a, b, team = node("a", 1), node("b"), gathering(2, 2)
    came(team, a)
    why = "it has altered the parameters of workers 2 3"

    def altered(one: Node, *, is_copied: bool = True) -> list[Instruction]:
        return team.handle(NodeAltered(one.node_id, (2, 3), is_copied), 1.0)

    def stays(one: Node, but: str) -> list[Instruction]:
        return [Show(f"Node {one.words()} would be set aside, because {why}, but {but}.")]

    assert altered(b) == []
    assert altered(LEAD) == stays(LEAD, "the first node is not replaced")
    assert altered(a) == stays(a, "no node stands by")
    came(team, b)
    but = "no other node has its workers' states so far"
    assert altered(a, is_copied=False) == stays(a, but)
    refused, lost, *_, formed = altered(a)
    assert refused == RefuseNode("id-a", f"{a.words()}: {why}")
    assert lost == LoseNode(a, 1, f"{why}, so it is set aside")
    assert formed == TeamFormed((LEAD, b))


def test_a_node_that_comes_again_takes_its_former_place_unless_that_one_speaks() -> None:
    a, again = node("a", 1), replace(node("a", 1), node_id="id-again")
    team = gathering(2, 2)
    came(team, a)
    team.handle(heard(a=9.0), 9.0 + UNHEARD_S)
    (refused,) = came(team, again, 9.0 + UNHEARD_S)
    assert isinstance(refused, RefuseNode)
    team.handle(heard(a=9.0), 9.1 + UNHEARD_S)
    lost, shown, formed = came(team, again, 9.1 + UNHEARD_S)
    assert lost == LoseNode(a, 1, "it was cut off, and comes again")
    assert isinstance(shown, Show)
    assert formed == TeamFormed((LEAD, again))


def test_a_node_of_another_version_or_size_is_told_why_it_cannot_come() -> None:
    hello = HandHello("a", "10.0.0.2", 2, None, "2")
    assert why_unlike(hello, LEAD, "2") == ""
    assert why_unlike(hello, LEAD, "1:2") == "its --nnodes is 2, and that of n0 is 1:2"
    assert "the first node" in why_unlike(replace(hello, version=0), LEAD, "1:2")


def test_a_node_that_does_not_share_the_directory_of_snapshots_is_named() -> None:
    hello = HandHello("a", "10.0.0.2", 2, None, "2", mark=".node-1")
    assert why_unlike(hello, LEAD, "2", writes=True, sees=True) == ""
    assert why_unlike(hello, LEAD, "2", writes=True) == (
        "what it writes to its --snapshot directory is not seen by n0 in its own. All nodes must "
        "share the directory"
    )
    assert why_unlike(hello, LEAD, "2") == "its command has --snapshot, and that of n0 has none"
    without = why_unlike(replace(hello, mark=""), LEAD, "2", writes=True)
    assert without == "its command has no --snapshot, and that of n0 has one"


def test_a_placed_node_that_was_lost_stands_by_until_it_is_told() -> None:
    lead, a, b = (
        replace(node(x, rank), is_placed=True) for x, rank in (("n0", 0), ("a", 1), ("b", 1))
    )
    team = gathering(2, 2, lead)
    came(team, a)
    (shown,) = came(team, b)
    assert shown == Show("b (10.0.0.1) stands by: the team has its 2 nodes")
    team.check()
