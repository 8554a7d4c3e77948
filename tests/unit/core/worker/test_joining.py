"""Uneven data: one verdict on all replicas, one last joiner, one end (J1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.worker.joining import (
    FIELDS,
    Row,
    Stepped,
    Terms,
    decode,
    encode,
    judge,
)

TERMS = st.builds(Terms, st.booleans(), st.booleans())
ROWS = st.builds(
    Row,
    has_batch=st.booleans(),
    heals=st.booleans(),
    stepped=st.sampled_from(Stepped),
    followed=st.integers(0, 1 << 40),
    settings=st.integers(0, (1 << 63) - 1),
    number=st.integers(0, 1 << 40),
    terms=TERMS,
)
TABLES = st.dictionaries(st.integers(0, 6), ROWS, min_size=1)
LEADS, FOLLOWS = Row(True, stepped=Stepped.PLAIN), Row(False)


def summed(rows: dict[int, Row], slots: int = 7) -> list[list[int]]:
    """What a reduction makes of the rows: each replica adds a table with its own row only."""
    total = [[0] * FIELDS for _ in range(slots)]
    for slot, row in rows.items():
        for field, value in enumerate(encode(row)):
            total[slot][field] += value
    return total


@given(TABLES)
def test_the_sum_of_all_announcements_has_every_row(rows: dict[int, Row]) -> None:
    assert decode(summed(rows)) == rows


@given(TABLES, st.randoms())
def test_all_replicas_agree_and_there_is_one_last_joiner(rows: dict[int, Row], rng: object) -> None:
    slots = list(rows)
    rng.shuffle(slots)  # type: ignore[attr-defined]
    verdict = judge(rows)
    assert verdict == judge({slot: rows[slot] for slot in slots})
    assert verdict.last_joiner in rows
    assert sum(slot == verdict.last_joiner for slot in rows) == 1
    assert verdict.batches == sum(row.has_batch and not row.heals for row in rows.values())
    assert not (verdict.is_over and (verdict.has_leader or verdict.unlike or verdict.throws))
    assert verdict.divisor >= verdict.batches
    assert (verdict.settings is None) == bool(verdict.reason)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_uneven_batches_end_at_one_step_with_the_last_one(counts: list[int]) -> None:
    """Replicas without deaths: as many steps as the longest has batches, and one empty one."""
    left, followed = dict(enumerate(counts)), dict.fromkeys(range(len(counts)), 0)
    divisors = []
    while True:
        rows = {slot: Row(left[slot] > 0, followed=followed[slot]) for slot in left}
        verdict = judge(decode(summed(rows)))
        if verdict.is_over:
            break
        divisors.append(verdict.divisor)
        for slot in left:
            followed[slot] += left[slot] == 0
            left[slot] = max(0, left[slot] - 1)
    assert divisors == [sum(count > step for count in counts) for step in range(max(counts))]
    assert verdict.last_joiner == max(i for i, n in enumerate(counts) if n == max(counts))


def test_the_divisor_is_the_number_of_batches_or_of_members() -> None:
    rows = {0: LEADS, 1: FOLLOWS, 2: LEADS, 3: Row(True, heals=True)}
    assert judge(rows).divisor == 2
    by_all = {slot: replace(row, terms=Terms(by_all=True)) for slot, row in rows.items()}
    assert judge(by_all).divisor == 3
    assert judge({0: replace(FOLLOWS, terms=Terms(by_all=True))}).divisor == 0


@pytest.mark.parametrize(
    ("rows", "is_over"),
    [
        ({0: FOLLOWS, 2: FOLLOWS}, True),
        ({0: FOLLOWS, 2: LEADS}, False),
        ({0: FOLLOWS, 2: Row(False, heals=True)}, False),
        ({0: FOLLOWS, 2: Row(True, heals=True)}, False),
        ({0: FOLLOWS, 2: Row(False, terms=Terms(by_all=True))}, False),
        ({0: FOLLOWS, 2: Row(False, settings=5)}, False),
    ],
)
def test_it_is_over_when_nobody_has_data_nobody_heals_and_all_are_alike(
    rows: dict[int, Row], is_over: bool
) -> None:
    assert judge(rows).is_over is is_over


def test_all_raise_once_one_is_out_and_another_has_data() -> None:
    terms = Terms(throws=True)
    leads, follows = replace(LEADS, terms=terms), replace(FOLLOWS, terms=terms)
    assert judge({0: leads, 1: follows}).throws
    assert not judge({0: leads, 1: leads}).throws
    assert not judge({0: follows, 1: follows}).throws
    assert not judge({0: leads, 1: replace(follows, heals=True)}).throws


@pytest.mark.parametrize(
    ("leaders", "reason"),
    [
        ([LEADS, LEADS], ""),
        ([LEADS, Row(True)], ""),
        ([Row(True)], "no replica with data has made a step"),
        ([LEADS, Row(True, stepped=Stepped.CHANGED)], "changes gradients"),
        ([LEADS, replace(LEADS, settings=7)], "not the same"),
        ([], "no replica"),
    ],
)
def test_a_follower_steps_only_if_it_knows_how(leaders: list[Row], reason: str) -> None:
    verdict = judge({9: FOLLOWS, **dict(enumerate(leaders))})
    assert reason in verdict.reason and bool(reason) == bool(verdict.reason)
    assert (verdict.settings == 0) == (not reason)


def test_a_replica_that_missed_the_end_sees_it_in_its_peers_rows() -> None:
    late = Row(False, heals=True, number=1)
    assert judge({0: replace(LEADS, number=2), 1: late}).number == 2
    assert judge({1: late}).number == 1
    assert judge({0: Row(False), 2: replace(FOLLOWS, terms=Terms(throws=True))}).unlike == (2,)
