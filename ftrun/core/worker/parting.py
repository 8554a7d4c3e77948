"""The end of a script: when a worker may leave, so that all leave together. Pure.

Theory of operation. A replica that dies in the last second must heal from a peer, so all leave
together. Each worker shows a *stage*: it is at the end (HERE); it knows that all wanted replicas
are (KNOWS); it may leave (LEAVES). It asks its counterparts in the other replicas for their stages.
A worker that KNOWS has asked all others, so a peer that reads this in its answer KNOWS too. A
worker may leave once all wanted replicas know, or their part in the job is over: then no worker
waits for one that has left. The workers of one replica leave together, because each is the only one
that its counterparts can heal from.

A stage is a fact about one process until that process ends, whichever quorum is in force. So there
are no rounds. A process that has died since is not in the quorum any more: its slot has another
incarnation there, or the same one at another address, because a process was replaced inside its
group. The slot is waited for again, unless the dead process had reached KNOWS. (If one of the last
workers dies while they leave, its death may go unseen.)

All of them have also reported to the lighthouse their parameters after the last step. A worker
KNOWS only once these are compared: a replica whose memory has altered some is replaced, and heals
from those that stay (core/lighthouse/divergence.py). If the result is not there within
``COMPARED_WITHIN_S``, they leave without it, because there may be no lighthouse to compare.

A script may also end in one replica while its peers continue: one rank has left the loop. Such a
peer waits in a reduction or an exchange for this worker, and this worker waits at the end for such
a peer. This worker learns of it when a peer asks about an exchange which it will not reach, or when
a peer that trains answers so. The answer states where the peer trains: from the very state that
this worker holds, or from a later one. Then this worker leaves alone, *early*, and the lighthouse
lets its mates leave too. A peer that is merely slower, in an evaluation for example, has no
reduction under way at this state and does not answer so. Nor does one that has just healed to it,
because its script may be at its end.

Meanwhile the worker is in a step that no replica commits. Under each quorum it reports to the
lighthouse that it reaches no later step, so that others join at this one.

Not here: waiting (training/lingering.py); sockets (training/exchanges.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TypeAlias

from ftrun.core.ids import Attempt, StateId, WorkerKey, replica_order
from ftrun.core.messages import Roster
from ftrun.core.quorum import Endpoint, Quorum
from ftrun.core.worker import exchange
from ftrun.core.worker.asking import AskLighthouse, AskPeer
from ftrun.core.worker.machine import StepMachine
from ftrun.core.worker.under_way import Fate

TRAINS = b"trains"
"""The answer of a peer that still trains; it has the step and the lineage of the peer's state."""
AGAIN_S, UNREACHED_S = 0.05, 1.0
"""The pause before the next question to a peer: one that has not reached the stage, and one that
was unreachable.
"""
COMPARED_WITHIN_S = 10.0
LOOK_EVERY_S = 1.0
"""The pause between two questions to the lighthouse for the slots whose part in the job is over."""


class Stage(IntEnum):
    """How far a worker has come at the end of its script."""

    HERE = 0
    KNOWS = 1
    LEAVES = 2


class Do(Enum):
    """The moves of a worker at the end, apart from questions.

    ``BEGIN``: begin the step; a newcomer heals first. ``HEAL``: load the peers' state, in the step.
    ``END_TRY``: end the step under way without a commit. ``TELL``: report progress at once.
    """

    BEGIN = "begin"
    HEAL = "heal"
    END_TRY = "end the try"
    TELL = "tell"


@dataclass(frozen=True, slots=True)
class Stay:
    """Wait until the quorum changes, or until that time."""

    until: float


PartingMove: TypeAlias = AskPeer | AskLighthouse | Do | Stay
"""``AskLighthouse``: ask for the slots whose part in the job is over."""


class ShownStage:
    """The stage that a worker shows its peers, and the state with which its script has ended.

    ``mates``: the group ranks of this replica to which this worker has answered LEAVES.
    ``wanted_by``: a replica that waits for this worker at a place which its script will not reach;
    "": none is known.
    """

    def __init__(self) -> None:
        self.state: StateId | None = None
        self.stage: Stage | None = None
        self.mates: set[str] = set()
        self.wanted_by = ""

    def asked_in_vain(self, question: exchange.ExchangeQuestion, in_force: Attempt | None) -> None:
        """A peer waits for this worker's value in an exchange that it may never reach."""
        state, asks = self.state, question.how in (exchange.ASKS, exchange.IN_STEP)
        if self.stage is None or state is None or question.name.step < state.step:
            return
        if asks and exchange.may_answer(question.attempt, in_force):
            self.wanted_by = question.of

    def answer(
        self,
        key: WorkerKey,
        question: exchange.ExchangeQuestion,
        trains_from: StateId | None = None,
    ) -> list[exchange.Contribution] | None:
        """The answer to a peer; None: this worker has not reached that stage, at that step.

        ``trains_from``: the state from which it trains a step now (``StepMachine.trains_from``).
        """
        state, stage = self.state, self.stage
        if trains_from is not None and trains_from.step >= question.name.step:
            found = str(trains_from.step), trains_from.lineage
            return [exchange.Contribution(key.replica_id, *found, TRAINS)]
        if state is None or stage is None or question.name.step != state.step:
            return None
        if stage < question.name.index:
            return None
        if question.of == key.replica_id and stage is Stage.LEAVES:
            self.mates.add(question.by)
        return [exchange.Contribution(key.replica_id, "", state.lineage, str(stage.value).encode())]


@dataclass(slots=True)
class _Peer:
    """One process that is asked. ``stage``: its last answer; None: there is no answer."""

    incarnation: str
    endpoint: Endpoint
    stage: Stage | None = None
    again_at: float = 0.0

    def has_come_to(self, stage: Stage) -> bool:
        return self.stage is not None and self.stage >= stage


class Parting:
    """The end of one worker's script.

    Args:
        machine: this worker's.
        replicas: the number of replicas in the job.
        shown: the stage that this worker shows.
    """

    def __init__(self, machine: StepMachine, replicas: int, shown: ShownStage) -> None:
        self._machine = machine
        self._key = machine.key
        self._replicas = replicas
        self._shown = shown
        self._over: frozenset[str] = frozenset()
        self._look_at = 0.0
        self._others: dict[str, _Peer] = {}  # by slot
        self._mates: dict[str, _Peer] = {}  # by rank
        self._members: dict[str, str] = {}  # of the last quorum in which it held its peers' state
        self._has_asked = False  # since the last begin or end of a step
        self.gone_on = ""
        """A replica that continues from this worker's state; this worker then leaves early."""
        self._told: Attempt | None = None  # the attempt of the last ``Do.TELL``
        self._compared = ""  # the lineage of the state at which all ends were judged
        self._awaits_since: float | None = None  # since when it waits for that judgement alone
        self.is_compared = True
        """False: it leaves although the replicas' ends were not compared in time."""

    # ------------------------------------------------------------ answers

    def are_over(self, roster: Roster | None, now: float) -> None:
        """The lighthouse has answered with the slots whose part in the job is over, or not at all.

        If this slot is among those that have left early, a mate has found out that others continue.
        """
        self._look_at = now + (LOOK_EVERY_S if self._awaits_since is None else AGAIN_S)
        if roster is not None:
            self._compared = roster.compared
            self._over = self._over.union(roster.finished)
            if self._key.replica_id in roster.early:
                self.gone_on = self._key.replica_id

    def answered(self, ask: AskPeer, found: Sequence[exchange.Contribution], now: float) -> None:
        """A peer has answered with its stage.

        If it holds another state of the same step, its stage does not count: one of both must heal.
        """
        state, its = self._shown.state, found[0]
        told = {str(stage.value).encode(): stage for stage in Stage}.get(its.body)
        if state is not None and its.body == TRAINS and _is_from(its, state):
            self.gone_on = ask.replica_id
        if state is None or told is None or its.what != state.lineage:
            self.failed(ask, now, reached=True)
            return
        for peer in self._asked(ask):
            peer.stage = told

    def failed(self, ask: AskPeer, now: float, *, reached: bool) -> None:
        """A peer has not reached the stage, or was unreachable because it has died or has left.

        An unreachable mate has left if this worker had answered it with LEAVES.
        """
        for peer in self._asked(ask):
            peer.again_at = now + (AGAIN_S if reached else UNREACHED_S)
        heard = [self._mates.get(rank) for rank in self._shown.mates]
        for mate in heard:
            if not reached and mate is not None and mate.endpoint == ask.endpoint:
                mate.stage = Stage.LEAVES

    # ------------------------------------------------------------ what comes next

    @property
    def awaited(self) -> list[str]:
        """The slots whose workers have not reached the stage that this worker needs."""
        slots = sorted(map(str, range(self._replicas)), key=replica_order)
        return [slot for slot in slots if slot not in self._done and slot != self._key.replica_id]

    def next(self, now: float) -> PartingMove | None:
        """The next move at ``now``, in seconds; None: this worker may leave, or must (early)."""
        self.gone_on = self.gone_on or self._shown.wanted_by
        if self.gone_on:
            return None
        machine, quorum = self._machine, self._machine.in_force
        stands = machine.fate is Fate.OPEN and quorum is not None and not machine.healing
        stands = stands and not machine.freezes_membership  # others must be able to join
        if stands and quorum is not None:
            self._stand_in(quorum)
        if self._stage is Stage.HERE and (self._is_told or self._are_judged(now)):
            self._shown.stage = Stage.KNOWS
        if now >= self._look_at:
            return AskLighthouse(anew=True)
        if self._stage is Stage.KNOWS and self._are_enough:
            self._shown.stage = Stage.LEAVES
        if self._stage is Stage.LEAVES and not self._open_mates:
            return None
        if stands and quorum is not None and quorum.attempt != self._told:
            self._told = quorum.attempt
            return Do.TELL
        ask = self._ask(now)
        if ask is not None and (stands or not self._has_asked):
            self._has_asked = True  # a peer that is gone must not keep it from the next quorum
            return ask
        self._has_asked = False
        if stands:
            return Stay(min([self._look_at, *(peer.again_at for _, peer in self._to_ask)]))
        if not machine.in_step:
            return Do.BEGIN
        is_newcomer = machine.healing and machine.fate is Fate.OPEN
        return Do.HEAL if is_newcomer else Do.END_TRY

    # ------------------------------------------------------------ inside

    @property
    def _stage(self) -> Stage | None:
        return self._shown.stage

    def _stand_in(self, quorum: Quorum) -> None:
        """This worker holds its peers' state, in ``quorum``."""
        self._machine.lingers = True
        rank = self._key.group_rank
        for member in quorum.members:
            if member.replica_id != self._key.replica_id:
                _note(self._others, member.replica_id, member.incarnation, member.endpoints[rank])
                continue
            for other, endpoint in enumerate(member.endpoints):
                if other != rank:
                    _note(self._mates, str(other), member.incarnation, endpoint)
        self._members = {x.replica_id: x.incarnation for x in quorum.members}
        if self._shown.state != self._machine.state:
            self._shown.state, self._shown.stage = self._machine.state, Stage.HERE
            for peer in [*self._others.values(), *self._mates.values()]:
                peer.stage = None

    @property
    def _open_mates(self) -> list[_Peer]:
        return [mate for mate in self._mates.values() if not mate.has_come_to(Stage.LEAVES)]

    @property
    def _done(self) -> frozenset[str]:
        """The other slots whose part is over, or whose workers have reached the stage that is
        needed.
        """
        goal = Stage.HERE if self._stage is None else min(self._stage, Stage.KNOWS)
        come = [slot for slot in self._others if self._has_come(slot, goal)]
        return (self._over - {self._key.replica_id}).union(come)

    @property
    def _are_enough(self) -> bool:
        return len(self._done) >= self._replicas - 1

    def _are_judged(self, now: float) -> bool:
        """Whether all are here, and their parameters were compared or the comparison takes too
        long.
        """
        state, shows = self._machine.state, self._machine.ended_with is not None
        if not self._are_enough or not shows or self._compared == state.lineage:
            self._awaits_since = None
            return self._are_enough
        if self._awaits_since is None:
            self._awaits_since = self._look_at = now
        self.is_compared = now < self._awaits_since + COMPARED_WITHIN_S
        return not self.is_compared

    @property
    def _to_ask(self) -> list[tuple[str, _Peer]]:
        if self._stage is Stage.LEAVES:
            return [(self._key.replica_id, mate) for mate in self._open_mates]
        done = self._done
        slots = sorted(self._others, key=replica_order)
        return [(slot, self._others[slot]) for slot in slots if slot not in done]

    def _ask(self, now: float) -> AskPeer | None:
        # In turn: a question takes longer than the pause after it, so the first peer would stay
        # due.
        for slot, peer in sorted(self._to_ask, key=lambda one: one[1].again_at):
            state = self._shown.state
            if self._stage is not None and state is not None and now >= peer.again_at:
                name = exchange.ExchangeName(state.step, int(self._stage), exchange.Kind.STAGE)
                own = self._key
                question = exchange.ExchangeQuestion(
                    name, of=own.replica_id, by=str(own.group_rank)
                )
                return AskPeer(slot, peer.endpoint, question)
        return None

    def _has_come(self, slot: str, stage: Stage) -> bool:
        peer = self._others[slot]
        is_member = self._members.get(slot) == peer.incarnation
        return peer.has_come_to(max(stage, Stage.HERE if is_member else Stage.KNOWS))

    @property
    def _is_told(self) -> bool:
        """Whether a peer knows that all are here."""
        return any(peer.has_come_to(Stage.KNOWS) for peer in self._others.values())

    def _asked(self, ask: AskPeer) -> list[_Peer]:
        """The peer that was asked; none: another process has taken its slot since."""
        peers = [*self._others.values(), *self._mates.values()]
        return [peer for peer in peers if peer.endpoint == ask.endpoint]


def _is_from(trains: exchange.Contribution, state: StateId) -> bool:
    """Whether a peer that still trains does so from ``state``, or from a later step."""
    return trains.what == state.lineage or trains.site != str(state.step)


def _note(peers: dict[str, _Peer], name: str, incarnation: str, endpoint: Endpoint) -> None:
    known = peers.get(name)
    if known is None or (known.incarnation, known.endpoint) != (incarnation, endpoint):
        peers[name] = _Peer(incarnation, endpoint)
