"""When a helper process is started again after its end, and when not: an agent's own lighthouse, or
the agent that a keeper runs.

Training continues without a lighthouse, but no replica can heal or join. So a lighthouse that has
served before gets more tries than one that has never come up, which something may prevent.

Not here: the processes (agent/embedded.py, engines/keeper.py).
"""

from __future__ import annotations

from dataclasses import dataclass

STARTS_MAX = 5
"""The limit for a lighthouse that has never served."""
SHORT_LIVES_MAX = 60
"""The limit in a row for a lighthouse that has served once."""
BACKOFF_FIRST_S = 0.05
BACKOFF_LAST_S = 5.0
HEALTHY_S = 10.0


@dataclass
class LighthouseStarts:
    """Counts the short lives of a lighthouse. ``has_served``: it was ready once."""

    has_served: bool = False
    short_lives: int = 0

    def ended(self, lived_s: float, *, was_ready: bool, is_hopeless: bool) -> float | None:
        """The delay until it is started again; None: it is not.

        ``is_hopeless``: it has reported that the next one would end in the same way.
        """
        self.has_served |= was_ready
        if was_ready and lived_s >= HEALTHY_S:
            self.short_lives = 0
        self.short_lives += 1
        is_last = self.short_lives >= (SHORT_LIVES_MAX if self.has_served else STARTS_MAX)
        if is_last or (is_hopeless and not self.has_served):
            return None
        return float(min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2.0 ** (self.short_lives - 1)))

    def then(self, delay_s: float | None) -> str:
        """The next action, as the end of a sentence about how the lighthouse has ended."""
        if delay_s is None:
            return "It does not restart, so the job ends here"
        if self.has_served:
            return "It restarts; training continues"
        return f"It restarts: start {self.short_lives + 1} of {STARTS_MAX}"


class AgentStarts:
    """Counts the short lives of a node's agent, under an engine that does not restart tasks."""

    def __init__(self) -> None:
        self._starts = LighthouseStarts()

    def ended(self, status: int, lived_s: float, *, was_asked: bool) -> float | None:
        """The delay until the next agent of this node is started; None: the task ends with this
        one.

        Only an agent that was killed is started again. An agent that exits has decided to end.
        ``status``: below 0: the signal. ``was_asked``: this node was asked to stop.
        """
        if status >= 0 or was_asked:
            return None
        is_healthy = lived_s >= HEALTHY_S
        return self._starts.ended(lived_s, was_ready=is_healthy, is_hopeless=False)
