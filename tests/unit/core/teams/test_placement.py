"""Several teams: gathered, by label, by rank, completed by a spare. tests/sim tries many lives."""

from __future__ import annotations

from ftrun.core.teams.nodes import Node, NodeCame, NodeGone, Show, Standing, TimerFired
from ftrun.core.teams.placement import (
    BACK_S,
    LAST_CALL_S,
    Instruction,
    Placement,
    PlacementRules,
    TeamDissolved,
    TeamPlaced,
)

JOIN_S = 60.0


def node(name: str, rank: int | None = None, label: str = "") -> Node:
    return Node(name, name, "10.0.0.1", 2, rank, label)


def placement_of(teams: int, size: int) -> Placement:
    return Placement(PlacementRules(teams, size), 0.0)


def come(placement: Placement, *nodes: Node) -> list[Instruction]:
    out = [x for one in nodes for x in placement.handle(NodeCame(one), 0.0)]
    placement.check()
    return [x for x in out if not isinstance(x, Show)]


def lose(placement: Placement, name: str, now: float = 0.0) -> list[Instruction]:
    out = placement.handle(NodeGone(name, "it is gone"), now)
    placement.check()
    return [x for x in out if not isinstance(x, Show)]


def test_ranks_that_follow_each_other_are_a_team() -> None:
    a, b, c, d = node("a", 3), node("b", 0), node("c", 2), node("d", 1)
    placement = placement_of(2, 3)
    assert come(placement, a, b) == []
    assert come(placement, c) == [TeamPlaced(0, (b, c, a))]
    assert come(placement, d) == []
    assert placement.idle == (d,)


def test_the_closest_ranks_of_a_label_are_taken() -> None:
    placement = placement_of(2, 2)
    first = come(placement, node("x", 8), node("y", 9))
    assert first == [TeamPlaced(0, (node("x", 8), node("y", 9)))]
    come(placement, node("a", 0))
    lose(placement, "y")
    assert placement.idle == ()
    again = come(placement, node("b", 5), node("c", 6), node("d", 1))
    assert again[-1] == TeamPlaced(1, (node("b", 5), node("c", 6)))


def test_the_closest_ranks_may_be_the_first() -> None:
    a, b, c = node("a", 0), node("b", 2), node("c", 9)
    placement = Placement(PlacementRules(1, 2, 3, 0, JOIN_S), 0.0)
    assert come(placement, c, b, a) == [TeamPlaced(0, (a, b))]


def test_a_lost_node_frees_the_others_and_a_spare_completes_its_team_alone() -> None:
    a, b, c, d, spare = (node(name) for name in "abcds")
    placement = placement_of(2, 2)
    placed = come(placement, a, b, c, d)
    assert placed == [TeamPlaced(0, (a, b)), TeamPlaced(1, (c, d))]
    assert lose(placement, "a") == [TeamDissolved(0, (b,), "it is gone")]
    assert placement.idle == (b,)
    assert (placement.team_of("b"), placement.team_with("b")) == (None, ())
    assert placement.is_idle("b")
    assert come(placement, spare) == [TeamPlaced(0, (spare, b))]
    assert (placement.team_of("b"), placement.team_with("b")) == (0, (spare, b))
    assert not placement.is_idle("b")
    assert lose(placement, "nobody") == []


def test_a_team_is_completed_beside_what_is_left_of_it() -> None:
    one, two = node("1", label="r1"), node("2", label="r1")
    far, near = node("far", label="r2"), node("near", label="r1")
    placement = placement_of(1, 2)
    come(placement, one, two, far, near)
    assert lose(placement, "1")[-1] == TeamPlaced(0, (near, two))
    assert lose(placement, "near")[-1] == TeamPlaced(0, (far, two))


def test_nodes_gather_before_any_is_placed_and_a_line_says_who_is_awaited() -> None:
    rules = PlacementRules(2, 2, 4, 0, JOIN_S)
    placement = Placement(rules, 0.0)
    assert come(placement, node("d", 3), node("a", 0), node("c", 2)) == []
    reminds_at = placement.next_deadline()
    assert reminds_at is not None
    (shown,) = placement.handle(TimerFired(), reminds_at)
    assert isinstance(shown, Show)
    assert shown.text.startswith("3 of 4 nodes have come: a, c, d. Replica groups get their nodes")
    placed = come(placement, node("b", 1))
    assert placed == [
        TeamPlaced(0, (node("a", 0), node("b", 1))),
        TeamPlaced(1, (node("c", 2), node("d", 3))),
    ]
    assert placement.next_deadline() is None
    late = Placement(rules, 0.0)
    come(late, node("a"), node("b"), node("c"))
    *placed, shown = late.handle(TimerFired(), JOIN_S)
    assert placed == [TeamPlaced(0, (node("a"), node("b")))]
    lacks = "1 of 2 replica groups have their 2 nodes. The next one waits for 1 more beside c."
    assert shown == Show(lacks)


def test_nodes_that_are_to_stand_by_are_waited_for_a_moment_only() -> None:
    placement = Placement(PlacementRules(1, 2, 3, 1, JOIN_S), 0.0)
    assert come(placement, node("a", 0), node("c", 2)) == []
    assert placement.next_deadline() == LAST_CALL_S
    assert come(placement, node("b", 1)) == [TeamPlaced(0, (node("a", 0), node("b", 1)))]
    late = Placement(PlacementRules(1, 2, 3, 1, JOIN_S), 0.0)
    come(late, node("a"), node("c"))
    assert late.handle(TimerFired(), LAST_CALL_S)[0] == TeamPlaced(0, (node("a"), node("c")))


def test_missing_spares_are_named_and_no_line_comes_twice() -> None:
    placement = Placement(PlacementRules(1, 1, spares=2), 0.0)
    placement.handle(NodeCame(node("a")), 0.0)
    (first,) = placement.handle(NodeCame(node("b")), 0.0)
    assert isinstance(first, Show)
    assert first.text.startswith("1 of 2 spare nodes (--spare-nodes) stand by. Add nodes")
    second = placement.handle(NodeCame(node("c")), 0.0)
    assert second == [Show("2 of 2 spare nodes (--spare-nodes) stand by.")]
    assert placement.handle(TimerFired(), 1.0) == []


def test_a_new_lighthouse_takes_over_the_teams_that_stand() -> None:
    a, b, c, d = (node(name) for name in "abcd")
    placement = Placement(PlacementRules(2, 2, 5, 0, JOIN_S), 0.0)
    one, two = Standing(0, ("a", "b")), Standing(1, ("c", "d"))
    for came, standing in ((a, one), (c, two), (b, one)):
        assert placement.handle(NodeCame(came, standing), 0.0) == []
    assert placement.teams == {0: (a, b)}
    for strange in (Standing(0, ("e", "f")), Standing(1, ("c", "e")), Standing(7, ("e", "e"))):
        assert placement.handle(NodeCame(node("e"), strange), 0.0) == []
        assert placement.idle == (node("e"),)
        lose(placement, "e")
    lose(placement, "c")
    assert placement.handle(NodeCame(c, two), 1.0) == []
    left, _ = placement.handle(TimerFired(), BACK_S)
    assert left == TeamDissolved(1, (c,), "not all of its nodes have come back")
    late = placement.handle(NodeCame(d, two), BACK_S + 1)
    assert late == [TeamPlaced(1, (c, d))]


def test_a_team_is_on_two_labels_where_none_has_room() -> None:
    a, b, c = node("a", label="r1"), node("b", label="r2"), node("c", label="r2")
    placement = placement_of(1, 3)
    assert come(placement, a, b, c) == [TeamPlaced(0, (b, c, a))]
