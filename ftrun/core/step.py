"""One worker's step: promise, interrupt, repair, heal, commit. Pure; lives under the step lock.

The main thread walks IDLE → WAITING (start_quorum) → STEPPING (forward, backward) → VOTING
(should_commit, groups of several workers only) → IDLE. Everything else happens beside it, and what
becomes of the step under way is its *fate*:

| fate   | means                                      | left by                             |
|--------|--------------------------------------------|-------------------------------------|
| OPEN   | its quorum is in force                     | an interrupt or error → HELD        |
| HELD   | interrupted; the next quorum will tell     | NewQuorum → STANDS, REPAIR, VOID    |
| STANDS | its results are complete; peers count on it| Decided; an interrupt → HELD        |
| REPAIR | goes out again when the next group stands  | GroupBuilt → OPEN; interrupt → HELD |
| VOID   | will not be committed; nobody waits for it | Decided                             |

Rules that the rest relies on:
- An attempt that was given up (``interrupted``) counts for nothing afterwards: no completion, no
  build, no heal under it changes anything (C3, Q2).
- A step is committed under the tag under which its operations completed, and only by ``Decided``.
- What was handed to the script is never changed: a step some of whose results were handed out
  before all were complete cannot be repaired, only stand or be void (S7).
- A step that was not committed although its quorum was in force ends the quorum for this worker
  (``Errored``): its peers may have gone on.
- A quorum that forms or shrinks is in force as soon as it is built, also while a step that is void
  or stands is still being finished; a switch waits for its boundary.
- The workers of one replica group cannot see each other's fate. With W > 1 nobody repairs (a mate
  may be unable to, and would wait in the vote for ever), and what a true vote has decided is
  committed even if an interrupt comes in between: a mate may have committed already (C1).

Not here: threads, sockets, tensors (manager/); who is in a quorum (membership.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from ftrun.core import messages as m
from ftrun.core import step_events as e
from ftrun.core.contribution import contributors
from ftrun.core.ids import NO_ATTEMPT, Attempt, StateId, Tag, WorkerKey, extend_lineage
from ftrun.core.operations import OperationLedger

STORY_LINES_MAX = 64


class Phase(Enum):
    """Where the main thread is."""

    IDLE = "idle"
    WAITING = "waiting"
    STEPPING = "stepping"
    VOTING = "voting"
    LEFT = "left"


class Fate(Enum):
    """What becomes of the step under way; see the table above."""

    OPEN = "open"
    HELD = "held"
    STANDS = "stands"
    REPAIR = "repair"
    VOID = "void"


@dataclass(slots=True)
class Pending:
    """A quorum that is not in force here yet.

    ``promise``: the step that will not be begun under the old quorum; ``confirmed``: it is certain.
    A switch whose quorum leaves this worker out is one to leave by: there is nothing to build.
    """

    quorum: m.Quorum
    is_switch: bool
    built: bool = False
    promise: int | None = None
    confirmed: bool = False

    @property
    def attempt(self) -> Attempt:
        """The attempt to bring it into force."""
        return self.quorum.attempt


class StepMachine:
    """The decisions of one worker. Feed it events, carry out its instructions in order.

    Args:
        key: who this worker is.
        endpoint: where its peers reach it.
        state: what it holds at the start.
        workers_per_replica: W; with W > 1 a commit needs the group's vote.
        repair: reissue operations after an interrupt instead of discarding the step (W = 1).
        heal_first: newcomers heal before their forward pass (synchronous quorum).
        contributors_max: the rest are spares (``FIXED_WITH_SPARES``); None for no limit.
        operation_timeout_s: an operation outstanding for so long is an error.
        quorum_timeout_s: a step waits for the next quorum's verdict for so long.
    """

    def __init__(
        self,
        key: WorkerKey,
        endpoint: m.Endpoint,
        state: StateId,
        *,
        workers_per_replica: int = 1,
        repair: bool = True,
        heal_first: bool = False,
        contributors_max: int | None = None,
        operation_timeout_s: float = 60.0,
        quorum_timeout_s: float = 60.0,
    ) -> None:
        self.key = key
        self.endpoint = endpoint
        self.state = state
        self.phase = Phase.IDLE
        self.fate = Fate.VOID
        self.in_force: m.Quorum | None = None
        self.pending: Pending | None = None
        self.interrupted: Attempt = NO_ATTEMPT
        self.seen: Attempt = NO_ATTEMPT  # the highest attempt heard of; never falls (Q2)
        self.isolated = False
        self.healing = False  # the script does not hold the quorum's state yet
        self.loaded: StateId | None = None  # arrived and verified, but not applied
        self.tag: Tag | None = None  # of the step under way
        self.void_reason = ""
        self._ledger = OperationLedger()
        self._workers = workers_per_replica
        self._repair = repair and workers_per_replica == 1
        self._heal_first = heal_first
        self._contributors_max = contributors_max
        self._operation_timeout_s = operation_timeout_s
        self._quorum_timeout_s = quorum_timeout_s
        self._entered: Attempt = NO_ATTEMPT
        self._begun = 0  # the last step begun under the quorum entered
        self._repeats = False  # it was begun under it before: too few contributors
        self._hold_members = False
        self._voted: Tag | None = None
        self._offered: Tag | None = None
        self._deadline: float | None = None
        self._isolated_since = 0.0
        self._now = 0.0
        self._out: list[e.Instruction] = []
        self._story: deque[tuple[float, object]] = deque(maxlen=STORY_LINES_MAX)
        self._handlers = self._table()

    def _table(self) -> dict[type, Callable[[Any], None]]:
        return {
            e.BoundaryReached: self._on_boundary,
            e.OperationIssued: self._on_operation_issued,
            e.OperationCompleted: self._on_operation_completed,
            e.OperationFailed: self._on_operation_failed,
            e.VoteStarted: self._on_vote_started,
            e.Decided: self._on_decided,
            e.StateLoaded: self._on_state_loaded,
            e.StateApplied: self._on_state_applied,
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
            m.Isolation: self._on_isolation,
        }

    # ------------------------------------------------------------ what the shell asks

    def handle(self, event: e.Event, now: float) -> list[e.Instruction]:
        """Take one event; the instructions are to be carried out in order, under the lock."""
        self._now = now
        self._out = []
        self._story.append((now, event))
        if self.phase is not Phase.LEFT:
            self._handlers[type(event)](event)
        return self._out

    def story(self) -> list[str]:
        """The last events, oldest first."""
        return [f"{when:.3f} {event}" for when, event in self._story]

    @property
    def in_step(self) -> bool:
        """A step is under way."""
        return self.phase in (Phase.STEPPING, Phase.VOTING)

    @property
    def position(self) -> int:
        """The step that is under way, or else the next one."""
        return self.tag.step if self.tag is not None else self.state.step

    @property
    def may_issue(self) -> bool:
        """Operations go out now; otherwise they are kept for the repair."""
        return self.in_step and self.fate is Fate.OPEN

    @property
    def reduced(self) -> Tag | None:
        """The tag under which the results of this step stand, if they do.

        A state that was loaded and not applied counts as held, but not in a group of several
        workers: a mate may not have it (C1).
        """
        has_results = self.in_step and self._ledger.issued > 0 and self._ledger.complete
        lacks_state = self.healing and (self.loaded is None or self._workers > 1)
        if not has_results or self.fate is Fate.VOID or lacks_state:
            return None
        return self.tag

    @property
    def settled(self) -> bool:
        """The main thread can decide: nothing that could change the step is outstanding."""
        if self.isolated:
            return False  # Q3: nobody commits who may have been left behind
        if self.fate is Fate.HELD:
            return self._workers == 1 and self.reduced is not None
        if self.fate is Fate.OPEN:
            return self._ledger.complete
        return self.fate in (Fate.VOID, Fate.STANDS)

    @property
    def verdict_known(self) -> bool:
        """After a vote within the group: whether its outcome may be acted upon."""
        if self.fate is Fate.HELD:
            return self._vote_stands and not self.isolated
        return self.fate is not Fate.REPAIR and not self.isolated

    @property
    def _vote_stands(self) -> bool:
        """If the vote was true all ranks have reported their results: none is asked again."""
        return self._voted is not None and self._voted == self.reduced

    @property
    def heals_first(self) -> bool:
        """The state must be applied before the forward pass of this step."""
        return self.healing and (self._heal_first or self.position == 0)

    def contributors(self) -> tuple[int, ...]:
        """The replica_ranks that count in the step under way (C4).

        In a step that is repeated because too few counted, the newcomers have healed.
        """
        if self.in_force is None or self.tag is None or self.tag.attempt != self.in_force.attempt:
            return ()
        healed = self._heal_first or self._repeats
        return contributors(self.in_force, self.tag.step, healed, self._contributors_max)

    def report(self) -> m.Report:
        """All that the lighthouse must know of this worker.

        A worker that heals reports the state that it will have applied when its step is committed,
        and before that its own: only so is it a newcomer again, with zeros to add (C4).
        """
        reduced = self.reduced
        stands = self.loaded if reduced is not None and self.loaded is not None else self.state
        pending = self.pending
        return m.Report(
            state=stands,
            endpoint=self.endpoint,
            interrupted=self.interrupted,
            in_force=self.in_force,
            pending=pending.quorum if pending is not None else None,
            pending_step=pending.promise if pending is not None else None,
            promised=pending is not None and pending.promise is not None,
            confirmed=pending is not None and pending.confirmed,
            reduced=reduced,
            voted=self._voted,
            healing=self.healing and reduced is None,
            operations=self._ledger.issued,
        )

    def check(self) -> None:
        """Assert what must hold between events (INVARIANTS.md: C3, Q2, Q5)."""
        quorum, pending = self.in_force, self.pending
        if self.phase is Phase.LEFT:
            return
        assert self.in_step == (self.tag is not None), "a step has a tag"
        assert self.in_step or self.fate is Fate.VOID, "only a step has a fate"
        if quorum is not None:
            assert self.interrupted < quorum.attempt <= self.seen, "Q2: trains under what is over"
            assert self.fate is not Fate.HELD, "held, and yet in a quorum"
        if self.fate is Fate.OPEN:
            assert self.tag is not None and quorum is not None, "open, and in no quorum"
            assert self.tag.attempt == quorum.attempt == self._entered, "C3: open under another tag"
        if self.fate is Fate.REPAIR:
            assert pending is not None and not pending.is_switch, "nothing to repair with"
        if pending is not None:
            self._check_pending(pending)

    def _check_pending(self, pending: Pending) -> None:
        quorum = self.in_force
        assert self.interrupted < pending.attempt <= self.seen, "Q2: prepares what is over"
        assert pending.built or pending.promise is None, "promised what it has not built"
        assert pending.is_switch or pending.promise is None, "promised what is no switch"
        assert not pending.confirmed or pending.promise is not None, "confirmed without a promise"
        if quorum is not None:
            assert pending.is_switch, "a quorum in force beside one that replaces it"
            assert pending.attempt > quorum.attempt, "Q2: prepares what is older"
            if pending.promise is not None:
                assert self._last_begun(quorum) < pending.promise, "Q5: has begun what it promised"

    # ------------------------------------------------------------ the main thread

    def _on_boundary(self, event: e.BoundaryReached) -> None:
        if self.in_step:  # the script went on without deciding: the step is abandoned
            self._end_step(committed=False, shared=False, reason="the step was not decided")
        self._hold_members = event.hold_members
        self.phase = Phase.WAITING
        self._advance()

    def _advance(self) -> None:
        """Whoever waits at a boundary goes on as far as promise and quorum allow."""
        if self.phase is not Phase.WAITING or self.isolated:
            return
        pending = self.pending
        if pending is not None and self._at_promise(pending):
            if not pending.confirmed:
                return  # Q5
            self._carry_out_switch(pending)
        if self.in_force is not None and self.phase is Phase.WAITING:
            self._enter(self.in_force)

    def _at_promise(self, pending: Pending) -> bool:
        if pending.promise is None:
            return False
        return self.in_force is None or self._next_step(self.in_force) >= pending.promise

    def _next_step(self, quorum: m.Quorum) -> int:
        """The step that the next boundary begins under the quorum in force."""
        assert quorum.step is not None, "a quorum in force has its step"
        is_first = self._entered != quorum.attempt
        return quorum.step if is_first else self.state.step

    def _last_begun(self, quorum: m.Quorum) -> int:
        """No switch is promised up to this step.

        A quorum in force is left after one step of it at the earliest, for only its first step
        makes sure that this worker holds the state.
        """
        assert quorum.step is not None, "a quorum in force has its step"
        return self._begun if self._entered == quorum.attempt else quorum.step

    def _carry_out_switch(self, pending: Pending) -> None:
        if not self._is_member(pending.quorum):
            self._leave("drained")
            return
        old = self.in_force
        self._adopt(replace(pending.quorum, step=pending.promise))
        if old is not None:
            self._out.append(e.DropGroup(old.attempt))

    def _adopt(self, quorum: m.Quorum) -> None:
        self.in_force = quorum
        self.pending = None
        self._out.append(e.UseGroup(quorum))

    def _enter(self, quorum: m.Quorum) -> None:
        """Begin a step under ``quorum``."""
        is_first = self._entered != quorum.attempt
        heals = is_first and self._is_newcomer(quorum)
        step = self._next_step(quorum)
        if is_first and not heals:
            unlike = quorum.state is not None and quorum.state != self.state
            if unlike or self.state.step != step:
                self._give_up(f"holds {self.state}, not what {quorum.attempt} begins with")
                return
        self.healing = heals
        self.loaded = self.loaded if heals and self.loaded == quorum.state else None
        self._begin(Tag(quorum.attempt, step))
        if is_first:
            self._announce(quorum)

    def _begin(self, tag: Tag) -> None:
        self.phase = Phase.STEPPING
        self.fate = Fate.OPEN
        self.tag = tag
        self._repeats = self._entered == tag.attempt and self._begun == tag.step
        self._begun = tag.step
        self._ledger = OperationLedger()
        self._deadline = None

    def _announce(self, quorum: m.Quorum) -> None:
        """The quorum is in force here: say so, and give or fetch the state. Once per attempt."""
        assert self.tag is not None
        self._entered = quorum.attempt
        self._out.append(e.Send(m.InForce(quorum.attempt, self.tag.step)))
        if self._must_heal:
            self._out.append(e.LoadState(self.tag, quorum))
        if self.key.replica_id in quorum.donors and quorum.newcomers:
            self._retire()
            self._offered = self.tag
            self._out.append(e.OfferState(self.tag, self.state, len(quorum.newcomers)))

    def _retire(self) -> None:
        if self._offered is not None:
            self._out.append(e.RetireState(self._offered))
            self._offered = None

    def _on_vote_started(self, event: e.VoteStarted) -> None:
        if self.in_step:
            self.phase = Phase.VOTING
            self._voted = self.tag if self.fate is not Fate.VOID else None

    def _on_decided(self, event: e.Decided) -> None:
        if not self.in_step:
            return
        commit = event.commit and self._may_commit and not event.torn
        self._end_step(commit, event.shared and not event.torn, event.reason)
        if event.torn:
            self._give_up_torn()

    @property
    def _may_commit(self) -> bool:
        if self.fate is Fate.VOID or self.healing:
            return False
        if self._workers == 1:
            return self.settled
        if self.fate is Fate.HELD:
            return self._vote_stands
        return self._ledger.complete and self._voted == self.tag  # C1, C3

    def _end_step(self, committed: bool, shared: bool, reason: str) -> None:
        assert self.tag is not None
        tag, was_open = self.tag, self.fate is Fate.OPEN
        stays = committed or (shared and self._ledger.complete and not self.healing)
        self._retire()
        if not self._ledger.all_handed and self.fate is not Fate.VOID:
            self._out.append(e.FailOperations(reason))
        if committed:
            self.state = self.state.committed(tag)  # C2
        self.tag = None
        self.phase = Phase.IDLE
        self.fate = Fate.VOID
        self._voted = None
        self._deadline = None
        self._ledger = OperationLedger()
        if was_open and not stays:
            self._give_up(reason or "the step was not committed", step=tag.step)

    def _on_state_reset(self, event: e.StateReset) -> None:
        self.state = event.state
        self._give_up("the script has set its step")
        if self.in_step and self.fate is not Fate.VOID:
            self._void("the script has set its step")

    def _on_went_away(self, event: e.WentAway) -> None:
        self._leave(event.reason)

    def _leave(self, reason: str) -> None:
        self._retire()
        if self.in_step and not self._ledger.all_handed:
            self._out.append(e.FailOperations(f"the script leaves: {reason}"))
        self._out.append(e.Send(m.Leaving(self.state, reason)))
        self.phase = Phase.LEFT

    # ------------------------------------------------------------ operations

    def _on_operation_issued(self, event: e.OperationIssued) -> None:
        self._ledger.issue(event.held, event.closes)
        if self.fate is Fate.STANDS:
            self._void("an operation was issued after an interrupt at which all were complete")
        elif self.fate is Fate.VOID:
            self._out.append(e.FailOperations(self.void_reason or "no step is under way"))
        elif self.fate is Fate.OPEN:
            self._deadline = self._now + self._operation_timeout_s

    def _on_operation_completed(self, event: e.OperationCompleted) -> None:
        if not self._counts(event.attempt) or not self._ledger.finish(event.index):
            return  # C3
        left = self._ledger.outstanding
        self._deadline = self._now + self._operation_timeout_s if left else None
        ready = self._ledger.take_ready()
        if ready:
            self._out.append(e.HandOut(ready))

    def _on_operation_failed(self, event: e.OperationFailed) -> None:
        if self._counts(event.attempt):
            self._give_up(f"operation {event.index}: {event.reason}")

    def _counts(self, attempt: Attempt) -> bool:
        return self.may_issue and self.tag is not None and self.tag.attempt == attempt

    # ------------------------------------------------------------ healing

    @property
    def _must_heal(self) -> bool:
        return self.healing and self.loaded is None

    def _on_state_loaded(self, event: e.StateLoaded) -> None:
        if event.tag != self.tag or not self._must_heal or self.fate is not Fate.OPEN:
            return
        assert self.in_force is not None
        wanted = self.in_force.state or event.state
        if event.state == wanted and event.state.step == event.tag.step:
            self.loaded = event.state
        else:
            self._give_up(f"heal: donors hold {event.state}, not what {event.tag} begins with")

    def _on_state_applied(self, event: e.StateApplied) -> None:
        if not self.healing or self.tag is None:
            return
        if self.loaded is None:  # given up while it was applied: nobody else holds such a state
            lineage = extend_lineage(self.state.lineage, self.tag)
            self.state = replace(self.state, lineage=lineage)  # S1
            return
        self.state = self.loaded
        self.loaded = None
        self.healing = False
        step, donors = self.state.step, event.donors
        healed = m.Healed(self.tag.attempt, step, donors, event.nbytes, event.duration_s)
        self._out.append(e.Send(healed))

    def _on_heal_failed(self, event: e.HealFailed) -> None:
        if event.tag == self.tag and self._must_heal and self.fate is Fate.OPEN:
            self._give_up(f"heal: {event.reason}")

    # ------------------------------------------------------------ giving up, and the verdict

    def _give_up(self, reason: str, step: int | None = None) -> None:
        """An error of this worker's own: the quorum in force, and what follows it, is over here."""
        if self.in_force is None:
            return
        attempt = self.in_force.attempt
        position = self.position if step is None else step
        self._abort(self.seen)
        self._out.append(e.Send(m.Errored(attempt, position, reason)))

    def _give_up_torn(self) -> None:
        """A mate is a quorum ahead or behind: none that any rank has can go on, only a next one.

        Else one would begin a step under it alone, and its next vote would meet the wrong one too.
        """
        quorum = self.in_force or (self.pending.quorum if self.pending is not None else None)
        if quorum is not None:
            self._abort(self.seen)
            reason = "the ranks of the replica group voted for different steps"
            self._out.append(e.Send(m.Errored(quorum.attempt, self.state.step, reason)))

    def _abort(self, attempt: Attempt) -> None:
        """Everything up to and including ``attempt`` counts for nothing any more."""
        self.interrupted = self.seen = attempt
        if self.in_force is not None:
            self._out.append(e.AbortGroup(self.in_force.attempt))
            self.in_force = None
        self._drop_pending()
        if self.in_step and self.fate is not Fate.VOID:
            self.fate = Fate.HELD
            self._deadline = self._now + self._quorum_timeout_s

    def _drop_pending(self) -> None:
        if self.pending is not None and self._is_member(self.pending.quorum):
            self._out.append(e.AbortGroup(self.pending.attempt))
        self.pending = None

    def _judge(self, quorum: m.Quorum) -> None:
        """The verdict of ``quorum`` on the step under way."""
        tag = self.reduced or (self._voted if self._ledger.complete else None)
        held = self.loaded if self.healing else self.state
        if tag is not None and held is not None and quorum.state == held.committed(tag):
            self.fate = Fate.STANDS
            self._deadline = None
        elif self._repairable(quorum):
            self.fate = Fate.REPAIR
            self.loaded = self.loaded if self.loaded == quorum.state else None
        else:
            again = quorum.state == self.state
            fate = "is computed again" if again else f"is left out: it goes on from {quorum.state}"
            self._void(f"interrupted; in quorum {quorum.attempt} this step {fate}")

    def _repairable(self, quorum: m.Quorum) -> bool:
        """Whether the operations of this step can go out again under ``quorum``.

        A newcomer may be interrupted before it has healed: it adds zeros again, and heals then.
        """
        if not self._repair or not self._ledger.untouched or quorum.step != self.position:
            return False
        if self.healing:
            return self._is_newcomer(quorum) and not self.heals_first
        return quorum.state == self.state

    def _void(self, reason: str) -> None:
        self.fate = Fate.VOID
        self.void_reason = reason
        self._voted = None
        self._deadline = None
        self._out.append(e.FailOperations(reason))

    # ------------------------------------------------------------ the lighthouse

    def _on_interrupt(self, event: m.Interrupt) -> None:
        if event.attempt < self.seen:
            return  # Q2: stale
        if event.attempt > self.interrupted:
            self._abort(event.attempt)
        self._out.append(e.Send(self.report()))

    def _on_new_quorum(self, event: m.NewQuorum) -> None:
        quorum = event.quorum
        if not self._is_new(quorum) or not self._is_member(quorum):
            return
        if self.in_force is not None or self.pending is not None:
            self._abort(self.seen)  # the Interrupt was lost on the way
        self._take(quorum, is_switch=False)
        if self.in_step and self.fate is Fate.HELD:
            self._judge(quorum)

    def _is_newcomer(self, quorum: m.Quorum) -> bool:
        return self.key.replica_id in quorum.newcomers

    def _is_member(self, quorum: m.Quorum) -> bool:
        return quorum.index(self.key.replica_id, self.key.incarnation) is not None

    def _is_new(self, quorum: m.Quorum) -> bool:
        """Whether to act upon ``quorum``; one that is known and built is confirmed again."""
        built = self.pending.quorum if self.pending is not None and self.pending.built else None
        if quorum.attempt in {q.attempt for q in (self.in_force, built) if q is not None}:
            self._out.append(e.Send(m.Built(quorum.attempt)))
        return quorum.attempt > self.seen

    def _take(self, quorum: m.Quorum, is_switch: bool) -> None:
        self.seen = quorum.attempt
        self.pending = Pending(quorum, is_switch)
        self._out.append(e.BuildGroup(quorum))

    def _on_prepare(self, event: m.Prepare) -> None:
        quorum = event.quorum
        if not self._is_new(quorum):
            return
        joins, is_member = self._is_newcomer(quorum), self._is_member(quorum)
        is_bound = self.pending is not None and self.pending.confirmed
        if not joins and (is_bound or (is_member and self.in_force is None)):
            self._out.append(e.Send(self.report()))  # the lighthouse is mistaken about us
            return
        if joins and self.in_force is not None:
            self._abort(self.seen)  # the others have gone on without us
        self._drop_pending()
        if self.fate in (Fate.HELD, Fate.REPAIR):  # no quorum will tell any more
            self._void(f"interrupted; this replica joins quorum {quorum.attempt} anew")
        if is_member:
            self._take(quorum, is_switch=True)
        else:  # the switch to leave by
            self.seen = quorum.attempt
            self.pending = Pending(quorum, is_switch=True, built=True)
            self._out.append(e.Send(m.Built(quorum.attempt)))

    def _on_group_built(self, event: e.GroupBuilt) -> None:
        pending = self.pending
        if self.in_force is not None and self.in_force.attempt == event.attempt:
            return
        if pending is None or pending.attempt != event.attempt:
            self._out.append(e.DropGroup(event.attempt))
            return
        pending.built = True
        self._out.append(e.Send(m.Built(event.attempt)))
        if not pending.is_switch:
            self._adopt(pending.quorum)
        if self.fate is Fate.REPAIR:
            self._repair_under(pending.quorum)
        self._advance()

    def _repair_under(self, quorum: m.Quorum) -> None:
        assert self.tag is not None
        self.tag = Tag(quorum.attempt, self.tag.step)
        self.fate = Fate.OPEN
        self._repeats = False
        self._ledger.start_again()
        self._deadline = self._now + self._operation_timeout_s if self._ledger.issued else None
        self._announce(quorum)
        self._out.append(e.Reissue())

    def _on_group_failed(self, event: e.GroupFailed) -> None:
        if self.pending is not None and self.pending.attempt == event.attempt:
            self._out.append(e.Send(m.BuildFailed(event.attempt, event.reason)))

    def _on_propose(self, event: m.ProposeSwitch) -> None:
        pending = self.pending
        is_known = pending is not None and pending.attempt == event.attempt
        if pending is None or not is_known or not pending.is_switch or not pending.built:
            self._refuse(event)
        elif pending.confirmed or (pending.promise is not None and event.step < pending.promise):
            return  # stale: proposals only rise
        elif self.in_force is not None and not self._can_promise(event.step, self.in_force):
            self._refuse(event)
        else:
            pending.promise = event.step
            self._out.append(e.Send(m.Promised(event.attempt, event.step)))
            self._advance()

    def _can_promise(self, step: int, quorum: m.Quorum) -> bool:
        return step > self._last_begun(quorum) and not self._hold_members

    def _refuse(self, event: m.ProposeSwitch) -> None:
        quorum = self.in_force
        current = self.position if quorum is None else self._last_begun(quorum)
        self._out.append(e.Send(m.Refused(event.attempt, event.step, current)))

    def _on_switch(self, event: m.Switch) -> None:
        pending = self.pending
        if self.in_force is not None and self.in_force.attempt == event.attempt:
            self._out.append(e.Send(m.InForce(event.attempt, event.step)))
        elif pending is not None and pending.attempt == event.attempt:
            pending.confirmed |= pending.promise == event.step
            self._advance()

    def _on_cancel(self, event: m.Cancel) -> None:
        pending = self.pending
        if pending is None or pending.attempt != event.attempt:
            return
        if pending.is_switch and not pending.confirmed:
            self._drop_pending()
            self._advance()

    def _on_ask_report(self, event: m.AskReport) -> None:
        self._out.append(e.Send(self.report()))

    def _on_isolation(self, event: m.Isolation) -> None:
        if event.isolated and not self.isolated:
            self._isolated_since = self._now
        elif self.isolated and not event.isolated and self._deadline is not None:
            self._deadline += self._now - self._isolated_since  # that time does not count
        self.isolated = event.isolated
        self._advance()

    # ------------------------------------------------------------ time

    def _on_ticked(self, event: e.Ticked) -> None:
        if self._deadline is None or self._now < self._deadline or self.isolated:
            return
        if self.fate is Fate.OPEN:
            self._give_up(f"no operation completed for {self._operation_timeout_s:g} s")
        elif self.fate in (Fate.HELD, Fate.REPAIR) and not self.settled:
            self._void(f"no quorum for {self._quorum_timeout_s:g} s")
