"""One exchange under way, of one worker: whom to ask next, what to keep, when it is over. Pure.

The caller asks ``next`` what to do, does it, reports the outcome, and asks again, until ``next``
has nothing left. It may ask at any time, because the knowledge about its peers changes. An answer
to a question that does not count any more is dropped.

Before the first step the lighthouse's Roster lists the replicas that take part. Replicas that
train have exchanged already: a later replica reads what one of them keeps, and gives nothing.
Between two steps the members of the quorum in force take part.

Not here: the rules of an exchange and its name (exchange.py); sockets, waiting and deadlines
(training/exchanges.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from ftrun.core.ids import Attempt, WorkerKey, replica_order
from ftrun.core.messages import Roster, RosterEntry
from ftrun.core.quorum import Member
from ftrun.core.worker.asking import (
    AskLighthouse,
    AskPeer,
    AwaitChange,
    AwaitQuorum,
    GiveUpQuorum,
    Known,
    NextMove,
)
from ftrun.core.worker.exchange import (
    ASKS,
    IN_STEP,
    PEEKS,
    SET_UP,
    Contribution,
    ExchangeName,
    ExchangeQuestion,
    Judgement,
    Kept,
    Round,
    judge,
)

UNREACHED_S = 5.0
"""How long a member may not be reached before the quorum is given up: it may have left at once,
and the lighthouse waits for this worker to come to the step of a switch."""


class Exchanging:
    """One exchange of one worker.

    Args:
        key: of this worker.
        name: of the exchange.
        own: what this worker gives, unless a predecessor of its slot has given something.
        kept: of this worker.

    Attributes:
        is_void: this worker's step is void, or it was left out of its quorum: it gets its own
            value, because it meets the others at its next boundary, and not before.
        alone_with: the replica that trains and has had no such exchange before its first step, or
            "". With such a replica this worker's own value is the result.
    """

    def __init__(
        self,
        key: WorkerKey,
        name: ExchangeName,
        own: Contribution,
        kept: Kept,
    ) -> None:
        self.name = name
        self.own = own
        self.alone_with = ""
        self.is_void = False
        self._key = key
        self._kept = kept
        if name.step == SET_UP:
            self._talk: _InSetUp | _BetweenSteps = _InSetUp(self)
        else:
            self._talk = _BetweenSteps(self)

    def next(self, known: Known) -> NextMove | None:
        """The next move; None: the exchange is complete."""
        return self._talk.next(known)

    def answered(self, ask: AskPeer, found: Sequence[Contribution], known: Known) -> None:
        """A peer has answered: keep it, unless the question does not count any more (E1)."""
        self._talk.answered(ask, found, known)

    def failed(self, ask: AskPeer, *, reached: bool) -> None:
        """A peer has not answered. ``reached``: because it has not come to this place yet."""
        self._talk.failed(ask, reached=reached)

    def is_over(self) -> None:
        """The caller has the result, or waits no longer."""
        self._kept.waits_no_longer()

    @property
    def judgement(self) -> Judgement:
        """Which contributions count, once the exchange is complete."""
        if self.is_void:
            return Judgement((self.own,))
        return judge(self.own, self._kept.under(self.name))

    @property
    def open(self) -> tuple[str, ...]:
        """The replicas whose answers are missing, as far as they are known."""
        return tuple(sorted(self._talk.open, key=replica_order))

    # ------------------------------------------------------------ for the two kinds

    @property
    def key(self) -> WorkerKey:
        """Of this worker."""
        return self._key

    @property
    def kept(self) -> Kept:
        """The contributions that this worker keeps."""
        return self._kept

    def give(self) -> None:
        """Keep this worker's value: from now on peers get it."""
        self._kept.give(self.name, self.own)


class _InSetUp:
    """An exchange before the first step."""

    def __init__(self, exchanging: Exchanging) -> None:
        self._of = exchanging
        self._roster: Roster | None = None
        self._is_lost = False
        self._peers: dict[str, RosterEntry] = {}
        self._to_read: set[str] = set()  # those that train, or that may know the predecessor's
        self._has_given = False
        self._is_read = False
        self.open: set[str] = set()

    def next(self, known: Known) -> NextMove | None:
        of, kept = self._of, self._of.kept
        if self._is_read:
            return None
        if known.roster is None:
            kept.roster_asked()
            return AskLighthouse()
        if known.roster is not self._roster:
            self._adopt(known.roster)
        if self._is_stale():
            self._roster = None
            kept.roster_asked()
            return AskLighthouse(anew=True)
        if known.roster.has_begun:
            return self._ask(min(self._to_read, key=replica_order), ExchangeQuestion(of.name))
        slot = of.key.replica_id
        if not self._has_given:
            if self._to_read:
                question = ExchangeQuestion(of.name, of=slot, by=of.key.incarnation)
                return self._ask(min(self._to_read, key=replica_order), question)
            of.give()
            self._has_given = True
        if not self.open:
            return None
        return self._ask(min(self.open, key=replica_order), ExchangeQuestion(of.name))

    def answered(self, ask: AskPeer, found: Sequence[Contribution], known: Known) -> None:
        of = self._of
        if known.roster is not self._roster or self._is_stale() or self._roster is None:
            return
        if self._roster.has_begun:
            self._is_read = True
            of.kept.add(of.name, found)
            if not found:
                of.alone_with = ask.replica_id
                of.give()
            return
        of.kept.add(of.name, found)
        if ask.question.of:
            self._to_read.discard(ask.replica_id)
        else:
            self.open.discard(ask.replica_id)

    def failed(self, ask: AskPeer, *, reached: bool) -> None:
        """Of those that train, any other one will do. Else all have to answer."""
        if self._roster is None:
            return
        if self._roster.has_begun:
            self._to_read.discard(ask.replica_id)
        elif not reached:
            self._is_lost = True

    def _adopt(self, roster: Roster) -> None:
        slot = self._of.key.replica_id
        self._roster, self._is_lost = roster, False
        self._peers = {x.replica_id: x for x in roster.entries if x.replica_id != slot}
        self._to_read = set(self._peers)
        self.open = set(self._peers)

    def _is_stale(self) -> bool:
        """Whether a peer was not reached, or has been started again, or none is left to read."""
        roster = self._roster
        if roster is None or self._is_lost or (roster.has_begun and not self._to_read):
            return True
        return any(
            self._of.kept.asked_by(x.replica_id) - {x.incarnation} for x in self._peers.values()
        )

    def _ask(self, replica_id: str, question: ExchangeQuestion) -> AskPeer:
        endpoints = self._peers[replica_id].endpoints
        return AskPeer(replica_id, endpoints[self._of.key.group_rank], question)


class _BetweenSteps:
    """An exchange of the members of the quorum in force."""

    def __init__(self, exchanging: Exchanging) -> None:
        self._of = exchanging
        self._peeking: Round | None = None
        self._round = Round(exchanging.key.replica_id)
        self._has_come = False
        self._lost = ""
        self._lost_since: tuple[Attempt, str, float] | None = None

    @property
    def open(self) -> set[str]:
        return self._round.open if self._peeking is None else self._peeking.open

    def next(self, known: Known) -> NextMove | None:
        of, quorum = self._of, known.quorum
        of.is_void = of.is_void or known.is_alone
        if of.is_void:
            return None
        attempt = quorum.attempt if quorum is not None else None
        members = {x.replica_id: x for x in quorum.members} if quorum is not None else {}
        of.kept.note_gaps(known.gaps)
        if not self._has_come:
            self._come(known)
        elif self._peeking is None and of.kept.has_taken_back(of.name):
            self._peeking = Round(of.key.replica_id)
        if self._peeking is not None:
            self._peeking.begin(attempt, members)
            if not self._peeking.is_complete:
                return self._ask(self._peeking, members, known, peeks=True)
            self._decide(gives=not of.kept.under(of.name))
        self._round.begin(attempt, members)
        if self._round.is_complete:
            of.kept.waits_no_longer()
            return None
        return self._ask(self._round, members, known)

    def _awaits(self, replica_id: str, attempt: Attempt) -> bool:
        this_round = self._round
        has_begun = this_round.attempt is not None and this_round.attempt >= attempt
        return not has_begun or replica_id in this_round.open

    def _come(self, known: Known) -> None:
        of, self._has_come = self._of, True
        of.kept.come_to(of.name)
        if self._is_late(known):
            self._peeking = Round(of.key.replica_id)
            of.kept.begins_to_peek(of.name)
        else:
            self._decide(gives=True)

    def _is_late(self, known: Known) -> bool:
        """Peers may have completed this exchange, or know that this worker gives nothing."""
        name = self._of.name
        return name.step <= known.late_to or self._of.kept.has_declined(name)

    def _decide(self, *, gives: bool) -> None:
        self._peeking = None
        if gives:
            self._of.give()
            self._of.kept.waits(self._of.name, self._awaits)
        self._of.kept.has_decided(self._of.name, reads=not gives)

    def answered(self, ask: AskPeer, found: Sequence[Contribution], known: Known) -> None:
        of, quorum = self._of, known.quorum
        self._lost_since = None
        if quorum is None or quorum.attempt != ask.question.attempt:
            return  # an answer of a quorum that is over must not be kept
        this_round = self._peeking if ask.question.how == PEEKS else self._round
        if this_round is not None and this_round.answered(ask.question.attempt, ask.replica_id):
            of.kept.add(of.name, found)

    def failed(self, ask: AskPeer, *, reached: bool) -> None:
        if reached:
            self._lost_since = None
        else:
            self._lost = ask.replica_id

    def _ask(
        self, this_round: Round, members: dict[str, Member], known: Known, *, peeks: bool = False
    ) -> NextMove:
        attempt = this_round.attempt
        if attempt is None:
            return AwaitQuorum()
        lost, self._lost = self._lost, ""
        if lost in this_round.open:
            if self._lost_since is None or self._lost_since[:2] != (attempt, lost):
                self._lost_since = (attempt, lost, known.now)
            if known.now - self._lost_since[2] >= UNREACHED_S:
                self._lost_since = None
                return GiveUpQuorum(attempt, lost)
            return AwaitChange(lost)
        replica_id = min(this_round.open, key=replica_order)
        endpoint = members[replica_id].endpoints[self._of.key.group_rank]
        own = self._of.key.replica_id
        if peeks:
            own = "" if self._of.kept.has_declined(self._of.name) else own
            how = PEEKS
        else:
            how = IN_STEP if known.in_step else ASKS
        question = ExchangeQuestion(self._of.name, attempt, own, how=how)
        return AskPeer(replica_id, endpoint, question)
