"""Several teams: by label, by rank, completed by a spare. tests/sim tries many lives."""

from __future__ import annotations

from ftrun.core.teams.nodes import Node, NodeCame, NodeGone
from ftrun.core.teams.placement import Instruction, Placement, TeamDissolved, TeamPlaced


def node(name: str, rank: int | None = None, label: str = "") -> Node:
    return Node(name, name, "10.0.0.1", 2, rank, label)


def come(placement: Placement, *nodes: Node) -> list[Instruction]:
    out = [x for one in nodes for x in placement.handle(NodeCame(one))]
    placement.check()
    return out


def test_ranks_that_follow_each_other_are_a_team() -> None:
    a, b, c, d = node("a", 3), node("b", 0), node("c", 2), node("d", 1)
    placement = Placement(2, 3)
    assert come(placement, a, b) == []
    assert come(placement, c) == [TeamPlaced(0, (b, c, a))]
    assert come(placement, d) == []
    assert placement.idle == (d,)


def test_the_closest_ranks_of_a_label_are_taken() -> None:
    placement = Placement(2, 2)
    first = come(placement, node("x", 8), node("y", 9))
    assert first == [TeamPlaced(0, (node("x", 8), node("y", 9)))]
    come(placement, node("a", 0))
    placement.handle(NodeGone("y", "gone"))
    assert placement.idle == ()
    again = come(placement, node("b", 5), node("c", 6), node("d", 1))
    assert again[-1] == TeamPlaced(1, (node("b", 5), node("c", 6)))


def test_a_lost_node_frees_the_others_and_a_spare_completes_its_team_alone() -> None:
    a, b, c, d, spare = (node(name) for name in "abcds")
    placement = Placement(2, 2)
    placed = come(placement, a, b, c, d)
    assert placed == [TeamPlaced(0, (a, b)), TeamPlaced(1, (c, d))]
    assert placement.handle(NodeGone("a", "it is gone")) == [TeamDissolved(0, (b,), "it is gone")]
    assert placement.idle == (b,)
    assert come(placement, spare) == [TeamPlaced(0, (spare, b))]
    assert placement.handle(NodeGone("nobody", "")) == []


def test_a_team_is_completed_beside_what_is_left_of_it() -> None:
    one, two = node("1", label="r1"), node("2", label="r1")
    far, near = node("far", label="r2"), node("near", label="r1")
    placement = Placement(1, 2)
    come(placement, one, two, far, near)
    assert placement.handle(NodeGone("1", "gone"))[-1] == TeamPlaced(0, (near, two))
    assert placement.handle(NodeGone("near", "gone"))[-1] == TeamPlaced(0, (far, two))
