"""Removes lost replicas from the quorum and the table, and reports their loss.

Not here: replicas that leave in order (leaving.py), how the others continue (forming.py), how long
a lost member is waited for (departed.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from ftrun.core.books.facts import GivenUp
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.takeover import Takeover
from ftrun.core.lighthouse.telling import tell
from ftrun.core.lighthouse.words import replicas, sentence
from ftrun.core.messages import LeaveReason, Loss


class Losses:
    """Removes lost replicas. The rules decide about the consequences later."""

    def __init__(self, state: MembershipState, takeover: Takeover) -> None:
        self._state = state
        self._takeover = takeover

    def lose(self, losses: Sequence[Loss], *, is_dead: bool, restart: bool = False) -> None:
        """Remove these incarnations; those that are unknown or removed already change nothing.

        ``is_dead``: their processes cannot act any more. ``restart``: their agents must kill them.
        """
        state = self._state
        state.is_dirty = True
        members = set(state.live)
        if restart:
            given_up = [x for x in losses if state.replicas.find(x.replica_id, x.incarnation)]
            tell(state, GivenUp(tuple(given_up)))
        known: list[tuple[Loss, Replica]] = []
        for loss in losses:
            if is_dead:
                state.departed.died(loss.replica_id, loss.incarnation)
            replica = state.replicas.find(loss.replica_id, loss.incarnation)
            if replica is None:
                continue
            known.append((loss, replica))
            if restart:
                state.outbox.restart(replica, loss.cause)
            state.drains.discard(loss.replica_id)
            if loss.replica_id in state.live:
                state.remove_member(replica, loss.cause, is_dead=is_dead)
            state.replicas.remove(loss.replica_id)
        if state.phase is Phase.TAKEOVER and known:
            self._takeover.is_disturbed = True
        if state.phase is not Phase.ENDED:
            # A drained replica was reported when it left.
            news = [
                loss for loss, r in known if r.leaving is not LeaveReason.DRAINED or loss.killed
            ]
            self._notice(news, bool(members - state.live))

    def _notice(self, losses: list[Loss], of_quorum: bool) -> None:
        state = self._state
        by_cause: dict[str, list[str]] = {}
        for loss in losses:
            by_cause.setdefault(loss.cause, []).append(loss.replica_id)
        rest = ""
        if of_quorum:
            rest = f" Left in the quorum: {replicas(state.live)}."
        killed = {loss.cause for loss in losses if loss.killed}
        for cause, ids in by_cause.items():
            verb = "" if cause in killed else "lost: "
            text = f"{replicas(ids)} {verb}{cause}.{rest}"
            state.outbox.notice("lost", ids, sentence(text))
