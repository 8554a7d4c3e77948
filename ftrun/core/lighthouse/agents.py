"""One node's agent, as the lighthouse knows it.

Not here: what follows when it falls silent (machine.py), which slots it runs (assignment.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftrun.core.lighthouse.suspicion import SilenceCheck


@dataclass(slots=True)
class Agent:
    """One node's agent. ``gone_at``: when its stream ended; None while it is attached.

    ``assigned``: the slots that it was last told to be its own; None before it was told any.
    ``is_leaving``: it takes no slots any more, and what it runs leaves.
    """

    agent_id: str
    host: str
    store: str
    capacity: int
    last_message_at: float
    gone_at: float | None = None
    assigned: tuple[str, ...] | None = None
    is_leaving: bool = False
    silence_check: SilenceCheck = field(default_factory=SilenceCheck)

    def due_at(self, timeout_s: float, grace_s: float) -> float:
        """When to look at it: whether it still speaks, or whether its slots are free for others."""
        if self.gone_at is not None:
            return self.gone_at + grace_s
        return self.silence_check.overdue_at(self.last_message_at, timeout_s)
