"""A summary of the job, for agents that show it under their workers' output.

It is made at most once a second, however many agents ask. Not here: the whole status (snapshot.py).
"""

from __future__ import annotations

from ftrun.core.books.account import Account
from ftrun.core.lighthouse.account_status import rate_status
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.messages import JobGlance

KEPT_S = 1.0


class Glances:
    """The latest glance."""

    def __init__(self, state: MembershipState, account: Account) -> None:
        self._state = state
        self._account = account
        self._glance: JobGlance | None = None
        self._made_at = 0.0

    def now(self) -> JobGlance:
        """The job now, or as it was a moment ago."""
        now = self._state.now
        if self._glance is None or not 0 <= now - self._made_at < KEPT_S:
            self._glance, self._made_at = self._make(now), now
        return self._glance

    def _make(self, now: float) -> JobGlance:
        account = self._account
        at = account.now(now)
        lost = sum(account.lost(book, at) for book in account.ledger.books.values())
        rate = rate_status(account, now)["now"]
        return JobGlance(self._state.step_max, len(self._state.live), lost / 1e6, rate)
