"""The state that this worker offers to peers: in a step as a donor, or between two steps.

Not here: the choice of donors (core/quorum.py), how it is served (checkpoint/serve.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from ftrun.core.ids import StateId, Tag
from ftrun.core.worker import events as e
from ftrun.core.worker.quorums import Quorums


class StateOffer:
    """The state that is offered now, if any.

    Attributes:
        keeps_state: the state is kept between two steps; see ``StateKept``.
        trained_with: the keys of the members when a step began last.
    """

    def __init__(self) -> None:
        self.keeps_state = False
        self.trained_with: frozenset[tuple[str, str]] = frozenset()
        self._tag: Tag | None = None

    def offer(self, tag: Tag, state: StateId, quorums: Quorums) -> Iterable[e.Instruction]:
        """As a donor in a step: offer the state for ``tag``, in place of the one before."""
        quorum = quorums.in_force
        if quorum is not None and quorums.is_donor(quorum):
            yield from self._offer(tag, state, len(quorum.newcomers))

    def offer_kept(self, state: StateId, quorums: Quorums) -> Iterable[e.Instruction]:
        """Offer the state that is kept between two steps to replicas that have lost the last step.

        A newcomer is not served, because it also needs the place of the next step. It waits for
        that, even if the same quorum has a replica that is served.
        """
        quorum = quorums.in_force
        if not self.keeps_state or quorum is None or not quorums.is_unentered:
            return
        if quorums.is_donor(quorum) and quorum.state == state:
            wanting = [x.key for x in quorum.members if x.replica_id in quorum.newcomers]
            served = self.trained_with.intersection(wanting)
            if served:
                tag = Tag(quorum.attempt, quorum.first_step)
                yield from self._offer(tag, state, len(served), kept=True)

    def _offer(
        self, tag: Tag, state: StateId, receivers: int, *, kept: bool = False
    ) -> Iterable[e.Instruction]:
        yield from self.retire()
        self._tag = tag
        yield e.OfferState(tag, state, receivers, kept)

    def retire(self) -> Iterable[e.Instruction]:
        """Offer nothing more."""
        if self._tag is not None:
            yield e.RetireState(self._tag)
            self._tag = None
