"""When the workers of a group copy their states again: as often as is cheap. Pure.

Theory of operation. A replacement repeats what followed its newest generation, so that should be
little; but a copy of the state costs, and short steps or a large state would pay for it at each
step. So a generation may take a share of the time, and no more than half of a log may follow it.

All begin one at the same step, because it must be possible to begin again from what all have. So
rank 0 alone decides, by its own clocks, and announces a step to which nobody can have come: where a
step begins at rank 0 the others may be in the next one at most, if rank 0 is a replacement whose
predecessor has made a call there that is in no log.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.005
"""Of the processor's time, that generations may take. Their other cost is that of the calls."""
AHEAD = 2
LONG_S = 10.0
"""A script that mostly waits has more generations: after this time the clock on the wall counts."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Of rank 0, since its newest generation.

    ``worked_s``: of the processor, in all its threads; ``passed_s``: on the wall; ``copy_s``: what
    that generation has taken of the processor. ``is_half_full``: the log that followed it.
    """

    worked_s: float
    passed_s: float
    copy_s: float
    is_half_full: bool = False

    @property
    def is_enough(self) -> bool:
        """Whether it is time for another one."""
        time_s = self.passed_s if self.passed_s > LONG_S else self.worked_s
        return self.is_half_full or max(time_s, self.worked_s) * SHARE >= self.copy_s


def due(step: int, announced: int, spent: Spent, *, is_behind: bool) -> int | None:
    """The step, announced as ``step`` begins at rank 0, that begins with the next generation.

    None: nothing new. A generation that begins with ``step`` is announced until that is over,
    because others come to it later.

    Args:
        announced: the step announced last.
        is_behind: rank 0 repeats calls that are in its log: the others may be steps ahead.
    """
    if is_behind or announced >= step or not spent.is_enough:
        return None
    return step + AHEAD
