"""Steps that are not looked at: what opens a lane, what closes it, and how the step goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader

from ftrun import clock
from ftrun.inject.zero_edit.frames import Spot
from ftrun.inject.zero_edit.frameworks import Frameworks
from ftrun.inject.zero_edit.lane import EVERY, STEADY_STEPS, Lane
from ftrun.inject.zero_edit.loaders import OPEN, Draws, LoaderIterator
from ftrun.inject.zero_edit.noting import Noting
from ftrun.inject.zero_edit.sparing import Sparing
from ftrun.inject.zero_edit.tensors import Tensors
from tests.unit.inject.zero_edit.counted import counters_of

EPOCH: tuple[tuple[Spot, int], ...] = ((Spot("train.py:main", 3), 0),)


class Replica:
    """A loop over one loader. ``looked_at``: the steps that were no lane's."""

    def __init__(self) -> None:
        frameworks = Frameworks()
        sparing = Sparing(lambda: False, lambda: 0)
        self.noting = Noting(
            frameworks, counters_of(frameworks), Tensors(lambda: ()), lambda: 0, sparing
        )
        self.is_barred = False
        self.lane = Lane(lambda: self.is_barred, self.noting.leave_lane)
        self.ranges = EPOCH
        self.due_in = 10**9
        self.step = 0
        self.looked_at: list[int] = []
        self.firsts: list[int | None] = []
        loader: Any = DataLoader(list(range(400)), 1)  # type: ignore[arg-type]
        self.batches = LoaderIterator(loader, lambda: DataLoader.__iter__(loader))

    def before_draw(self, iterator: LoaderIterator) -> None:
        self.lane.close()
        self.noting.draw(iterator)

    def train(self, draws: int = 1, forwards: int = 1) -> None:
        """One step, as Loop goes through it."""
        for _ in range(draws):
            next(self.batches)
        for _ in range(forwards):
            self.begin()
        if self.lane.is_begun:
            self.lane.committed()
            self.step += 1
            return
        self.lane.close()
        self.looked_at.append(self.step)
        self.step += 1
        sole = self.noting.commit()
        self.lane.look(sole, self.ranges, self.step, lambda step, step_s: step + self.due_in)

    def begin(self) -> None:
        """A forward pass in training."""
        if self.lane.iterator is not None and self.lane.is_drawn:
            self.lane.is_begun = True
            found = self.lane.numbers()
            assert found is not None
            self.firsts.append(found[0][0][3])
            return
        self.lane.close()
        [drawn] = self.noting.training()
        self.firsts.append(drawn.cursor.begin())


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replica]:
    monkeypatch.setattr(OPEN, "_held", {})
    monkeypatch.setattr(OPEN, "_open", [])
    monkeypatch.setattr(clock, "now", lambda: 1.0)  # steps take no time
    made = Replica()
    monkeypatch.setattr(Draws, "before", staticmethod(made.before_draw))
    yield made
    OPEN.commit()


def opened(replica: Replica) -> Replica:
    while replica.lane.iterator is None:
        replica.train()
        assert replica.step < 4 * STEADY_STEPS
    return replica


def test_steps_are_not_looked_at_until_the_next_mark(replica: Replica) -> None:
    begun = opened(replica).step
    while replica.step < 3 * EVERY:
        replica.train()
    assert replica.firsts == list(range(3 * EVERY)), "each step has its own batch"
    assert replica.looked_at[begun:] == [EVERY - 1, 2 * EVERY - 1, 3 * EVERY - 1]


def test_a_loader_ends_outside_of_a_lane(replica: Replica) -> None:
    opened(replica)
    while replica.step < 400:
        replica.train()
    assert replica.looked_at[-1] == 399
    with pytest.raises(StopIteration):
        next(replica.batches)


def test_a_newcomer_that_is_prepared_for_ends_it(replica: Replica) -> None:
    opened(replica).train()
    replica.is_barred = True
    at = replica.step
    replica.train()
    assert replica.looked_at[-1] == at and replica.firsts[-1] == at
    replica.is_barred = False
    replica.train()
    assert replica.firsts[-1] == at + 1


def test_a_step_that_is_to_be_noted_ends_it(replica: Replica) -> None:
    replica.due_in = 0
    for _ in range(3 * STEADY_STEPS):
        replica.train()
    assert replica.lane.iterator is None


def test_steps_with_several_batches_have_no_lane(replica: Replica) -> None:
    for _ in range(3 * STEADY_STEPS):
        replica.train(draws=2)
    assert replica.lane.iterator is None
    assert replica.firsts == list(range(0, 6 * STEADY_STEPS, 2))


def test_a_second_batch_in_a_lane_ends_it_and_the_step_keeps_its_first(replica: Replica) -> None:
    opened(replica).train()
    first = replica.batches.cursor.drawn
    replica.train(draws=2)
    assert replica.firsts[-1] == first and replica.lane.iterator is None
    replica.train(draws=2)
    assert replica.firsts[-1] == first + 2


def test_another_loader_in_a_step_of_a_lane_ends_it(replica: Replica) -> None:
    opened(replica)
    next(replica.batches)
    replica.begin()
    loader: Any = DataLoader([1, 2], 1)  # type: ignore[arg-type]
    next(LoaderIterator(loader, lambda: DataLoader.__iter__(loader)))
    assert replica.lane.iterator is None
    assert replica.batches.cursor.first == replica.batches.cursor.drawn - 1
    replica.noting.commit()
    at = replica.batches.cursor.drawn
    next(replica.batches)
    assert replica.batches in replica.noting.training()
    assert replica.batches.cursor.first == at


def test_loops_whose_numbers_change_have_none_until_they_stay(replica: Replica) -> None:
    for number in range(3 * STEADY_STEPS):
        replica.ranges = ((EPOCH[0][0], number),)
        replica.train()
    assert replica.lane.iterator is None
    opened(replica)
