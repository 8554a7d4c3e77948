"""D1 and D2: each sample once per epoch, from one position, in every simulated job.

Each worker holds a position in the data, which heals with its content, and draws its slice when a
step begins. The oracle is simple: for each state of the job it keeps a list of the samples that are
left, and crosses out those drawn by the workers in a committed sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftrun.core.data.plan import DataPlan, DataPosition
from ftrun.core.data.spans import Spans, positions
from ftrun.core.ids import StateId, WorkerKey
from tests.sim.violation import require

if TYPE_CHECKING:
    from tests.sim.rings import Contribution

SIZE = 53
PER_SLOT = 4
GLOBAL_BATCH = 10
Place = tuple[StateId, int]
"""A state of one group_rank: mates hold parts of one replica."""


def plan_of(replicas: int, *, repairs: bool) -> DataPlan:
    """The plan of a job. A batch that must not shrink needs steps that are computed again."""
    return DataPlan(SIZE, replicas, PER_SLOT, None if repairs else GLOBAL_BATCH)


class SampleRules:
    """The samples that each state of the job has left."""

    def __init__(self, plan: DataPlan) -> None:
        self._plan = plan
        self._left: dict[Place, tuple[int, list[int]]] = {}

    def drew(self, key: WorkerKey, state: StateId, spans: Spans) -> None:
        """A worker that holds ``state`` draws its slice, in which no sample was trained before
        (D1)."""
        _, left = self._of((state, key.group_rank))
        trained = set(positions(spans)) - set(left)
        require(not trained, "D1", f"{key} draws {sorted(trained)} again, at {state}")

    def committed(
        self, key: WorkerKey, before: StateId, after: StateId, parts: Sequence[Contribution]
    ) -> None:
        """A rank has committed the sum of ``parts``: cross out their samples (D1)."""
        epoch, left = self._of((before, key.group_rank))
        left = list(left)
        for part in parts:
            for sample in positions(part.drawn) if part.counts else ():
                text = f"{part.key} has trained sample {sample} of {before}: it was not left"
                require(sample in left, "D1", text)
                left.remove(sample)
        if not left:
            epoch, left = epoch + 1, list(range(SIZE))
        known = self._left.setdefault((after, key.group_rank), (epoch, left))
        require(known == (epoch, left), "D1", f"unlike samples are left at {after}")

    def holds(self, key: WorkerKey, state: StateId, position: DataPosition) -> None:
        """A rank that holds ``state`` has its position (D2)."""
        epoch, left = self._of((state, key.group_rank))
        held = (position.epoch, list(positions(self._plan.pending(position))))
        require(held == (epoch, left), "D2", f"{key} at {state} has left {held}, not {left}")

    def _of(self, place: Place) -> tuple[int, list[int]]:
        return self._left.get(place, (0, list(range(SIZE))))
