"""Slots: equal parts, contiguous, within capacity; nobody's slot is taken away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.slots import SlotTable

capacities = st.dictionaries(st.sampled_from("ABCDE"), st.integers(0, 6), min_size=1, max_size=5)


def shares(table: SlotTable, agents: dict[str, int]) -> dict[str, tuple[str, ...]]:
    return {agent_id: table.of(agent_id) for agent_id in agents}


def test_equal_parts_in_order() -> None:
    table = SlotTable(5)
    agents = {"A": 8, "B": 8}
    table.share_out(agents)
    assert shares(table, agents) == {"A": ("0", "1", "2"), "B": ("3", "4")}
    assert table.by_agent() == {"A": ["0", "1", "2"], "B": ["3", "4"]}


def test_what_one_has_no_room_for_goes_to_the_others() -> None:
    table = SlotTable(6)
    agents = {"A": 8, "B": 1, "C": 2}
    table.share_out(agents)
    assert shares(table, agents) == {"A": ("0", "1", "5"), "B": ("2",), "C": ("3", "4")}


@given(st.integers(1, 12), capacities)
def test_sharing_out_is_fair_and_within_capacity(count: int, agents: dict[str, int]) -> None:
    table = SlotTable(count)
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
    table = SlotTable(count)
    table.share_out(first)
    before = {slot.replica_id: slot.agent_id for slot in table if slot.agent_id}
    changed = table.hand_out({**first, **later})
    after = {slot.replica_id: slot.agent_id for slot in table if slot.agent_id}
    assert before.items() <= after.items()
    assert changed == {after[r] for r in after.keys() - before.keys()}


def test_the_most_room_comes_first() -> None:
    table = SlotTable(3)
    assert table.hand_out({"A": 1, "B": 4}) == {"B"}
    assert table.of("B") == ("0", "1", "2")
    assert table.hand_out({}) == set()


def test_a_gone_agent_leaves_its_open_slots() -> None:
    table = SlotTable(3)
    table.share_out({"A": 3})
    assert table.end("1", "finished")
    assert not table.end("1", "drained"), "only once"
    table.release("A")
    assert (table.free_count, table.open_count) == (2, 2)
    assert table.hand_out({"B": 3}) == {"B"}
    assert table.of("B") == ("0", "2")
    assert table.ended("finished") == ("1",)
    assert table.ended("drained") == ()


def test_ends_that_others_know_of() -> None:
    table = SlotTable(2)
    table.finish(["1", "77"], "drained")
    assert table.ended("drained") == ("1",)
    assert "77" not in table
    assert table.open_count == 1


@given(st.lists(st.tuples(st.sampled_from("gre"), st.integers(0, 3), st.sampled_from("AB"))))
def test_the_counts_are_right_after_anything(acts: list[tuple[str, int, str]]) -> None:
    table = SlotTable(4)
    for act, index, agent_id in acts:
        if act == "g":
            table.give(str(index), agent_id if index % 2 else "")
        elif act == "r":
            table.release(agent_id)
        else:
            table.end(str(index), "finished")
        assert table.open_count == sum(not slot.end for slot in table)
        assert table.free_count == sum(not slot.end and not slot.agent_id for slot in table)
