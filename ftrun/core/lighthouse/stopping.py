"""When a lighthouse stops: once its agents have left, after a request or its only job's end. Pure.

An engine asks all processes of a job at once. Replicas that leave agree on a boundary through the
lighthouse, so it is the last to stop. If no agent is about to leave, the lighthouse alone was
asked: training continues without it.

Not here: signals and streams (lighthouse/main.py).
"""

from __future__ import annotations

from ftrun.core.failure_kinds import ALL_LEFT
from ftrun.core.messages import EndJob

LEAVING_IS_KNOWN_S = 2.0
"""By then an agent that was asked at the same time has reported it."""
LEAVING_MAX_S = 120.0
LOOK_S = 0.1


def may_stop(waited_s: float, attached: int, leaving: int) -> bool:
    """Whether to stop now.

    ``waited_s``: since the request. ``attached``: the number of connected agents; ``leaving``: the
    number of these that leave, or whose job has ended.
    """
    if attached == 0 or waited_s >= LEAVING_MAX_S:
        return True
    return leaving == 0 and waited_s >= LEAVING_IS_KNOWN_S


def has_served(outcome: EndJob | None, attached: int) -> bool:
    """Whether a lighthouse of one job alone has nothing more to do.

    A job that all its nodes have left may come back. ``outcome``: how it has ended, if it has.
    """
    return outcome is not None and outcome.kind != ALL_LEFT and attached == 0
