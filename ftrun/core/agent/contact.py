"""How long a lighthouse has been silent, and what that means for one agent (Q3).

Members of a quorum that hear no lighthouse for ``isolation_limit_s`` stop committing: after that
time a quorum without any of them may have been formed. An agent that never heard one gives up
``join_timeout_s`` after it could first have said Hello.

The limit counts from when the question was *sent* that the latest answer answers (a Hello, a
heartbeat), as a lease does: how long the answer was on its way does not matter then. Workers are
told until when they may go on: an agent that is stopped cannot tell them later. Not here: the
stream (protocol/rpc.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Contact:
    """``heard_at``: a lighthouse heard us then or later; None before the first answer.

    ``ready_at``: since when there is a Hello to say; None: not yet. ``is_open``: a stream stands.
    ``isolated``: nobody here may commit.
    """

    join_timeout_s: float
    isolation_limit_s: float
    ready_at: float | None = None
    heard_at: float | None = None
    is_open: bool = False
    isolated: bool = False

    def ready(self, now: float) -> None:
        """From now on, or from an earlier such word on, a lighthouse could answer us."""
        self.ready_at = now if self.ready_at is None else self.ready_at

    def heard(self, now: float, asked_at: float | None) -> bool:
        """A word has come; ``asked_at``: when what it answers was sent, None if it answers nothing.

        Returns:
            True if that ends an isolation.
        """
        self.is_open = True
        if asked_at is None:
            return False
        self.heard_at = asked_at if self.heard_at is None else max(asked_at, self.heard_at)
        ends = self.isolated and now < self.heard_at + self.isolation_limit_s
        self.isolated = self.isolated and not ends
        return ends

    def lease_s(self) -> float | None:
        """Until when workers may commit, or None before the first answer."""
        return None if self.heard_at is None else self.heard_at + self.isolation_limit_s

    def lost(self) -> None:
        """The stream, or a try to open one, has failed."""
        self.is_open = False

    def never_came(self, now: float) -> bool:
        """True if no lighthouse has answered in all the time there was for it."""
        if self.heard_at is not None or self.ready_at is None:
            return False
        return now >= self.ready_at + self.join_timeout_s

    def falls_silent(self, now: float) -> bool:
        """True at the moment from which on nobody here may commit."""
        if self.heard_at is None or self.isolated:
            return False
        return now >= self.heard_at + self.isolation_limit_s

    def deadline(self) -> float | None:
        """When one of the two may become true."""
        if self.heard_at is None:
            return None if self.ready_at is None else self.ready_at + self.join_timeout_s
        return None if self.isolated else self.heard_at + self.isolation_limit_s
