"""Names: packing, ordering, lineage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.ids import (
    EPOCH_MAX,
    SEQ_MAX,
    SHARED_LINEAGE,
    Attempt,
    StateId,
    Tag,
    WorkerKey,
    fresh_lineage,
    later_lineage,
    pack_quorum_id,
    quorum_name,
    replica_order,
    unpack_quorum_id,
)

epochs = st.integers(0, EPOCH_MAX)
seqs = st.integers(0, SEQ_MAX)


@given(epochs, seqs)
def test_a_quorum_id_holds_both_parts_in_63_bits(epoch: int, seq: int) -> None:
    quorum_id = pack_quorum_id(epoch, seq)
    assert unpack_quorum_id(quorum_id) == (epoch, seq)
    assert 0 <= quorum_id < 1 << 63
    assert quorum_name(quorum_id) == f"{epoch}.{seq}"


@given(st.tuples(epochs, seqs), st.tuples(epochs, seqs))
def test_ids_compare_as_their_parts_do(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (pack_quorum_id(*one) < pack_quorum_id(*other)) == (one < other)


@pytest.mark.parametrize("parts", [(-1, 0), (EPOCH_MAX + 1, 0), (0, -1), (0, SEQ_MAX + 1)])
def test_a_part_out_of_range_is_refused(parts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not in 0"):
        pack_quorum_id(*parts)


def test_replica_ids_are_ordered_by_value() -> None:
    names = ["b", "10", "9", "a", "0"]
    assert sorted(names, key=replica_order) == ["0", "9", "10", "a", "b"]


def test_names_for_people() -> None:
    attempt = Attempt(pack_quorum_id(1, 2), 3)
    tag = Tag(attempt, 7)
    assert str(attempt) == "1.2#3"
    assert str(tag) == "1.2#3@7"
    assert tag.path() == f"{attempt.quorum_id}.3.7"
    assert str(StateId(7, "abcdefgh")) == "7/abcdef"
    assert str(WorkerKey("1", "0123456789", 2)) == "1/2(012345)"


def test_attempts_and_tags_are_ordered_as_fences() -> None:
    first = Attempt(pack_quorum_id(1, 1), 2)
    assert first < Attempt(pack_quorum_id(1, 1), 3) < Attempt(pack_quorum_id(1, 2), 1)
    assert Tag(first, 9) < Tag(Attempt(pack_quorum_id(1, 2), 1), 0)


def test_lineage_tells_apart_what_was_committed_under_other_tags() -> None:
    start = StateId(4, fresh_lineage("a"))
    tags = [Tag(Attempt(q, n), 4) for q in (1, 2) for n in (1, 2)]
    after = {start.committed(tag) for tag in tags}
    assert len(after) == 4
    assert {state.step for state in after} == {5}
    assert start.committed(tags[0]) == start.committed(tags[0])


def test_fresh_lineages_are_unlike_each_other_and_the_shared_one() -> None:
    assert len({fresh_lineage("a"), fresh_lineage("b"), SHARED_LINEAGE}) == 3


def test_a_later_manager_of_a_process_holds_other_weights_than_the_first_ones() -> None:
    assert later_lineage(SHARED_LINEAGE, 0) == SHARED_LINEAGE
    assert len({SHARED_LINEAGE, *(later_lineage(SHARED_LINEAGE, before) for before in (1, 2))}) == 3
