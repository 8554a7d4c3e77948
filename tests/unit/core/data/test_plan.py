"""Every sample once per epoch (D1), from one position (D2), whoever dies, joins or repeats."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.data import plan as plans
from ftrun.core.data.plan import DataPlan, DataPosition, batches
from ftrun.core.data.spans import Spans, length, positions
from tests.unit.core.data.runs import Run, play

PLAN = DataPlan(size=100, slots=3, per_slot=10)

sizes = st.builds(
    DataPlan,
    size=st.integers(1, 120),
    slots=st.integers(1, 6),
    per_slot=st.integers(1, 12),
    global_batch=st.none() | st.integers(1, 40),
)


def test_contributors_take_the_next_samples_in_order() -> None:
    start = PLAN.start()
    assert PLAN.slices(start, (0, 1, 2)) == {0: ((0, 10),), 1: ((10, 20),), 2: ((20, 30),)}
    after = PLAN.after(start, (0, 1, 2))
    assert after == DataPosition(0, 30, (), (0, 1, 2))
    assert PLAN.trained(after) == 30


def test_the_slice_of_the_dead_is_returned_and_comes_next() -> None:
    repaired = PLAN.after(PLAN.start(), (0, 2))
    assert repaired == DataPosition(0, fresh_from=30, returned=((10, 20),), counted=(0, 2))
    slices = PLAN.slices(repaired, (0, 2))
    assert slices[0] == ((10, 20),)
    assert slices[2] == ((30, 40),)
    assert slices[1] == ((40, 50),), "the place of one that may join at this step"
    assert PLAN.after(repaired, (0, 2)) == DataPosition(0, 40, (), (0, 2))


def test_a_slice_does_not_depend_on_who_is_expected() -> None:
    """Replicas that begin a step before and after a death must not take the same samples."""
    for contributors in ((0, 1, 2), (1, 2), (2,)):
        assert PLAN.slices(PLAN.start(), contributors) == PLAN.slices(PLAN.start(), ())


def test_the_end_of_an_epoch_is_divided_evenly() -> None:
    position = DataPosition(0, 92, (), (0, 1, 2))
    assert PLAN.slices(position, ()) == {0: ((92, 95),), 1: ((95, 98),), 2: ((98, 100),)}
    assert PLAN.weight(position, (0, 1, 2), 2) == pytest.approx(2 * 3 / 8)
    assert PLAN.after(position, (0, 1, 2)) == DataPosition(1, 0, (), (0, 1, 2))


def test_a_replica_without_samples_counts_nothing() -> None:
    position = DataPosition(0, 99, (), (0, 1))
    assert PLAN.slices(position, ()) == {0: ((99, 100),)}
    assert [PLAN.weight(position, (0, 1), slot) for slot in (0, 1)] == [2.0, 0.0]
    left = PLAN.after(position, (1,))  # slot 0 has died with the last sample
    assert PLAN.weight(position, (1,), 1) == 0.0
    assert PLAN.slices(left, ()) == {1: ((99, 100),)}


def test_a_global_batch_stays_while_replicas_come_and_go() -> None:
    plan = DataPlan(100, 4, 8, global_batch=24)
    assert plan.slices(plan.start(), (0, 1, 2)) == {0: ((0, 8),), 1: ((8, 16),), 2: ((16, 24),)}
    assert plan.slices(plan.start(), (0, 3)) == {0: ((0, 12),), 3: ((12, 24),)}
    for contributors in ((0, 1, 2, 3), (2,), (1, 3)):
        assert plan.after(plan.start(), contributors).fresh_from == 24
    assert plan.steps_per_epoch(2) == 5
    assert PLAN.steps_per_epoch(3) == 4


@given(sizes, st.data())
def test_every_sample_is_trained_once_per_epoch(plan: DataPlan, data: st.DataObject) -> None:
    def choose(options: Sequence[int]) -> int:
        return data.draw(st.sampled_from(options))

    play(plan, choose, steps=12)


@pytest.mark.parametrize("seed", range(40))
def test_long_runs(seed: int) -> None:
    rng = random.Random(seed)
    batch = rng.choice((None, rng.randint(1, 64)))
    plan = DataPlan(rng.randint(1, 700), rng.randint(1, 9), rng.randint(1, 16), batch)
    play(plan, rng.choice, steps=400, epochs=3)


@given(sizes, st.data())
def test_a_position_survives_its_encoding(plan: DataPlan, data: st.DataObject) -> None:
    run = Run(plan)
    for _ in range(data.draw(st.integers(0, 8))):
        slots = data.draw(st.sets(st.integers(0, plan.slots - 1), min_size=1))
        run.step(sorted(slots | {min(run.current)}), True)
    position = run.held[min(run.current)]
    assert plan.decode(position.encode()) == position


def test_a_job_of_fewer_replicas_goes_on_from_a_position() -> None:
    position = PLAN.after(PLAN.start(), (1, 2))
    smaller = DataPlan(100, 2, 10)
    assert smaller.decode(position.encode()).counted == (1,)
    alone = DataPlan(100, 1, 10)
    assert alone.decode(position.encode()).counted == (0,), "none of those that counted is left"
    assert alone.slices(alone.decode(position.encode()), ()) == {0: ((0, 10),)}


@pytest.mark.parametrize(
    "change",
    [{"epoch": -1}, {"fresh_from": 101}, {"returned": [[5, 5], [95, 99]]}, {"fresh_from": -1}],
)
def test_a_position_of_other_data_is_refused(change: dict[str, Any]) -> None:
    encoded = {**DataPosition(0, 50, ((3, 7),), (0,)).encode(), **change}
    with pytest.raises(ValueError, match="no position in 100 samples"):
        PLAN.decode(encoded)


def test_a_plan_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="not all above 0"):
        DataPlan(0, 1, 1)


def test_a_slice_is_read_in_equal_batches() -> None:
    spans = ((0, 10), (20, 25))
    assert batches(spans, 0, 1, 6) == [((0, 5),), ((5, 10),), ((20, 25),)]
    assert batches((), 0, 1, 6) == []


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 9))
def test_the_workers_of_a_replica_share_its_slice(total: int, workers: int, at_most: int) -> None:
    """Each has as many batches as its mates, or they would wait for each other."""
    spans = ((3, 3 + total),) if total else ()
    found = [batches(spans, rank, workers, at_most) for rank in range(workers)]
    assert len({len(own) for own in found}) == 1
    assert all(length(batch) <= at_most for own in found for batch in own)
    read = [x for own in found for batch in own for x in positions(batch)]
    assert read == list(positions(spans))


# ---------------------------------------------------------------- planted bugs

_after = DataPlan.after
_slices = DataPlan.slices
_weight = DataPlan.weight


def _forgets_what_the_dead_had(
    self: DataPlan, position: DataPosition, contributors: Sequence[int]
) -> DataPosition:
    everybody = [*contributors, *(x for x in range(self.slots) if x not in contributors)]
    after = _after(self, position, everybody)
    return DataPosition(after.epoch, after.fresh_from, after.returned, tuple(sorted(contributors)))


def _slices_by_rank(
    self: DataPlan, position: DataPosition, contributors: Sequence[int]
) -> dict[int, Spans]:
    counted = tuple(sorted(contributors)) or position.counted
    moved = DataPosition(position.epoch, position.fresh_from, position.returned, counted)
    return _slices(self, moved, contributors)


def _returns_nothing(self: DataPlan, position: DataPosition) -> Spans:
    return ((position.fresh_from, self.size),) if position.fresh_from < self.size else ()


def _counts_replicas_alike(*_: object) -> float:
    return 1.0


def _never_ends(
    self: DataPlan, position: DataPosition, contributors: Sequence[int]
) -> dict[int, Spans]:
    found = _slices(self, position, contributors)
    return {slot: spans for slot, spans in found.items() if length(spans) == self.per_slot}


BUGS = {
    "the slice of the dead is lost": ("after", _forgets_what_the_dead_had),
    "slices samples by quorum rank": ("slices", _slices_by_rank),
    "what was returned is forgotten": ("pending", _returns_nothing),
    "replicas weigh alike": ("weight", _counts_replicas_alike),
    "the last samples are dropped": ("slices", _never_ends),
}


@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attribute, broken = BUGS[name]
    monkeypatch.setattr(plans.DataPlan, attribute, broken)
    with pytest.raises(AssertionError):
        for seed in range(40):
            test_long_runs(seed)
