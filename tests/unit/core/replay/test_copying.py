"""Which states go where; random lives of nodes are in tests/sim/test_copies.py."""

from __future__ import annotations

from typing import Any

from ftrun.core.replay.alike import Unlike
from ftrun.core.replay.copying import EVERY_S, Copying, Had, keepers
from ftrun.core.replay.settling import Mark

PLACES = {"lead": (0,), "a": (1, 2), "b": (3,)}


def copying(*, label: str = "") -> Copying:
    """Three nodes, which have the states of steps 2 and 4."""
    made = Copying("lead", PLACES)
    for node, ranks in PLACES.items():
        steps = dict.fromkeys(ranks, (2, 4))
        made.has(node, Had(steps, label=label if node == "a" else ""), 0.0)
    return made


def test_copies_are_on_another_label_if_there_is_one() -> None:
    assert keepers(["", "", ""], 0) == {1: 2, 2: 0}
    assert keepers(["a", "a", "b", "b"], 0) == {1: 2, 2: 0, 3: 0}
    assert keepers(["a"], 0) == {}
    assert copying().copies_of("b") == {1: "a", 2: "a"}
    assert copying(label="rack").copies_of("a") == {3: "b"}
    assert Copying("lead", PLACES).copies_of("b") == {1: "a", 2: "a"}


def test_a_step_is_pinned_when_all_nodes_have_carried_out_its_round() -> None:
    one = copying()
    assert not Copying("lead", PLACES).begin(6, 0.0), "not all nodes have reported"
    assert one.begin(6, 0.0)
    assert not one.begin(8, 99.0), "one is under way"
    for node in ("lead", "a"):
        one.has(node, Had({}, copied=6), 1.0)
    one.has("b", Had({}, copied=5), 1.0)
    assert (one.step, one.pinned) == (6, None)
    one.has("b", Had({}, copied=6), 1.0)
    assert (one.step, one.pinned) == (None, 6)
    assert not one.begin(8, EVERY_S - 0.1)
    assert not one.begin(6, EVERY_S), "it is pinned"
    assert one.begin(8, EVERY_S)
    one.has("a", Had({}, has_failed=True), EVERY_S)
    one.has("a", Had({}, has_failed=True), EVERY_S)
    assert (one.step, one.pinned) == (None, 6)


def test_a_node_that_comes_has_its_states_from_the_copies_of_another() -> None:
    one = copying()
    one.has("b", Had({3: (2, 4)}, {1: (2,), 2: (2,)}), 0.0)
    assert one.step_for(range(4)) == 4
    assert one.restore(4, 0.0) == {}
    assert one.pinned is None
    one.gone("a")
    assert one.step_for(range(4)) == 2
    one.places = {"lead": (0,), "c": (1, 2), "b": (3,)}
    assert one.restore(2, 0.0) == {1: "b", 2: "b"}
    assert one.pinned == 2
    one.gone("b")
    assert one.step_for(range(4)) is None


def test_states_that_cannot_be_followed_are_of_no_use() -> None:
    one = copying()
    one.has("a", Had({1: (4,), 2: (4,)}, is_sound=False), 0.0)
    assert one.step_for(range(4)) is None


def test_what_all_nodes_hold_stays_until_each_holds_it_for_the_disk() -> None:
    one = copying()
    assert Copying("lead").at_own_nodes() is None
    assert one.at_own_nodes() == 4
    one.is_taken = True
    assert not one.begin(6, 0.0)
    one.is_taken = False
    assert one.begin(6, 0.0)
    one.gone("a")
    assert one.at_own_nodes() is None


def marked(node: str, marks: dict[tuple[int, int], int], **more: Any) -> Had:
    """The states of steps 2, 4 and 6 of a node, whose ranks hold the same as all others."""
    own = dict.fromkeys(PLACES[node], (2, 4, 6))
    return Had(own, marks={x: Mark(7, y, 1) for x, y in marks.items()}, **more)


def test_workers_are_compared_over_all_nodes() -> None:
    one = Copying("lead")
    one.has("lead", marked("lead", {(0, 2): 1, (0, 4): 1}), 0.0)
    assert one.unlike() is None, "no team"
    one.places = PLACES
    one.has("a", marked("a", {(1, 2): 1, (1, 4): 1, (2, 2): 1, (2, 4): 1}), 0.0)
    assert one.unlike() is None, "one has not reported"
    one.has("b", Had({3: ()}), 0.0)
    assert one.unlike() is None, "a rank has no state"
    one.has("b", marked("b", {(3, 2): 1, (3, 4): 5}), 0.0)
    assert one.unlike() == Unlike(4, 2, (3,), (0, 1, 2, 3))


def test_a_step_at_which_all_were_equal_is_known_when_its_states_are_gone() -> None:
    one = Copying("lead", PLACES)

    def know(step: int, odd: int = 1) -> Unlike | None:
        for node, ranks in PLACES.items():
            marks = {(rank, step): Mark(7, odd if rank == 3 else 1, 1) for rank in ranks}
            one.has(node, Had(dict.fromkeys(ranks, (step,)), marks=marks), 0.0)
        return one.unlike()

    assert know(2) is know(4) is None
    assert know(6, 5) == know(6, 5) == Unlike(6, 4, (3,), (0, 1, 2, 3))
    one.restore(6, 0.0)
    assert know(6, 5) == Unlike(6, -1, (3,), (0, 1, 2, 3))


def test_a_step_at_which_they_differ_is_no_place_to_resume_from_and_is_not_pinned() -> None:
    one = Copying("lead", PLACES)
    for node, ranks in PLACES.items():
        one.has(node, marked(node, {(x, y): 1 for x in ranks for y in (2, 4, 6)}), 0.0)
    assert one.begin(6, 0.0)
    for node in PLACES:
        odd = {(3, 6): 5} if node == "b" else {(x, 6): 1 for x in PLACES[node]}
        one.has(node, marked(node, odd, copied=6), 1.0)
    assert (one.step, one.pinned) == (None, None)
    assert one.step_for(range(4)) == one.at_own_nodes() == 4


def test_a_node_whose_states_are_elsewhere_can_be_lost() -> None:
    one = copying()
    assert not one.can_lose("a", range(4))
    one.has("b", Had({3: (2, 4)}, {1: (2,), 2: (2,)}), 0.0)
    assert one.can_lose("a", range(4)) and not one.can_lose("b", range(4))
    one.has("b", Had({3: (2, 4)}, {1: (3,), 2: (3,)}), 0.0)
    assert not one.can_lose("a", range(4))
