"""The operations of a step: mostly alike in all steps and replicas, but not always.

They are drawn from the seed, apart from the job. Not here: when they are issued (script.py), how
they are compared (comparing.py).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ftrun.core.worker.comparison import USUAL, Shape


@dataclass(frozen=True, slots=True)
class Shapes:
    """A script's operations, by the step.

    ``varies``: every ``varies`` steps they have another size; ``extra``: every ``extra`` steps
    there is one more; 0: never. ``wrong``: how many times an incarnation differs from its peers.
    """

    seed: int
    varies: int = 0
    extra: int = 0
    wrong: float = 0.0

    @staticmethod
    def draw(seed: int, *, may_err: bool) -> Shapes:
        """Two of three scripts have the same operations in all steps."""
        rng = random.Random(f"{seed}/shapes")
        if rng.random() > 0.35:
            return Shapes(seed)
        return Shapes(
            seed,
            varies=rng.choice((0, 0, 1, 2)),
            extra=rng.choice((0, 2, 3)),
            wrong=rng.choice((0.0, 0.03, 0.1)) if may_err else 0.0,
        )

    def of(self, step: int, operations: int) -> list[Shape]:
        """The operations that all replicas should have."""
        size = 1 + step // self.varies if self.varies else 1
        shapes = [Shape(sizes=(size, number + 1)) for number in range(operations)]
        if self.extra and step % self.extra == 1:
            shapes.append(USUAL)
        return shapes

    def issued(
        self, step: int, operations: int, incarnation: str, batch: int, *, right: bool
    ) -> list[Shape]:
        """The operations of its ``batch``-th pass; ``right``: it makes no mistake."""
        shapes = self.of(step, operations)
        if right or not self.wrong:
            return shapes
        rng = random.Random(f"{self.seed}/{incarnation}/{batch}/wrong")
        if rng.random() > self.wrong:
            return shapes
        kind = rng.choice(("fewer", "more", "other", "other"))
        if kind == "fewer":
            return shapes[:-1]
        if kind == "more":
            return [*shapes, USUAL]
        number = rng.randrange(len(shapes))
        shapes[number] = rng.choice((Shape(sizes=(99,)), Shape(dtype="float64")))
        return shapes
