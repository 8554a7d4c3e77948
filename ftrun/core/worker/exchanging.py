"""One exchange under way, of one worker: which member to ask next, and when it is over. Pure.

The caller asks ``next`` what to do, does it, reports the outcome, and asks again, until ``next``
returns None. It may ask at any time, because the knowledge about its peers changes. An answer to a
question that is out of date is dropped. The members of the quorum in force take part.

Not here: the rules of an exchange and its name (exchange.py); sockets, waiting and deadlines
(training/exchanges.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from ftrun.core.ids import Attempt, WorkerKey, replica_order
from ftrun.core.quorum import Member
from ftrun.core.worker import asking, exchange

UNREACHED_S = 5.0
"""How long a member may be unreachable before the quorum is given up.

The member may have left at once, and the lighthouse waits for this worker to reach the step of a
switch.
"""


class Exchanging:
    """One exchange of one worker.

    Args:
        key: this worker's.
        name: the exchange's.
        own: this worker's contribution, unless a predecessor of its slot has contributed.

    Attributes:
        is_void: this worker's step is void, or it was left out of its quorum. Its result is its own
            value alone, because it meets the others at its next boundary, not before.
    """

    def __init__(
        self,
        key: WorkerKey,
        name: exchange.ExchangeName,
        own: exchange.Contribution,
        kept: exchange.Kept,
    ) -> None:
        self.is_void = False
        self._key, self._name, self._own, self._kept = key, name, own, kept
        self._peeking: exchange.Round | None = None
        self._round = exchange.Round(key.replica_id)
        self._has_come = False
        self._lost = ""
        self._lost_since: tuple[Attempt, str, float] | None = None

    def is_over(self) -> None:
        """The caller has the result, or does not wait any more."""
        self._kept.waits_no_longer()

    @property
    def judgement(self) -> exchange.Judgement:
        """The contributions that count, once the exchange is complete."""
        if self.is_void:
            return exchange.Judgement((self._own,))
        return exchange.judge(self._own, self._kept.under(self._name))

    @property
    def open(self) -> tuple[str, ...]:
        """The replicas whose answers are missing, as far as they are known."""
        this_round = self._round if self._peeking is None else self._peeking
        return tuple(sorted(this_round.open, key=replica_order))

    def next(self, known: asking.Known) -> asking.NextMove | None:
        """The next move; None: the exchange is complete."""
        kept, quorum = self._kept, known.quorum
        self.is_void = self.is_void or known.is_alone
        if self.is_void:
            kept.waits_no_longer()
            return None
        attempt = quorum.attempt if quorum is not None else None
        members = {x.replica_id: x for x in quorum.members} if quorum is not None else {}
        kept.note_gaps(known.gaps)
        if not self._has_come:
            self._come(known)
        elif self._peeking is None and kept.has_taken_back(self._name):
            self._peeking = exchange.Round(self._key.replica_id)
        if self._peeking is not None:
            self._peeking.begin(attempt, members)
            if not self._peeking.is_complete:
                return self._ask(self._peeking, members, known, peeks=True)
            self._decide(gives=not kept.under(self._name))
        self._round.begin(attempt, members)
        if self._round.is_complete:
            kept.waits_no_longer()
            return None
        return self._ask(self._round, members, known)

    def answered(
        self, ask: asking.AskPeer, found: Sequence[exchange.Contribution], known: asking.Known
    ) -> None:
        """A peer has answered: keep the answer, unless the question is out of date (E1)."""
        quorum = known.quorum
        self._lost_since = None
        if quorum is None or quorum.attempt != ask.question.attempt:
            return  # an answer of a quorum that is over must not be kept
        this_round = self._peeking if ask.question.how == exchange.PEEKS else self._round
        if this_round is not None and this_round.answered(ask.question.attempt, ask.replica_id):
            self._kept.add(self._name, found)

    def failed(self, ask: asking.AskPeer, *, reached: bool) -> None:
        """A peer has not answered. ``reached``: it has not reached this exchange yet."""
        if reached:
            self._lost_since = None
        else:
            self._lost = ask.replica_id

    def _awaits(self, replica_id: str, attempt: Attempt) -> bool:
        this_round = self._round
        has_begun = this_round.attempt is not None and this_round.attempt >= attempt
        return not has_begun or replica_id in this_round.open

    def _come(self, known: asking.Known) -> None:
        self._has_come = True
        self._kept.come_to(self._name)
        if self._is_late(known):
            self._peeking = exchange.Round(self._key.replica_id)
            self._kept.begins_to_peek(self._name)
        else:
            self._decide(gives=True)

    def _is_late(self, known: asking.Known) -> bool:
        """Peers may have completed this exchange, or have this worker's answer "nothing"."""
        return self._name.step <= known.late_to or self._kept.has_declined(self._name)

    def _decide(self, *, gives: bool) -> None:
        self._peeking = None
        if gives:
            self._kept.give(self._name, self._own)
            self._kept.waits(self._name, self._awaits)
        self._kept.has_decided(self._name, reads=not gives)

    def _ask(
        self,
        this_round: exchange.Round,
        members: dict[str, Member],
        known: asking.Known,
        *,
        peeks: bool = False,
    ) -> asking.NextMove:
        attempt = this_round.attempt
        if attempt is None:
            return asking.AwaitQuorum()
        lost, self._lost = self._lost, ""
        if lost in this_round.open:
            if self._lost_since is None or self._lost_since[:2] != (attempt, lost):
                self._lost_since = (attempt, lost, known.now)
            if known.now - self._lost_since[2] >= UNREACHED_S:
                self._lost_since = None
                return asking.GiveUpQuorum(attempt, lost)
            return asking.AwaitChange(lost)
        replica_id = min(this_round.open, key=replica_order)
        endpoint = members[replica_id].endpoints[self._key.group_rank]
        own = self._key.replica_id
        if peeks:
            own = "" if self._kept.has_declined(self._name) else own
            how = exchange.PEEKS
        else:
            how = exchange.IN_STEP if known.in_step else exchange.ASKS
        question = exchange.ExchangeQuestion(self._name, attempt, own, how=how)
        return asking.AskPeer(replica_id, endpoint, question)
