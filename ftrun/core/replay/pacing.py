"""When the workers of a group copy their states again: as often as is cheap. Pure.

Theory of operation. A replacement repeats what followed its newest generation, so that should be
little; but a copy of the state costs, and short steps or a large state would pay for it at each
step. So each step earns a share of the time that it took, and what is earned pays for generations.
None is made, however cheap it is, while a replacement would repeat less than ``REPEAT_S``. For that
it needs the time of the steps, but for their waits in calls: it has the results of these from the
log. So short steps of a small state, or steps that mostly wait for other workers, cost less than
the share. A pause of the script's, as for an evaluation or while it is stopped, earns nothing but
the processor time that it takes. One is made earlier if the log would be full before the next could
come, but for half of its price at least: so where a log is too small for that it gets full, and is
told so. Memory that a copy takes for the first time is not in its price: it takes ten times as long
as a copy, but once.

All begin one at the same step, because it must be possible to begin again from what all have. So
rank 0 alone decides, and announces a step to which nobody can have come: where a step begins at
rank 0 the others may be in the next one at most, if rank 0 is a replacement whose predecessor has
made a call there that is in no log. One word has the newest of these steps, and which of those
before are others, because some come there later. Where agents carry the word to other nodes it is
announced ``CARRIED_S`` ahead; a node that gets it too late has no state of that step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHARE = 0.005
"""Of a step's, that generations may take. The calls of a step have their own cost."""
REPEAT_S = 0.2
"""A replacement takes some tenths of a second until it can begin to repeat."""
PAUSED, NEARER = 2.0, 1.1
"""A step that has taken so many times as long as most was paused. What most take is known by a
number that comes nearer to each by such factors that a quarter of the steps are shorter."""
AHEAD = 2
CARRIED_S = 0.25
_BEFORE = 8
"""So many steps are in a word: the newest one that was announced, and those just before."""


def is_due(announced: int, step: int) -> bool:
    """Whether a step begins with a generation. ``announced``: the word."""
    newest, known = divmod(announced, 1 << _BEFORE)
    return 0 <= newest - step < _BEFORE and bool(known >> newest - step & 1)


def newest(announced: int) -> int:
    """The newest step that was announced. ``announced``: the word."""
    return announced >> _BEFORE


def ahead_of(step_s: float) -> int:
    """How many steps ahead one is announced to other nodes. ``step_s``: a step takes so long."""
    return max(AHEAD, math.ceil(CARRIED_S / max(step_s, 1e-3)))


def fits(room: int, more: int, peak: int, workers: int) -> bool:
    """Whether the copies of a node's workers may take memory that none has had before.

    The script may need as much once more: the optimizer's state comes with its first step.

    Args:
        room: what may be taken on the node.
        more: that a copy would take; ``peak``: that a worker has had, and does not have now.
    """
    return room >= workers * (2 * more + peak)


def fills(each: float, room: int, steps: int) -> bool:
    """Whether logs of so many steps are too large, and shorter ones would not be.

    Two share the room, with one step of the log before.

    Args:
        each: so many bytes are logged in a step.
    """
    return 2 * AHEAD + 1 <= room / max(1.0, each) < 2 * steps + 1


@dataclass
class Pace:
    """Rank 0's decision. ``earned_s``: and not paid for a generation so far. ``repeats_s``: what a
    replacement would need for the steps since the newest one was announced. ``usual_s``: what a
    quarter of the steps take less than; 0: there was none."""

    earned_s: float = 0.0
    repeats_s: float = 0.0
    usual_s: float = 0.0

    def lasted(self, worked_s: float, passed_s: float) -> float:
        """What the last step has taken, but for a pause of the script's.

        Args:
            worked_s: the processor time of all threads since it began; ``passed_s``: the time.
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
        """A step begins: the word from now on.

        Args:
            announced: the word.
            step_s: what the last step has taken (``lasted``); ``copy_s``: what the newest
                generation has taken of the processor; 0: there is none so far, and the next comes
                at once, because optimizers make their states in the first step.
            repeat_s: what a replacement would need for the last step.
            fills: the log under way would be full before another generation.
            is_behind: others have made calls that rank 0 repeats (``others_are_ahead``): they may
                be steps ahead.
            ahead: so many steps ahead one is announced; more than ``AHEAD``: to other nodes.
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
