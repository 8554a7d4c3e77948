"""One worker's step: promise, interrupt, repair, heal, commit. Pure; runs under the step lock.

The main thread walks IDLE → WAITING (start_quorum) → STEPPING (forward, backward) → VOTING
(should_commit, groups of several workers only) → IDLE. Messages and results arrive at any time.
The step under way has a *fate*:

| fate                 | means                                      | left by                      |
|----------------------|--------------------------------------------|------------------------------|
| OPEN                 | its quorum is in force                     | an interrupt; an error       |
| INTERRUPTED          | the next quorum decides                    | NewQuorum → STANDS, REPAIR,  |
|                      |                                            | VOID                         |
| INTERRUPTED_COMPLETE | the same; its results were complete        | the same                     |
| STANDS               | its results are complete; peers rely on it | an interrupt; one more       |
|                      |                                            | operation → VOID             |
| REPAIR               | goes out again when the next group is built| GroupBuilt → OPEN; an        |
|                      |                                            | interrupt                    |
| VOID                 | will not be committed                      | Decided                      |

``Decided`` ends a step of any fate. under_way.py asserts the other transitions.

Rules that the rest relies on:
- An attempt that was given up (``interrupted``) has no effect any more: completions, builds and
  heals under it change nothing (C3, Q2).
- Only ``Decided`` commits a step, under the tag under which its operations completed.
- Results that were handed to the script never change. A step that handed out some results before
  all were complete cannot be repaired: it stands or becomes void (S7).
- If a step is not committed although its quorum is in force, this worker gives the quorum up
  (``Errored``), because its peers may have gone on.
- A quorum that forms or shrinks is in force as soon as it is built, even while a step that stands
  or is void is being finished. A switch waits for its boundary.
- Writing a heal over the script's own state makes that state *torn* until a heal is applied. The
  worker neither trains from a torn state nor gives it to peers, and reports that it holds none.
  Only the state that the worker started with is written over, because a restart brings it back.
  A worker that has held the job's state keeps it (C6).
- Isolation gives up every attempt. After it only a quorum decides whether results stand (Q3).
- Mates, the workers of one replica group, do not know each other's fate. With W > 1 they repair
  only if all of them can, because one that cannot would leave its mates waiting in the vote. The
  quorum's ``recomputes`` lists the groups that must not repair.
- A step that a true vote decided is committed even if an interrupt follows the vote, because a
  mate may have committed already (C1).
- An operation that is *refused* is no failure of a member (C8). The step becomes void here, and the
  Report says why, so that the next quorum makes it void at all members that have not completed it.

Not here: threads, sockets, tensors (training/); the choice of members
(core/lighthouse/membership.py); the records of quorums (quorums.py) and of the step under way
(under_way.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from typing import Any

from ftrun.core import messages as m
from ftrun.core.activity import FOR_PEERS, LONG_S, Activity
from ftrun.core.ids import Attempt, StateId, Tag, WorkerKey
from ftrun.core.quorum import Endpoint, Member, Quorum, contributors
from ftrun.core.step_times import StepTimes
from ftrun.core.worker import events as e
from ftrun.core.worker.comparison import Comparisons, Entry, Question
from ftrun.core.worker.heal import HealState
from ftrun.core.worker.lease import WorkerLease
from ftrun.core.worker.pace import Pace
from ftrun.core.worker.quorums import Pending, Quorums
from ftrun.core.worker.shown import ShownActivity
from ftrun.core.worker.under_way import Fate, StepUnderWay

STORY_LINES_MAX = 64
OWED_MAX = 64
GROUP_TIMEOUT_S = 5.0
"""Seconds that a rank with a void step waits in the vote before it ends its mates' quorum."""

NOBODY_JOINS = "the script lets nobody join at this step"
ALIKE = (
    "All replicas must reduce the same tensors in the same order. This replica ends, before it "
    "disturbs the others"
)

__all__ = ["NOBODY_JOINS", "STORY_LINES_MAX", "Fate", "StepMachine", "StepPhase"]


class StepPhase(Enum):
    """Where the main thread is."""

    IDLE = "idle"
    WAITING = "waiting"
    STEPPING = "stepping"
    VOTING = "voting"
    LEFT = "left"


class StepMachine:
    """The decisions of one worker. Feed it events, carry out its instructions in order.

    Args:
        key: this worker's identity.
        endpoint: the addresses at which its peers reach it.
        state: the state that it starts with.
        workers_per_replica: W; with W > 1 a commit needs the group's vote.
        repair: reissue operations after an interrupt instead of discarding the step.
        heal_first: newcomers heal before their forward pass (synchronous quorum).
        contributors_max: members beyond it are spares (``FIXED_WITH_SPARES``); None: no limit.
        contributors_min: with fewer, no replica commits, and the step is repeated. ``tells_min``:
            the lighthouse is told, and forms no smaller quorum.
        operation_timeout_s: seconds after which an outstanding operation is an error.
        quorum_timeout_s: seconds that a step waits for the next quorum's verdict.
        results_timeout_s: seconds after which no further attempt is made to get a step's results,
            unless a member has announced a pause; None: there is no end to it.
        is_known_when_issued: see ``Pace``.
    """

    def __init__(
        self,
        key: WorkerKey,
        endpoint: Endpoint,
        state: StateId,
        *,
        workers_per_replica: int = 1,
        repair: bool = True,
        heal_first: bool = False,
        contributors_max: int | None = None,
        contributors_min: int = 1,
        tells_min: bool = True,
        operation_timeout_s: float = 60.0,
        quorum_timeout_s: float = 60.0,
        results_timeout_s: float | None = None,
        is_known_when_issued: bool = True,
    ) -> None:
        self.key = key
        self.endpoint = endpoint
        self._heal = HealState(state, heal_first)
        self._lease = WorkerLease()
        self.has_reported = False  # nothing is sent before the Report of the first step
        self.asks_for_peers = self.has_asked_for_peers = False
        self.sets_up_together = False
        """Its process groups are those of all replicas."""
        self.serves_between_steps = False
        """Its state is read by the training thread alone, so not in the middle of a step."""
        self._part: tuple[str, ...] = ()
        self.gaps = 0  # how often a quorum may have come and gone that had left this worker out
        self._adopted: Attempt | None = None
        self.begun = 0  # steps, also those that were not committed
        self.lingers = False  # the script has ended: this worker commits nothing more
        self.trains_between_steps = False  # by itself: DiLoCo's inner steps, for example
        self._quorums = Quorums(key)
        self._refused = ""  # why, in the attempt that was given up last
        self._failed: tuple[int, int, int] | None = None  # the operation that has failed last
        self._refused_tries = 0  # of the step that follows ``state``; see ``Report``
        # Tries of a step that peers have given up and that have not begun here, and why.
        self._owed: deque[tuple[int, str]] = deque(maxlen=OWED_MAX)
        self._step: StepUnderWay | None = None
        self._comparisons = Comparisons(key)
        self._too_few = 0  # steps in a row, under this quorum, with too few contributors
        self._too_few_since = 0.0
        self._between_steps = StepPhase.IDLE  # or WAITING or LEFT
        self._workers = workers_per_replica
        self._repair = repair
        self._contributors_max = contributors_max
        self.contributors_min = contributors_min
        self._tells_min = tells_min
        self._operation_timeout_s = operation_timeout_s
        self._quorum_timeout_s = quorum_timeout_s
        self._results_timeout_s = results_timeout_s
        self._offered: Tag | None = None
        self._keeps_state = False  # see StateKept
        self._peers_ended = False  # this newcomer has met peers that are at their end
        self._trained_with: frozenset[Member] = frozenset()  # the members when a step began last
        self._leaves_for: m.LeaveReason | None = None  # at the next boundary, by itself
        self._between_since = 0.0  # the start of the phase between steps
        self.shown = ShownActivity()
        self.step_times = StepTimes()
        self.pace = Pace(is_known_when_issued=is_known_when_issued)
        self._now = 0.0
        self._out: list[e.Instruction] = []
        self._story: deque[tuple[float, object]] = deque(maxlen=STORY_LINES_MAX)
        self._handlers = self._table()

    def _table(self) -> dict[type, Callable[[Any], None]]:
        return {
            e.BoundaryReached: self._on_boundary,
            e.OperationIssued: self._on_operation_issued,
            e.OperationsEnded: self._on_operations_ended,
            e.OperationAnswered: self._on_operation_answered,
            e.OperationCompleted: self._on_operation_completed,
            e.OperationFailed: self._on_operation_failed,
            e.OperationRefused: self._on_operation_refused,
            e.VoteStarted: self._on_vote_started,
            e.Decided: self._on_decided,
            e.OverwriteBegun: self._on_overwrite_begun,
            e.StateLoaded: self._on_state_loaded,
            e.StateApplied: self._on_state_applied,
            e.StateSpoiled: self._on_state_spoiled,
            e.StateReset: self._on_state_reset,
            e.HealFailed: self._on_heal_failed,
            e.GroupBuilt: self._on_group_built,
            e.GroupFailed: self._on_group_failed,
            e.WentAway: self._on_went_away,
            e.Ticked: self._on_ticked,
            m.Interrupt: self._on_interrupt,
            m.NewQuorum: self._on_new_quorum,
            m.Prepare: self._on_prepare,
            m.ProposeSwitch: self._on_propose,
            m.Switch: self._on_switch,
            m.Cancel: self._on_cancel,
            m.AskReport: self._on_ask_report,
            m.Roster: self._on_roster,
            e.PeersAsked: self._on_peers_asked,
            e.StateKept: self._on_state_kept,
            e.PeerUnreached: self._on_peer_unreached,
            m.Lease: self._on_lease,
            m.LeaveNow: self._on_leave_now,
        }

    # ------------------------------------------------------------ the shell's questions

    def handle(self, event: e.Event, now: float) -> list[e.Instruction]:
        """Take one event; the shell carries out the instructions in order, under the lock."""
        self._now = now
        self._out = []
        self._story.append((now, event))
        if self.phase is not StepPhase.LEFT:
            if self._lease.ends(now):  # Q3: a running agent would have sent a new one
                self._isolate()
            self._handlers[type(event)](event)
        return self._out

    def story(self) -> list[str]:
        """The last events, oldest first."""
        return [f"{when:.3f} {event}" for when, event in self._story]

    @property
    def state(self) -> StateId:
        """The state that the script holds."""
        return self._heal.state

    @property
    def has_committed(self) -> bool:
        """This process has committed a step."""
        return self._heal.has_committed

    @property
    def healing(self) -> bool:
        """The script does not hold the quorum's state yet."""
        return self._heal.healing

    @property
    def loaded(self) -> StateId | None:
        """The state that has arrived and is not applied yet."""
        return self._heal.loaded

    @property
    def torn(self) -> bool:
        """``state`` is half written over: there is nothing to save."""
        return self._heal.torn

    @property
    def isolated(self) -> bool:
        """No lighthouse has answered for the isolation limit: nothing may be committed (Q3)."""
        return self._lease.isolated

    @property
    def phase(self) -> StepPhase:
        """Where the main thread is."""
        if self._step is None:
            return self._between_steps
        return StepPhase.VOTING if self._step.is_voting else StepPhase.STEPPING

    @property
    def fate(self) -> Fate:
        """The fate of the step under way; VOID without a step: nothing is to be committed."""
        return self._step.fate if self._step is not None else Fate.VOID

    @property
    def tag(self) -> Tag | None:
        """The tag of the step under way."""
        return self._step.tag if self._step is not None else None

    @property
    def in_force(self) -> Quorum | None:
        """The quorum that this worker trains in."""
        return self._quorums.in_force

    @property
    def pending(self) -> Pending | None:
        """The quorum that this worker prepares."""
        return self._quorums.pending

    @property
    def interrupted(self) -> Attempt:
        """The highest attempt that this worker has given up."""
        return self._quorums.interrupted

    @property
    def seen(self) -> Attempt:
        """The highest attempt that this worker knows of."""
        return self._quorums.seen

    @property
    def in_step(self) -> bool:
        """A step is under way."""
        return self._step is not None

    @property
    def freezes_membership(self) -> bool:
        """Whether nobody may join at the step under way."""
        return self._quorums.freezes_membership

    @property
    def position(self) -> int:
        """The step that is under way, or else the next one."""
        return self._step.tag.step if self._step is not None else self.state.step

    @property
    def place(self) -> tuple[int | None, bool]:
        """``position``, and whether it is its peers'; None: no step has begun."""
        return (self.position, self.healing) if self.begun else (None, False)

    @property
    def is_alone(self) -> bool:
        """An exchange may wait for peers in vain, and its result does not count.

        The step under way is void; or this worker, in no quorum, has promised to join one at its
        next boundary.
        """
        if self._step is not None:
            return self._step.fate is Fate.VOID
        pending = self.pending
        return self.in_force is None and pending is not None and pending.promise is not None

    @property
    def is_set_up(self) -> bool:
        """The script has come to its first boundary: its set-up is over."""
        return self.begun > 0 or self.phase is not StepPhase.IDLE

    @property
    def late_to(self) -> int:
        """The step that this worker has healed to, has begun with, or has come back at.

        Its peers may have exchanged at that step, and at earlier ones, without it.
        """
        return self._heal.healed_to

    @property
    def heals_to(self) -> int | None:
        """The step whose state this worker is healing to; None: it holds its quorum's state."""
        is_healing = self.healing and self.in_force is not None
        return self.in_force.first_step if is_healing and self.in_force is not None else None

    @property
    def trains_from(self) -> StateId | None:
        """The state from which it trains, with its peers, the step under way; None: it does not.

        Not one to which it has just healed: its script may be on its way to the end.
        """
        step = self._step
        trains = step is not None and step.fate is Fate.OPEN and step.operations.issued > 0
        is_its_own = not self.healing and self.state.step > self._heal.given_at
        return self.state if trains and is_its_own else None

    @property
    def may_issue(self) -> bool:
        """Operations go out now; otherwise they are kept for the repair."""
        return self.fate is Fate.OPEN

    def look_up(self, question: Question) -> Entry | None:
        """This worker's answer to a peer's question; None: not known yet."""
        current = self._step.comparison if self._step is not None else None
        if self.lingers and current is not None and current.is_asked(question):
            return Entry(None, changed=False, cleared=True, over=True)
        return self._comparisons.look_up(question, current)

    def takes(self, entry: Entry) -> bool:
        """Whether a peer's answer settles anything here, or it must be asked again.

        What a peer at the end of its script says is for newcomers, which heal from it. Who trains
        goes on as soon as that peer has left.
        """
        return self.healing or self._peers_ended or not entry.over

    def counts(self, attempt: Attempt) -> bool:
        """Whether an operation's result or error under ``attempt`` has an effect here (C3)."""
        return self._step is not None and self._step.counts(attempt)

    @property
    def reduced(self) -> Tag | None:
        """The tag under which the results of this step stand, if they do.

        A loaded state counts as held before it is applied. In a group of several workers it does
        not, because a mate may not have it (C1).
        """
        step = self._step
        if step is None or step.fate is Fate.INTERRUPTED:
            return None
        lacks_state = self.healing and (self.loaded is None or self._workers > 1)
        return step.results if not lacks_state else None

    @property
    def is_decidable(self) -> bool:
        """The main thread can decide: nothing that could change the step is outstanding."""
        if self._step is not None and self.fate is Fate.VOID and self._leaves_for:
            return True
        if self.isolated or self._step is None:
            return False  # Q3: the peers may have gone on without this worker
        if self.fate is Fate.INTERRUPTED_COMPLETE:
            may_stand = self._workers == 1 and not self._step.is_blind
            return may_stand and self.reduced is not None
        if self.fate is Fate.OPEN:
            return self._step.is_finished
        return self.fate in (Fate.VOID, Fate.STANDS)

    @property
    def votes(self) -> bool:
        """After VoteStarted: whether this rank could commit if the vote is true."""
        return self._step is not None and self._step.voted is not None

    @property
    def verdict_known(self) -> bool:
        """After a vote within the group: whether its outcome may be acted upon.

        Isolation forbids a new vote, but does not end one, because a mate may have committed (C1).
        """
        if self.fate.is_interrupted:
            return self._vote_stands
        return self.fate is not Fate.REPAIR

    @property
    def _vote_stands(self) -> bool:
        """The results that this rank voted for still stand.

        If the vote was true, all ranks have reported their results, and no rank is asked again.
        """
        voted = self._step.voted if self._step is not None else None
        return voted is not None and voted == self.reduced

    @property
    def must_catch_up(self) -> bool:
        """Between two steps: the quorum in force goes on from a state that is not held here."""
        quorum = self.in_force
        if quorum is None or not self._quorums.is_unentered:
            return False
        return self._quorums.is_newcomer(quorum)

    @property
    def heals_first(self) -> bool:
        """The state must be applied before the forward pass of this step."""
        always = self._heal.heals_first or self._peers_ended
        return self.healing and (always or self.position == 0)

    def contributors(self) -> tuple[int, ...]:
        """The replica_ranks that count in the step under way (C4).

        In a step that is repeated because too few counted, the newcomers have healed and count.
        """
        quorum, step = self.in_force, self._step
        if quorum is None or step is None or step.tag.attempt != quorum.attempt:
            return ()
        healed = self._heal.heals_first or step.repeats
        return contributors(quorum, step.tag.step, healed, self._contributors_max)

    @property
    def is_enough(self) -> bool:
        """Enough replicas contribute to the step under way for it to be committed."""
        return len(self.contributors()) >= self.contributors_min

    @property
    def will_be_enough(self) -> bool:
        """Too few contribute because members heal: they count when the step is repeated."""
        members = () if self.in_force is None else self.in_force.members
        most = self._contributors_max or len(members)
        return min(len(members), most) >= self.contributors_min and not self.is_enough

    def report(self) -> m.Report:
        """All that the lighthouse must know of this worker.

        A healing worker reports the loaded state once the results of its step stand. Before that
        it reports its own, so that it becomes a newcomer again, which adds zeros (C4).
        """
        reduced, step, pending = self.reduced, self._step, self.pending
        can_repair = step is None or (step.fate.is_interrupted and self._is_whole(step))
        stands = self.loaded if reduced is not None and self.loaded is not None else self.state
        return m.Report(
            state=stands,
            endpoint=self.endpoint,
            interrupted=self.interrupted,
            in_force=self.in_force,
            pending=pending.reported() if pending is not None else None,
            reduced=reduced,
            voted=step.voted if step is not None else None,
            healing=self.healing and reduced is None,
            torn=self.torn and reduced is None,
            local_step_index=self.begun + (step is None),
            repairable=can_repair,
            freezes_membership=self._quorums.freezes_membership,
            too_few=self.is_stuck,
            contributors_min=self.contributors_min if self._tells_min else 0,
            refused=self._refused,
            refused_tries=self._refused_tries,
        )

    def check(self) -> None:
        """Assert the invariants between events (INVARIANTS.md: C3, Q2, Q5, S3)."""
        self._quorums.check()
        quorum, tag = self.in_force, self.tag
        assert not self.fate.is_interrupted or quorum is None, "interrupted, yet in a quorum"
        assert not self.torn or self.healing or tag is None or self.fate is not Fate.OPEN, (
            "S3: trains from a torn state"
        )
        if self.fate is Fate.OPEN:
            assert tag is not None and quorum is not None, "open without a quorum in force"
            assert tag.attempt == quorum.attempt, "C3: open under another attempt"
            assert not self._quorums.is_unentered, "open in a quorum that has not begun"
        if self.fate is Fate.REPAIR:
            assert self.pending is not None and not self.pending.is_switch, (
                "repair without a new quorum"
            )

    # ------------------------------------------------------------ the main thread

    def _on_boundary(self, event: e.BoundaryReached) -> None:
        if self._step is not None:  # the script went on without deciding: the step is abandoned
            self._end_step(self._step, False, False, "the step was not decided")
        self._quorums.at_boundary(event.freeze_membership)
        self._between_steps = StepPhase.WAITING
        self._between_since = self._now
        self.pace.waits(self._now)
        self._advance()

    def _advance(self) -> None:
        """Let a main thread at its boundary go on as far as promise and quorum allow."""
        if self.phase is StepPhase.WAITING and self._leaves_for:
            self._leave(self._leaves_for)
        if self.phase is not StepPhase.WAITING or self.isolated:
            return
        pending = self.pending
        if pending is not None and pending.wanted is not None:
            self._promise_late(pending, pending.wanted)
        if pending is not None and self._quorums.at_promise(self.state.step):
            if not pending.confirmed:
                return  # Q5
            self._carry_out_switch(pending)
        if self.in_force is not None and self.phase is StepPhase.WAITING:
            self._enter(self.in_force)

    def _promise_late(self, pending: Pending, wanted: int) -> None:
        """Promise the switch here, or refuse again if the script lets nobody join here."""
        step = self._quorums.next_step(self.state.step)
        if step < wanted or not self._quorums.can_promise(step):
            return
        if self._quorums.bars(pending):
            self._send(m.Refused(pending.attempt, wanted, step, later=True))
            return
        pending.promise, pending.wanted = step, None
        self._send(m.Promised(pending.attempt, step))

    def _carry_out_switch(self, pending: Pending) -> None:
        if not self._quorums.is_member(pending.quorum):
            self._leave(m.LeaveReason.DRAINED)
            return
        if self._quorums.bars(pending):  # frozen for the first time, after the promise
            self._give_up(NOBODY_JOINS)
            return
        old = self.in_force
        self._adopt(replace(pending.quorum, step=pending.promise))
        self._refused_tries = -self._owed_at(pending.promise)  # no member has begun that step
        if old is not None:
            self._out.append(e.DropGroup(old.attempt))

    def _adopt(self, quorum: Quorum) -> None:
        self._quorums.adopt(quorum)
        if self._adopted is not None and quorum.attempt.quorum_id > self._adopted.quorum_id + 1:
            self.gaps += 1
            self._heal.healed_to = max(self._heal.healed_to, self.state.step)
        self._adopted = quorum.attempt
        self._refused = ""
        self._too_few = 0
        self._out.append(e.UseGroup(quorum))
        self._offer_kept()

    def _enter(self, quorum: Quorum) -> None:
        """Begin a step under ``quorum``."""
        is_first = self._quorums.is_unentered
        heals = is_first and self._quorums.is_newcomer(quorum)
        number = self._quorums.next_step(self.state.step)
        if is_first and not heals:
            if self.torn:
                self._give_up("its state is torn: a heal broke off")
                return
            unlike = quorum.state is not None and quorum.state != self.state
            if unlike or self.state.step != number:
                self._give_up(f"holds {self.state}, not what {quorum.attempt} begins with")
                return
        self._keeps_state, self._trained_with = False, frozenset(quorum.members)
        self._heal.begin(heals, quorum.state)
        tag = Tag(quorum.attempt, number)
        comparison = self._comparisons.begin(quorum, tag, heals=heals)
        owed = self._owed.popleft() if self._owed else (-1, "")
        pays = owed[0] == number and not heals
        repeats = not pays and self._quorums.begin(tag)
        self._step = StepUnderWay(tag, repeats, self._now, comparison)
        self._step.is_enough = self.is_enough
        self.step_times.reached(number, self._now)
        self.begun += 1
        self.pace.goes_on(self._now)
        self._between_steps = StepPhase.IDLE
        if pays:  # this try does not count under this quorum
            comparison.withdraw()
            self._void_refused(self._step, owed[1])
        elif is_first:
            self._announce(quorum, tag)

    def _announce(self, quorum: Quorum, tag: Tag) -> None:
        """Report the quorum in force, and offer or fetch its state. Once per attempt."""
        self._send(m.InForce(quorum.attempt, tag.step))
        if self._heal.must_load:
            self._out.append(e.LoadState(tag, quorum, in_place=self._heal.is_fresh))
        if self._quorums.is_donor(quorum):
            self._offer(quorum, tag)

    def _offer(self, quorum: Quorum, tag: Tag) -> None:
        self._retire()
        self._offered = tag
        self._out.append(e.OfferState(tag, self.state, len(quorum.newcomers)))

    def _on_state_kept(self, _event: e.StateKept) -> None:
        self._keeps_state = self._step is None and not self.healing
        self._offer_kept()

    def _offer_kept(self) -> None:
        """Offer the state that is kept between two steps, to those who have lost the last one.

        Who joins anew is not served: it wants the place of the next step too.
        """
        quorum = self.in_force
        if not self._keeps_state or quorum is None or not self._quorums.is_unentered:
            return
        is_wanted = self._quorums.is_donor(quorum) and quorum.state == self.state
        if is_wanted and self._trained_with.issuperset(quorum.members):
            self._offer(quorum, Tag(quorum.attempt, quorum.first_step))

    def _retire(self) -> None:
        if self._offered is not None:
            self._out.append(e.RetireState(self._offered))
            self._offered = None

    def _on_vote_started(self, _event: e.VoteStarted) -> None:
        if self._step is not None:
            self._step.vote()
            self.pace.waits(self._now)
            self._watch_mates(self._step)

    def _watch_mates(self, step: StepUnderWay) -> None:
        """A void step votes at once; its wait is short, because a mate may be in the next step."""
        if step.is_voting and step.fate is Fate.VOID:
            step.deadline = self._now + min(GROUP_TIMEOUT_S, self._operation_timeout_s)

    def _on_decided(self, event: e.Decided) -> None:
        step = self._step
        if step is None:
            return
        commits = event.commit and not event.torn and self._may_commit(step)
        self._end_step(step, commits, event.shared and not event.torn, event.reason)
        if event.torn:
            self._give_up_torn("the ranks of the replica group voted for different steps")

    def _may_commit(self, step: StepUnderWay) -> bool:
        if step.fate is Fate.VOID or self.healing:
            return False
        if self._workers == 1:
            return self.is_decidable
        if step.fate.is_interrupted:
            return self._vote_stands
        return step.operations.complete and step.voted == step.tag  # C1, C3

    def _end_step(self, step: StepUnderWay, commits: bool, shared: bool, reason: str) -> None:
        stays = commits or (shared and step.operations.complete and not self.healing)
        self._retire()
        if not step.operations.all_handed and step.fate is not Fate.VOID:
            self._out.append(e.FailOperations(reason or "the step was not committed"))
        if commits:
            self._refused_tries = 0
            self._heal.commit(step.tag)
            self._peers_ended = False
            self.step_times.reached(step.tag.step + 1, self._now)
            self.pace.committed(self._now)
        else:
            self.pace.skip()
        self._step = None
        self._comparisons.end(step.comparison, committed=commits)
        self._between_since = self._now
        if not stays or commits:
            self._too_few = 0
        elif step.fate is Fate.OPEN and not step.is_enough:
            self._too_few += 1
            self._too_few_since = self._now if self._too_few == 1 else self._too_few_since
        if step.fate is Fate.OPEN and not stays:
            self._give_up(reason or "the step was not committed", step.tag.step, own=True)

    def _fail_script(self, step: StepUnderWay, reason: str) -> None:
        """End this worker alone; its peers see that it is lost, and go on."""
        self._void(step, reason)
        self._out.append(e.FailScript(reason))

    def _on_state_reset(self, event: e.StateReset) -> None:
        reason = "the script has set its step"
        self._heal.reset(event.state)
        self._keeps_state = False
        self._refused_tries = 0
        self._comparisons.forget()
        self._give_up(reason, own=True)
        if self._step is not None and self._step.fate is not Fate.VOID:
            self._void(self._step, reason)

    def _on_went_away(self, event: e.WentAway) -> None:
        self._leave(event.reason)

    def _leave(self, reason: m.LeaveReason) -> None:
        self._retire()
        if self._step is not None and not self._step.operations.all_handed:
            self._out.append(e.FailOperations(f"the script leaves: {reason.value}"))
        early = reason is m.LeaveReason.EARLY
        self._send(m.Leaving(reason, self.state.step if early else None))
        self._step = None
        self._between_steps = StepPhase.LEFT

    # ------------------------------------------------------------ operations

    def _on_operation_issued(self, event: e.OperationIssued) -> None:
        step = self._step
        if step is None:
            self._out.append(e.FailOperations("no step is under way"))
            return
        step.operations.issue(event.batched, event.closes)
        step.comparison.add(event.shape)
        step.touched_at = self._now
        step.note_wait(self._now)
        if event.batched and not event.closes:
            self.pace.works()
        else:
            self.pace.waits(self._now)
        if step.fate is Fate.STANDS:
            self._void(
                step, "an operation was issued after an interrupt at which all were complete"
            )
        elif step.fate is Fate.VOID:
            self._out.append(e.FailOperations(step.void_reason))
        elif step.fate is Fate.OPEN:
            step.deadline = self._now + self._operation_timeout_s
            self._let_out(step)

    def _on_operations_ended(self, _event: e.OperationsEnded) -> None:
        step = self._step
        if step is None or step.comparison.ended:
            return
        step.comparison.end()
        step.note_wait(self._now)
        if step.fate is Fate.OPEN:
            self._let_out(step)
            if step.is_awaited:
                self.pace.waits(self._now)
            if step.is_awaited and step.deadline is None:
                step.deadline = self._now + self._operation_timeout_s

    def _let_out(self, step: StepUnderWay) -> None:
        """Launch the operations that may go out, and ask about one to be compared first."""
        ready = step.comparison.advance()
        if ready:
            self._out.append(e.Launch(ready.start, ready.stop))
        question = step.comparison.question()
        if question is not None:
            self._out.append(e.Ask(question))

    def _on_operation_answered(self, event: e.OperationAnswered) -> None:
        step = self._step
        if step is None or step.fate is not Fate.OPEN:
            return
        if event.entry.over:
            self._end_with_peers(step, event.replica_id)
            return
        step.comparison.answer(event.question, event.replica_id, event.entry)
        step.note_wait(self._now)
        if step.comparison.unlike:
            self._fail_script(step, f"{step.comparison.unlike}. {ALIKE}")
        else:
            step.touched_at = self._now
            self._let_out(step)
            if not step.is_awaited:
                step.deadline = None
                self.pace.goes_on(self._now)

    def _end_with_peers(self, step: StepUnderWay, replica_id: str) -> None:
        """The peers have come to the end of their scripts, and nobody takes this step.

        From now on this newcomer heals before its pass, so that its script sees that it is over.
        """
        reason = f"replica {replica_id} has come to the end of its script: nobody takes this step"
        self._peers_ended = True
        self._void(step, reason)
        self._give_up(reason, own=True)

    def _on_operation_completed(self, event: e.OperationCompleted) -> None:
        step = self._step
        if (
            step is None
            or not step.counts(event.attempt)
            or not step.operations.finish(event.index)
        ):
            return  # C3
        step.touched_at = self._now
        step.note_wait(self._now)
        is_left = step.is_awaited
        step.deadline = self._now + self._operation_timeout_s if is_left else None
        if not step.operations.outstanding:
            self.pace.goes_on(self._now)
        ready = step.operations.take_ready()
        if ready:
            self._out.append(e.HandOut(ready))

    def _on_operation_failed(self, event: e.OperationFailed) -> None:
        step = self._step
        if step is None or not step.counts(event.attempt):
            return  # C3
        reason = f"operation {event.index}: {event.reason}"
        failed = step.tag.attempt.quorum_id, step.tag.step, event.index
        before, self._failed = self._failed, failed
        if event.refused or (event.refused is None and before == failed):
            self._refuse_step(step, reason)
        else:
            self._give_up(reason)

    def _on_operation_refused(self, event: e.OperationRefused) -> None:
        if self._step is not None:
            self._refuse_step(self._step, event.reason)

    def _refuse_step(self, step: StepUnderWay, reason: str) -> None:
        """No attempt can carry out an operation of this step: it is void, here and at all peers."""
        if step.fate is Fate.VOID:
            return
        self._refused = reason
        step.comparison.withdraw()
        if step.fate is Fate.OPEN:
            self._give_up(reason, own=True)
        self._void_refused(step, reason)

    # ------------------------------------------------------------ healing

    def _awaits_state(self, tag: Tag) -> bool:
        return self._heal.must_load and self.fate is Fate.OPEN and tag == self.tag

    def may_overwrite(self, tag: Tag) -> bool:
        """Whether the state for ``tag`` may be written over the script's own from here on."""
        return self.torn and self._awaits_state(tag)

    def _on_overwrite_begun(self, event: e.OverwriteBegun) -> None:
        if self._heal.is_fresh and self._awaits_state(event.tag):
            self._heal.overwrite()

    def _on_state_loaded(self, event: e.StateLoaded) -> None:
        if not self._awaits_state(event.tag) or self.in_force is None:
            return
        wanted = self.in_force.state or event.state
        if event.state == wanted and event.state.step == event.tag.step:
            self._heal.loaded = event.state
        else:
            self._give_up(f"heal: donors hold {event.state}, not what {event.tag} begins with")

    def _on_state_applied(self, event: e.StateApplied) -> None:
        if not self.healing or self.tag is None:
            return
        if not self._heal.apply(self.tag):
            return
        self.step_times.skip()
        self.pace.skip()
        self.shown.heal = None
        attempt, number = self.tag.attempt, self.state.step
        self._send(m.Healed(attempt, number, event.donors, event.nbytes, event.duration_s))

    def _on_state_spoiled(self, event: e.StateSpoiled) -> None:
        if self._heal.spoil() and self.fate is Fate.OPEN:
            self._give_up(f"heal: {event.reason}")

    def _on_heal_failed(self, event: e.HealFailed) -> None:
        step = self._step
        if step is None or not self._awaits_state(event.tag):
            return
        if event.is_refused and self._heal.refuse():
            words = f"this replica cannot heal, and ends; the others train on. {event.reason}"
            self._fail_script(step, words)
        else:
            self._give_up(f"heal: {event.reason}")

    # ------------------------------------------------------------ giving up, and the verdict

    def _give_up(self, reason: str, step: int | None = None, *, own: bool = False) -> None:
        """Give up the quorum in force and the pending one, because of an error here.

        ``own``: see ``Errored``.
        """
        if self.in_force is None:
            return
        attempt = self.in_force.attempt
        position = self.position if step is None else step
        self._abort(self.seen)
        self._send(m.Errored(attempt, position, reason, own))

    def _give_up_torn(self, reason: str) -> None:
        """Give up every known quorum, because a mate is one quorum ahead or behind.

        Otherwise one rank would begin a step alone, and its next vote would meet a wrong step too.
        """
        quorum = self.in_force or (self.pending.quorum if self.pending is not None else None)
        if quorum is not None:
            self._abort(self.seen)
            self._send(m.Errored(quorum.attempt, self.state.step, reason))

    def _abort(self, attempt: Attempt) -> None:
        """Give up every attempt up to and including ``attempt``."""
        self.step_times.skip()
        self._abort_groups(self._quorums.give_up(attempt))
        self.pace.skip()
        step = self._step
        if step is not None:
            if not step.fate.awaits_quorum:
                step.touched_at = self._now
            step.interrupt(self._now + self._quorum_timeout_s, self.reduced is not None)

    def _abort_groups(self, attempts: Iterable[Attempt]) -> None:
        self._out += [e.AbortGroup(attempt) for attempt in attempts]

    def _judge(self, step: StepUnderWay, event: m.NewQuorum) -> None:
        """Apply the verdict of the quorum to the step under way."""
        quorum = event.quorum
        step.is_blind = self.isolated  # then the quorum may have been replaced (Q3)
        if event.pauses:
            step.awaited_since = None  # who has said so may take its time
        tag = self.reduced if self.healing else step.decisive
        held = self._heal.after
        if tag is not None and held is not None and quorum.state == held.committed(tag):
            step.stand()
        elif self._missing(event) > 0:
            self._void_refused(step, event.refused)
        elif self._repairable(step, quorum):
            step.repair()
            self._heal.keep_loaded_if(quorum.state)
        else:
            again = quorum.state == self.state
            fate = "is computed again" if again else f"is left out: it goes on from {quorum.state}"
            self._void(step, f"interrupted; in quorum {quorum.attempt} this step {fate}")

    def _repairable(self, step: StepUnderWay, quorum: Quorum) -> bool:
        """Whether the operations of this step can go out again under ``quorum``.

        A newcomer that was interrupted before it had healed adds zeros again, and heals then.
        """
        if not self._is_whole(step) or quorum.step != step.tag.step:
            return False
        if self.key.replica_id in quorum.recomputes:
            return False
        if quorum.newcomers and self.serves_between_steps and self._heal.heals_first:
            return False  # they heal before their forward pass, from a state that is read later
        if self.healing:
            return self._quorums.is_newcomer(quorum) and not self.heals_first
        return quorum.state == self.state

    def _is_whole(self, step: StepUnderWay) -> bool:
        """Repair is on, no result was handed to the script, and no vote has begun."""
        return self._repair and step.operations.untouched and not step.is_voting

    def _void_refused(self, step: StepUnderWay, reason: str) -> None:
        self._refused_tries += 1
        self._void(step, reason)

    def _void(self, step: StepUnderWay, reason: str) -> None:
        step.void(reason)
        self._watch_mates(step)
        self._out.append(e.FailOperations(reason))

    # ------------------------------------------------------------ the lighthouse

    def _send(self, message: m.FromWorker) -> None:
        self.has_reported = True
        self._out.append(e.Send(message))

    def _on_interrupt(self, event: m.Interrupt) -> None:
        if event.attempt < self.seen:
            return  # Q2: stale
        if event.attempt > self.interrupted:
            self._abort(event.attempt)
        self._send(self.report())

    def _on_new_quorum(self, event: m.NewQuorum) -> None:
        quorum = event.quorum
        if not self._is_new(quorum) or not self._quorums.is_member(quorum):
            return
        if self.in_force is not None or self.pending is not None:
            self._abort(self.seen)  # the Interrupt was lost on the way
        self._take(quorum, is_switch=False)
        if self._step is not None and self._step.fate.is_interrupted:
            self._judge(self._step, event)
        self._catch_up(event)

    def _catch_up(self, event: m.NewQuorum) -> None:
        """Try a step as often as peers, so that scripts that count their tries stay alike.

        Not within a replica group: its other workers do not know of such a try.
        """
        if self._workers == 1:
            missing = min(self._missing(event), OWED_MAX)
            self._owed.extend([(event.quorum.first_step, event.refused)] * missing)
        elif event.quorum.state == self.state:
            self._refused_tries = max(self._refused_tries, event.refused_tries)
        if self._quorums.is_newcomer(event.quorum):
            self._refused_tries = event.refused_tries

    def _missing(self, event: m.NewQuorum) -> int:
        """How many tries of the step that the quorum begins with this worker is to make in vain."""
        quorum = event.quorum
        if self.fate is Fate.STANDS:  # it has not begun that step
            return event.refused_tries - self._owed_at(quorum.first_step)
        if quorum.state != self.state and not (self.healing and self.position == quorum.step):
            return 0
        return event.refused_tries - self._refused_tries - self._owed_at(quorum.first_step)

    def _owed_at(self, number: int | None) -> int:
        return sum(step == number for step, _ in self._owed)

    def _is_new(self, quorum: Quorum) -> bool:
        """Whether ``quorum`` is newer than all known ones; sends Built again if it is built."""
        if self._quorums.has_built(quorum.attempt):
            self._send(m.Built(quorum.attempt))
        return quorum.attempt > self.seen

    def _take(self, quorum: Quorum, is_switch: bool) -> None:
        pending = self._quorums.take(quorum, is_switch=is_switch)
        if self._quorums.is_member(quorum):
            self._out.append(e.BuildGroup(quorum))
        else:  # this worker leaves at the switch
            pending.built = True
            self._send(m.Built(quorum.attempt))

    def _on_prepare(self, event: m.Prepare) -> None:
        quorum = event.quorum
        if not self._is_new(quorum):
            return
        joins = self._quorums.is_newcomer(quorum)
        is_bound = self.pending is not None and self.pending.confirmed
        is_idle = self.in_force is None and self._quorums.is_member(quorum)
        if not joins and (is_bound or is_idle):
            self._send(self.report())  # the lighthouse is wrong about this worker
            return
        if joins and self.in_force is not None:
            self._abort(self.seen)  # the peers have gone on without this worker
        self._abort_groups(self._quorums.drop_pending())
        is_open = self._step is not None and self._step.fate.awaits_quorum
        if self._step is not None and is_open and not self._vote_stands:  # C1
            # No quorum will decide about this step any more.
            self._void(self._step, f"interrupted; this replica joins quorum {quorum.attempt} anew")
        self._take(quorum, is_switch=True)

    def _on_group_built(self, event: e.GroupBuilt) -> None:
        pending = self._quorums.awaits(event.attempt)
        if self._quorums.is_in_force(event.attempt):
            return
        if pending is None:
            self._out.append(e.DropGroup(event.attempt))
            return
        pending.built = True
        self._send(m.Built(event.attempt))
        if not pending.is_switch:
            self._adopt(pending.quorum)
        if self._step is not None and self._step.fate is Fate.REPAIR:
            self._repair_under(self._step, pending.quorum)
        self._advance()

    def _repair_under(self, step: StepUnderWay, quorum: Quorum) -> None:
        step.go_out_again(quorum, self._now + self._operation_timeout_s)
        step.touched_at = self._now
        step.note_wait(self._now)
        self._quorums.begin(step.tag)
        step.is_enough = self.is_enough
        self._announce(quorum, step.tag)
        self._out.append(e.Reissue())
        self._let_out(step)

    def _on_group_failed(self, event: e.GroupFailed) -> None:
        if self._quorums.awaits(event.attempt) is not None:
            self._send(m.BuildFailed(event.attempt, event.reason))

    def _on_propose(self, event: m.ProposeSwitch) -> None:
        pending = self.pending
        if pending is None or not pending.may_be_promised(event.attempt):
            self._refuse(event)
        elif pending.outdates(event.step):
            return
        elif not self._quorums.can_promise(event.step):
            self._refuse(event)
        elif self._quorums.promises_late(pending):
            pending.promise, pending.wanted = None, event.step
            self._refuse(event, later=True)
            self._advance()
        else:
            pending.promise = event.step
            self._send(m.Promised(event.attempt, event.step))
            self._advance()

    def _refuse(self, event: m.ProposeSwitch, *, later: bool = False) -> None:
        begun = self._quorums.last_begun
        current = self.position if begun is None else begun
        self._send(m.Refused(event.attempt, event.step, current, later))

    def _on_switch(self, event: m.Switch) -> None:
        pending = self._quorums.awaits(event.attempt)
        if self._quorums.is_in_force(event.attempt):
            self._send(m.InForce(event.attempt, event.step))
        elif pending is not None:
            is_newcomer = self._quorums.is_newcomer(pending.quorum)
            if is_newcomer and self.in_force is None and pending.promise is not None:
                pending.promise = max(pending.promise, event.step)  # it comes at any step
            pending.confirmed |= pending.promise == event.step
            self._advance()

    def _on_cancel(self, event: m.Cancel) -> None:
        pending = self._quorums.awaits(event.attempt)
        if pending is not None and pending.is_switch and not pending.confirmed:
            self._abort_groups(self._quorums.drop_pending())
            self._advance()

    def _on_ask_report(self, _event: m.AskReport) -> None:
        self._send(self.report())
        self.shown.forget()  # whoever asks may be new, and knows no activity

    def _on_peers_asked(self, _event: e.PeersAsked) -> None:
        self.asks_for_peers = self.has_asked_for_peers = True
        present = m.Present(self.endpoint, self._part, self.sets_up_together)
        self._out.append(e.Send(present))

    def _on_peer_unreached(self, event: e.PeerUnreached) -> None:
        if self.in_force is not None and self.in_force.attempt == event.attempt:
            self._give_up(f"replica {event.replica_id} is not reached")

    def _on_roster(self, event: m.Roster) -> None:
        if self.asks_for_peers:
            self.asks_for_peers = False
            names = () if event.has_begun else event.entries
            self._part = tuple(entry.replica_id for entry in names)
            self._out.append(e.ShowPeers(event))

    def _on_leave_now(self, event: m.LeaveNow) -> None:
        """Leave at the next boundary, because no lighthouse will agree on one."""
        if event.in_quorum or self.in_force is None:
            self._leaves_for = event.reason
            self._make_way()
            self._advance()

    def _make_way(self) -> None:
        """Give up a step that keeps the script from the boundary at which it is to leave."""
        step = self._step
        if step is None or not self._leaves_for or self._vote_stands:
            return
        reason = f"this replica leaves: {self._leaves_for.value}"
        if self.activity()[0] in FOR_PEERS:
            self._give_up(reason)
        if step.fate.awaits_quorum:
            self._void(step, reason)

    # ------------------------------------------------------------ time

    def _on_lease(self, event: m.Lease) -> None:
        self._lease.renew(event.until_s)
        isolated_s = self._lease.begins_again(self._now)
        if isolated_s is not None:
            self._end_isolation(isolated_s)
        elif self._lease.ends(self._now):
            self._isolate()
        else:
            return
        self._advance()

    def _isolate(self) -> None:
        self._abort(self.seen)  # Q3: from now on a quorum may form without this worker
        if self._step is not None:
            self._step.is_blind = True

    def _end_isolation(self, isolated_s: float) -> None:
        """Report again. The time of isolation counts for no deadline."""
        if self._step is not None:
            self._step.put_off(isolated_s)
        if self.has_reported:  # before its first step a script is not ready for a quorum
            self._send(self.report())  # if the stream never broke, nobody asks for it

    def _on_ticked(self, event: e.Ticked) -> None:
        self.shown.pause, self.shown.beats, self.shown.heal = event.pause, event.beats, event.heal
        if event.pause is not None:
            self.step_times.skip()
            self.pace.skip()
        self._make_way()
        self._look_at_deadlines()
        self._show_progress(event.waited_s)

    def _show_progress(self, waited_s: float) -> None:
        """Report the main thread's activity if it has changed since the last report."""
        shown = self.shown.tick(*self.activity(), self._now, waited_s)
        self._out += [e.ShowProgress(activity, lasted_s) for activity, lasted_s in shown]

    def report_activity(self) -> tuple[Activity, float]:
        """The activity for a report that goes out now, and its seconds so far.

        Ticks compare with it: otherwise a later one is not reported if an earlier tick's was alike.
        """
        activity, since = self.activity()
        self.shown.reported(activity)
        return activity, max(0.0, self._now - since)

    @property
    def is_stuck(self) -> bool:
        """No further step comes at which a replica could join, so that it has to join at this one.

        Too few contributed twice: newcomers count in the second try, so a third cannot help. Or the
        script has ended.
        """
        return self.lingers or self._too_few > 1

    def activity(self) -> tuple[Activity, float]:
        """The main thread's activity by the latest event, and when it began."""
        step = self._step
        if self.shown.pause is not None and self.phase is not StepPhase.LEFT:
            return Activity.PAUSED, self.shown.pause.since
        if self._too_few > 1 and self.in_force is not None:
            return Activity.TOO_FEW, self._too_few_since
        if step is None:
            return self._activity_between()
        if self.lingers and step.fate is Fate.OPEN and not self.healing:
            return Activity.ENDING, step.began_at
        if step.fate.awaits_quorum or self.isolated:
            return Activity.QUORUM, step.touched_at
        is_late = self._now - step.touched_at >= LONG_S
        waits = step.fate is Fate.OPEN and step.is_awaited and is_late
        if self.healing and (self._heal.must_load or not waits):
            return Activity.HEALING, step.began_at
        if waits:
            return Activity.JOINING if self.healing else Activity.WAITING, step.touched_at
        return Activity.STEP, step.began_at

    def _activity_between(self) -> tuple[Activity, float]:
        since = self._between_since
        if self.phase is StepPhase.LEFT:
            return Activity.LEFT, since
        if self.phase is StepPhase.WAITING:
            return Activity.QUORUM, since
        if not self.begun:
            return Activity.STARTING, since
        is_long = self._now - since >= LONG_S and not self.trains_between_steps
        return Activity.OUTSIDE if is_long else Activity.STEP, since

    def _look_at_deadlines(self) -> None:
        step = self._step
        if step is None or step.deadline is None or self._now < step.deadline or self.isolated:
            return
        if step.fate is Fate.OPEN:
            self._time_out(step)
        elif step.fate is Fate.VOID:
            step.deadline = None
            self._give_up_torn("a mate does not come to the vote: it is in another step")
        elif not self.is_decidable and not self._vote_stands:  # C1
            self._void(step, f"no quorum for {self._quorum_timeout_s:g} s")

    def _time_out(self, step: StepUnderWay) -> None:
        """Give the attempt up; and the step, here and at all peers, if it has been tried enough.

        Unlike a refusal it counts as a failed attempt: one member may hang.
        """
        limit_s, waited_s = self._results_timeout_s, step.awaited_s(self._now)
        self._give_up(f"no operation completed for {self._operation_timeout_s:g} s")
        if limit_s is not None and waited_s >= limit_s:
            step.comparison.withdraw()
            self._void_refused(step, f"its results did not come for {waited_s:.3g} s")
