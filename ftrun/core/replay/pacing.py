"""When the workers of a group copy their states: as often as is cheap. Pure.

Theory of operation. A replacement repeats what followed its newest generation, so generations
should be frequent. But a copy of the state costs time, which is too much for each step if steps are
short or the state is large. So each step earns ``SHARE`` of its time, and what is earned pays for
generations.

No generation is made, however cheap, while a replacement would repeat less than ``REPEAT_S``. A
replacement repeats the steps without their waits in calls, because it has the results of these in
the log. So short steps of a small state, or steps that mostly wait for other workers, cost less
than the share. A pause of the script, for an evaluation or while it is stopped, earns only the
processor time that it takes.

A generation is made earlier if the log would be full before the next could come, but only if at
least half of its price is earned. If a log is too small even for that, it gets full and is reported
as full. Memory that a copy uses for the first time is not in its price: that takes ten times as
long as a copy, but only once.

All ranks begin a generation at the same step, because a group can resume only from a step that all
have. So rank 0 alone decides, and announces a step that no rank can have reached yet. Where a step
begins at rank 0, the others are at most in the next step (if rank 0 is a replacement whose
predecessor has made a call there that is in no log). One word holds the newest announced step, and
which of the steps before it were announced, because some ranks get there later. Where agents carry
the word to other nodes, a step is announced ``CARRIED_S`` ahead. A node that receives it too late
has no state of that step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHARE = 0.005
"""The share of a step's time that generations may take. Logging the step's calls is not in it."""
REPEAT_S = 0.2
"""A replacement takes some tenths of a second until it can begin to repeat."""
PAUSED, NEARER = 2.0, 1.1
"""A step that takes ``PAUSED`` times as long as usual counts as a pause. The usual time is an
estimate of the first quartile: each step moves it up or down by powers of ``NEARER``.
"""
AHEAD = 2
CARRIED_S = 0.25
_BEFORE = 8
"""The number of steps in a word: the newest announced step and those just before it."""


def is_due(announced: int, step: int) -> bool:
    """Whether a step begins with a generation. ``announced``: the word."""
    newest, known = divmod(announced, 1 << _BEFORE)
    return 0 <= newest - step < _BEFORE and bool(known >> newest - step & 1)


def newest(announced: int) -> int:
    """The newest step that was announced. ``announced``: the word."""
    return announced >> _BEFORE


def ahead_of(step_s: float) -> int:
    """How many steps ahead a step is announced to other nodes. ``step_s``: the time of one step."""
    return max(AHEAD, math.ceil(CARRIED_S / max(step_s, 1e-3)))


def fits(room: int, more: int, peak: int, workers: int) -> bool:
    """Whether the copies of a node's workers may use memory that was not used before.

    The script may need as much again: the optimizer's state appears in its first step.

    Args:
        room: the bytes that may be used on the node.
        more: the further bytes for a copy.
        peak: the bytes that a worker has used before and does not use now.
    """
    return room >= workers * (2 * more + peak)


def fills(each: float, room: int, steps: int) -> bool:
    """Whether logs of ``steps`` steps are too large, and shorter ones would not be.

    Two logs share the room, with one step of the log before.

    Args:
        each: the bytes logged per step.
    """
    return 2 * AHEAD + 1 <= room / max(1.0, each) < 2 * steps + 1


@dataclass
class Pace:
    """Rank 0's decision.

    ``earned_s``: earned and not yet spent on a generation. ``repeats_s``: the time that a
    replacement would need for the steps since the newest generation was announced. ``usual_s``: a
    quarter of the steps take less than this; 0: no step yet.
    """

    earned_s: float = 0.0
    repeats_s: float = 0.0
    usual_s: float = 0.0

    def lasted(self, worked_s: float, passed_s: float) -> float:
        """The time of the last step, without a pause of the script.

        Args:
            worked_s: the processor time of all threads since the step began.
            passed_s: the time since the step began.
        """
        usual_s = self.usual_s or passed_s
        self.usual_s = usual_s * NEARER if passed_s > usual_s else usual_s / NEARER**3
        return max(worked_s, passed_s if passed_s < PAUSED * usual_s else usual_s)

    def begins(
        self,
        step: int,
        announced: int,
        step_s: float,
        copy_s: float,
        repeat_s: float,
        *,
        fills: bool,
        is_behind: bool,
        ahead: int = AHEAD,
    ) -> int:
        """A step begins. Returns the new word.

        Args:
            announced: the word so far.
            step_s: the time of the last step (``lasted``).
            copy_s: the processor time of the newest generation; 0: there is none yet, and the next
                comes at once, because optimizers make their states in the first step.
            repeat_s: the time that a replacement would need for the last step.
            fills: the current log would be full before another generation.
            is_behind: other ranks have completed calls that rank 0 still repeats
                (``others_are_ahead``), so they may be steps ahead.
            ahead: how many steps ahead a step is announced; more than ``AHEAD``: to other nodes.
        """
        self.earned_s = min(self.earned_s + step_s * SHARE, copy_s)
        self.repeats_s += repeat_s
        is_worth = self.earned_s >= copy_s and (self.repeats_s >= REPEAT_S or not copy_s)
        newest, known = divmod(announced, 1 << _BEFORE)
        late = step + ahead - newest
        is_under_way = ahead > AHEAD and newest > step
        is_needed = fills and newest <= step and 2 * self.earned_s >= copy_s
        if is_behind or is_under_way or late <= 0 or not (is_needed or is_worth):
            return announced
        self.earned_s, self.repeats_s = max(0.0, self.earned_s - copy_s), 0.0
        known = (known << min(late, _BEFORE) | 1) % (1 << _BEFORE)
        return (step + ahead) * (1 << _BEFORE) + known
