"""Whole runs of a DataPlan beside a simple oracle: one list of the positions that are left.

Each replica holds its own position. Some slots begin a step, some of them contribute, and it is
committed or not. Replicas that were away heal: they take the position of one that was not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ftrun.core.data.plan import DataPlan, DataPosition
from ftrun.core.data.spans import length, positions

STEPS_MAX = 5000


@dataclass
class Oracle:
    """The positions that each step must take, computed with a list only."""

    plan: DataPlan
    epoch: int = 0
    left: list[int] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = list(range(self.plan.size))
        self.counted = list(range(self.plan.slots))

    def slices(self, contributors: Sequence[int]) -> dict[int, list[int]]:
        plan, left = self.plan, list(self.left)
        if plan.global_batch is not None:
            return self._dealt(left[: plan.global_batch], sorted(contributors))
        if len(left) < plan.per_slot * len(self.counted):
            return self._dealt(left, self.counted)
        found = {}
        for slot in self.counted + [x for x in range(plan.slots) if x not in self.counted]:
            found[slot], left = left[: plan.per_slot], left[plan.per_slot :]
        return found

    @staticmethod
    def _dealt(cards: list[int], players: Sequence[int]) -> dict[int, list[int]]:
        """Deal the positions out: consecutive, equally many for each, and one more for the first
        ones."""
        sizes = [0] * len(players)
        for number in range(len(cards)):
            sizes[number % len(players)] += 1
        found = {}
        for player, size in zip(players, sizes, strict=True):
            found[player], cards = cards[:size], cards[size:]
        return found

    def commit(self, contributors: Sequence[int]) -> list[int]:
        taken = self.slices(contributors)
        done = [x for slot in contributors for x in taken.get(slot, [])]
        for x in done:
            self.left.remove(x)
        self.counted = sorted(contributors)
        if not self.left:
            self.epoch += 1
            self.left = list(range(self.plan.size))
        return done


class Run:
    """One job: replicas with their positions, and the oracle.

    Half of the replicas draw before a death in the step: they expect all to contribute.
    """

    def __init__(self, plan: DataPlan) -> None:
        self.plan = plan
        self.oracle = Oracle(plan)
        self.held: dict[int, DataPosition] = dict.fromkeys(range(plan.slots), plan.start())
        self.current = set(self.held)
        self.trained: dict[int, list[int]] = {}
        self.steps = self.empty = 0

    def step(self, contributors: Sequence[int], committed: bool) -> None:
        """The contributors heal if they were away, draw, and the step ends."""
        self.steps += 1
        donor = self.held[min(self.current)]
        for slot in contributors:
            if slot not in self.current:
                self.held[slot] = self.plan.decode(donor.encode())
        drawn = {slot: self._draw(slot, contributors) for slot in contributors}
        wanted = self.oracle.slices(contributors)
        assert drawn == {slot: wanted.get(slot, []) for slot in contributors}
        self._check_weights(donor, contributors, drawn)
        if committed:
            self._commit(contributors, drawn)

    def _draw(self, slot: int, contributors: Sequence[int]) -> list[int]:
        is_early = slot % 2 == 0 and self.plan.global_batch is None
        expected = range(self.plan.slots) if is_early else contributors
        return list(positions(self.plan.slices(self.held[slot], expected).get(slot, ())))

    def _check_weights(
        self, donor: DataPosition, contributors: Sequence[int], drawn: dict[int, list[int]]
    ) -> None:
        """Check that a weighted average of means is the mean over all samples of the step."""
        total = sum(map(len, drawn.values()))
        for slot in contributors:
            weight = self.plan.weight(donor, contributors, slot)
            share = len(drawn[slot]) / total if total else 0.0
            assert abs(weight / len(contributors) - share) < 1e-12

    def _commit(self, contributors: Sequence[int], drawn: dict[int, list[int]]) -> None:
        epoch = self.held[contributors[0]].epoch
        done = [x for slot in sorted(drawn) for x in drawn[slot]]
        self.trained.setdefault(epoch, []).extend(done)
        self.empty += not done
        assert sorted(self.oracle.commit(contributors)) == sorted(done)
        for slot in contributors:
            self.held[slot] = self.plan.after(self.held[slot], contributors)
        self.current = set(contributors)
        self.check()

    def check(self) -> None:
        """All that hold the job's state hold the oracle's position."""
        held = {self.held[slot] for slot in self.current}
        assert len(held) == 1, "D2: replicas that train hold unlike positions"
        (position,) = held
        pending = list(positions(self.plan.pending(position)))
        assert (position.epoch, pending) == (self.oracle.epoch, self.oracle.left)
        if self.plan.global_batch is None:
            at_most = self.plan.slots * self.plan.per_slot
            assert length(position.returned) <= at_most, "what was returned is taken next"

    def finish(self, epochs: int) -> None:
        """D1: continue without deaths to the end of ``epochs``; each epoch has every position
        once."""
        while min(self.held[slot].epoch for slot in self.current) < epochs:
            assert self.steps < STEPS_MAX, "an epoch does not end"
            self.step(sorted(self.current), True)
        for epoch in range(epochs):
            assert sorted(self.trained[epoch]) == list(range(self.plan.size)), f"D1: {epoch}"


def play(
    plan: DataPlan,
    choose: Callable[[Sequence[int]], int],
    steps: int,
    epochs: int = 2,
) -> Run:
    """A run in which ``choose`` picks the contributors of each step and whether it is committed."""
    run = Run(plan)
    for _ in range(steps):
        if min(run.held[slot].epoch for slot in run.current) >= epochs:
            break
        contributors = [x for x in range(plan.slots) if choose((0, 1, 1))]
        if not set(contributors) & run.current:  # a replica must hold the job's state
            contributors = sorted({*contributors, min(run.current)})
        run.step(contributors, bool(choose((0, 1, 1, 1))))
    run.finish(epochs)
    return run
