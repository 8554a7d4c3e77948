"""Slots: equal parts, contiguous, within capacity; nobody's slot is taken away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.lighthouse.slots import Absence, Move, SlotTable

capacities = st.dictionaries(st.sampled_from("ABCDE"), st.integers(0, 6), min_size=1, max_size=5)


def shares(table: SlotTable, agents: dict[str, int]) -> dict[str, tuple[str, ...]]:
    return {agent_id: table.of(agent_id) for agent_id in agents}


def test_equal_parts_in_order() -> None:
    table = SlotTable(5, set())
    agents = {"A": 8, "B": 8}
    table.share_out(agents)
    assert shares(table, agents) == {"A": ("0", "1", "2"), "B": ("3", "4")}
    assert table.by_agent() == {"A": ["0", "1", "2"], "B": ["3", "4"]}


def test_what_one_has_no_room_for_goes_to_the_others() -> None:
    table = SlotTable(6, set())
    agents = {"A": 8, "B": 1, "C": 2}
    table.share_out(agents)
    assert shares(table, agents) == {"A": ("0", "1", "5"), "B": ("2",), "C": ("3", "4")}


@given(st.integers(1, 12), capacities)
def test_sharing_out_is_fair_and_within_capacity(count: int, agents: dict[str, int]) -> None:
    table = SlotTable(count, set())
    table.share_out(agents)
    taken = [replica_id for part in shares(table, agents).values() for replica_id in part]
    assert len(taken) == len(set(taken)) == min(count, sum(agents.values()))
    assert table.free_count == count - len(taken)
    for agent_id, capacity in agents.items():
        assert len(table.of(agent_id)) <= capacity
    if all(capacity >= count for capacity in agents.values()):
        sizes = {len(part) for part in shares(table, agents).values()}
        assert max(sizes) - min(sizes) <= 1
        for part in shares(table, agents).values():
            numbers = [int(replica_id) for replica_id in part]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else 1


@given(st.integers(1, 8), capacities, capacities)
def test_handing_out_takes_nothing_away(
    count: int, first: dict[str, int], later: dict[str, int]
) -> None:
    table = SlotTable(count, set())
    table.share_out(first)
    before = {slot.replica_id: slot.agent_id for slot in table.values() if slot.agent_id}
    changed = table.hand_out({**first, **later})
    after = {slot.replica_id: slot.agent_id for slot in table.values() if slot.agent_id}
    assert before.items() <= after.items()
    assert changed == {after[r] for r in after.keys() - before.keys()}


def test_the_most_room_comes_first() -> None:
    table = SlotTable(3, set())
    assert table.hand_out({"A": 1, "B": 4}) == {"B"}
    assert table.of("B") == ("0", "1", "2")
    assert table.hand_out({}) == set()


def test_a_slot_that_is_finished_is_nobodys() -> None:
    table = SlotTable(3, set())
    table.share_out({"A": 3})
    assert table.finish("1")
    assert not table.finish("1"), "only once"
    assert not table.finish("77"), "no slot of this job"
    for slot in table.values():
        table.give(slot.replica_id, "")
    assert (table.free_count, table.open_count) == (2, 2)
    assert table.hand_out({"B": 3}) == {"B"}
    assert table.of("B") == ("0", "2")
    assert table.finished() == ("1",)


def test_a_slot_that_was_left_is_to_be_run_by_nobody_until_it_is_given() -> None:
    table = SlotTable(2, set())
    table.share_out({"A": 2})
    table["1"].has_left, table["1"].moves_to = True, "B"
    assert table.of("A") == ("0",)
    assert table.by_agent() == {"A": ["0"]}
    assert table.free_count == 0, "nobody may take it yet"
    table.give("1", "B")
    assert (table.of("B"), table["1"].moves_to, table["1"].has_left) == (("1",), "", False)


@pytest.mark.parametrize(
    ("loads", "capacities", "expected"),
    [
        ({"A": 4}, {"A": 4, "B": 4}, Move("3", "A", "B")),
        ({"A": 2, "B": 2}, {"A": 4, "B": 4}, None),
        ({"A": 2, "B": 1}, {"A": 4, "B": 4}, None),
        ({"A": 3, "B": 1}, {"A": 4, "B": 1, "C": 2}, Move("2", "A", "C")),
        ({"A": 3, "B": 1}, {"A": 4, "B": 1}, None),
        ({"A": 2}, {"A": 2}, None),
        ({}, {}, None),
    ],
)
def test_what_evens_the_load(
    loads: dict[str, int], capacities: dict[str, int], expected: Move | None
) -> None:
    table = SlotTable(sum(loads.values()), set())
    names = iter(range(len(table)))
    for agent_id, count in loads.items():
        for _ in range(count):
            table.give(str(next(names)), agent_id)
    assert table.uneven(capacities) == expected


@given(st.dictionaries(st.sampled_from("ABCD"), st.integers(0, 6)), st.integers(0, 12))
def test_moves_come_to_an_end_and_leave_nothing_to_even_out(
    capacities: dict[str, int], count: int
) -> None:
    """Against a dumb look at all pairs: no agent with room has two slots fewer than another."""
    table = SlotTable(count, set())
    table.hand_out(capacities)
    for _ in range(count):
        move = table.uneven(capacities)
        if move is None:
            break
        assert move.replica_id in table.of(move.from_agent)
        table.give(move.replica_id, move.to_agent)
    loads = {agent_id: len(table.of(agent_id)) for agent_id in capacities}
    pairs = [(a, b) for a in loads for b in loads if loads[b] < capacities[b]]
    assert all(loads[a] - loads[b] < 2 for a, b in pairs)


@given(st.lists(st.tuples(st.sampled_from("gf"), st.integers(0, 3), st.sampled_from("AB"))))
def test_the_counts_are_right_after_anything(acts: list[tuple[str, int, str]]) -> None:
    table = SlotTable(4, set())
    for act, index, agent_id in acts:
        if act == "g":
            table.give(str(index), agent_id if index % 2 else "")
        else:
            table.finish(str(index))
        open_slots = [slot for slot in table.values() if not slot.is_finished]
        assert table.open_count == len(open_slots)
        assert table.free_count == sum(not slot.agent_id for slot in open_slots)


def test_a_slot_that_the_job_does_not_have_is_not_given_up() -> None:
    table = SlotTable(1, set())
    fails = Absence("0", 7, "it fails")
    table.go_without(Absence("9", 7, "an old journal names it"))
    table.go_without(fails)
    assert (table.absent(), table.withdrawn, table.open_count) == ((fails,), ("0",), 0)
    table.restore("0")
    assert (table.absent(), table.withdrawn, table.open_count) == ((), (), 1)


def test_a_drained_slot_that_ends_counts_once() -> None:
    table = SlotTable(2, set())
    table.withdraw("0")
    assert table.finish("0")
    assert (table.open_count, table.free_count) == (1, 1)
    table.restore("0")  # it is asked for again, but its part is over
    assert (table.open_count, table.free_count) == (1, 1)
