"""A worker's step as its machine knows it: the questions that the shell may ask at any time.

Not here: events, and what follows from them (machine.py).
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from ftrun.core import messages as m
from ftrun.core.ids import Attempt, StateId, Tag, WorkerKey
from ftrun.core.quorum import Endpoint, Quorum, contributors
from ftrun.core.step_times import StepTimes
from ftrun.core.worker import events as e
from ftrun.core.worker.comparison import Comparisons, Entry, Question
from ftrun.core.worker.heal import HealState
from ftrun.core.worker.lease import WorkerLease
from ftrun.core.worker.offer import StateOffer
from ftrun.core.worker.pace import Pace
from ftrun.core.worker.quorums import Pending, Quorums
from ftrun.core.worker.shown import ShownActivity
from ftrun.core.worker.tries import Tries
from ftrun.core.worker.under_way import Fate, StepUnderWay

STORY_LINES_MAX = 64


class StepPhase(Enum):
    """Where the main thread is."""

    IDLE = "idle"
    WAITING = "waiting"
    STEPPING = "stepping"
    VOTING = "voting"
    LEFT = "left"


class StepFacts:
    """The state of one worker's machine. Only ``__init__`` changes it here.

    Args:
        key: this worker's identity.
        endpoint: the addresses at which its peers reach it.
        state: the state that it starts with.
        workers_per_replica: W; with W > 1 a commit needs the group's vote.
        is_kept: a commit needs the vote even if W is 1, because another process may replace this
            one, and counts as its mate.
        repair: reissue operations after an interrupt instead of discarding the step.
        heal_first: newcomers heal before their forward pass (synchronous quorum).
        contributors_max: members beyond it are spares (``FIXED_WITH_SPARES``); None: no limit.
        contributors_min: with fewer, no replica commits, and the step is repeated.
        tells_min: the lighthouse knows ``contributors_min``, and forms no smaller quorum.
        operation_timeout_s: seconds after which an outstanding operation is an error.
        quorum_timeout_s: seconds that a step waits for the next quorum's verdict.
        results_timeout_s: seconds after which no further attempt is made to get a step's results,
            unless a member has announced a pause; None: no limit.
        is_known_when_issued: see ``Pace``.
    """

    def __init__(
        self,
        key: WorkerKey,
        endpoint: Endpoint,
        state: StateId,
        *,
        workers_per_replica: int = 1,
        is_kept: bool = False,
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
        self.heal = HealState(state, heal_first)
        self._lease = WorkerLease()
        self.agreed: StateId | None = None  # from the last m.Lease of its agent
        self.has_reported = False  # nothing is sent before the Report of the first step
        self.repeats = False  # it repeats, alone, the steps of the lost worker that it replaces
        self.asks_for_peers = self.has_asked_for_peers = False
        self.sets_up_together = False
        """Its process groups span all replicas."""
        self.serves_between_steps = False
        """Only the training thread can read its state, so it is not served in the middle of a
        step.
        """
        self._part: tuple[str, ...] = ()
        self.gaps = 0  # how often a quorum may have come and gone without this worker
        self._adopted: Attempt | None = None
        self.begun = 0  # steps, also those that were not committed
        self.was_taken = False  # the last step that ended here uncommitted (StepUnderWay.is_taken)
        self.lingers = False  # the script has ended: this worker commits nothing more
        self.ended_with: m.Mark | None = None
        """The parameters after the last step, which a script reports at its end."""
        self.trains_between_steps = False  # by itself: DiLoCo's inner steps, for example
        self.quorums = Quorums(key)
        self._tries = Tries()
        self._step: StepUnderWay | None = None
        self._comparisons = Comparisons(key)
        self._too_few = 0  # steps in a row, under this quorum, with too few contributors
        self._too_few_since = 0.0
        self._between_steps = StepPhase.IDLE  # or WAITING or LEFT
        self._decides_alone = workers_per_replica == 1 and not is_kept
        self._repair = repair
        self._contributors_max = contributors_max
        self.contributors_min = contributors_min
        self._tells_min = tells_min
        self._operation_timeout_s = operation_timeout_s
        self._quorum_timeout_s = quorum_timeout_s
        self._results_timeout_s = results_timeout_s
        self._offer = StateOffer()
        self._peers_ended = False  # this newcomer has met peers whose scripts have ended
        self._leaves_for: m.LeaveReason | None = None  # at the next boundary, by itself
        self._between_since = 0.0  # the start of the phase between steps
        self.shown = ShownActivity()
        self.step_times = StepTimes()
        self.pace = Pace(is_known_when_issued=is_known_when_issued)
        self._now = 0.0
        self._out: list[e.Instruction] = []
        self._story: deque[tuple[float, object]] = deque(maxlen=STORY_LINES_MAX)

    @property
    def state(self) -> StateId:
        return self.heal.state

    @property
    def healing(self) -> bool:
        """The script does not hold the quorum's state yet."""
        return self.heal.healing

    def seed(self) -> e.Succeeds:
        """Where a replacement begins the step that has just begun with the job's state."""
        step, quorum, shapes = self._step, self.in_force, self._comparisons.committed
        assert step is not None and quorum is not None, "a step has begun"
        begun, tries = self.begun - 1, self._tries.count
        return e.Succeeds(self.state, quorum, begun, shapes, tries, step.repeats)

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
        return self._step.tag if self._step is not None else None

    @property
    def commits_as(self) -> Tag | None:
        """The tag under which the step under way is committed; see StepUnderWay."""
        return self._step.commits_as if self._step is not None else None

    @property
    def in_force(self) -> Quorum | None:
        return self.quorums.in_force

    @property
    def pending(self) -> Pending | None:
        return self.quorums.pending

    @property
    def in_step(self) -> bool:
        return self._step is not None

    @property
    def freezes_membership(self) -> bool:
        """Whether no replica may join at the step under way."""
        return self.quorums.freezes_membership

    @property
    def position(self) -> int:
        """The step that is under way, or else the next one."""
        return self._step.tag.step if self._step is not None else self.heal.state.step

    @property
    def place(self) -> tuple[int | None, bool]:
        """``position``, and whether the worker still heals there; None: no step has begun."""
        return (self.position, self.healing) if self.begun else (None, False)

    @property
    def is_alone(self) -> bool:
        """Whether an exchange might wait for peers forever, and its result does not count.

        That is so if the step under way is void; or if this worker, in no quorum, has promised to
        join one at its next boundary; or if it is to heal there, because its quorum holds another
        state.
        """
        if self._step is not None:
            return self._step.fate is Fate.VOID
        pending, quorum = self.pending, self.in_force
        if quorum is None:
            return pending is not None and pending.promise is not None
        return self.quorums.is_unentered and self.quorums.is_newcomer(quorum)

    @property
    def is_set_up(self) -> bool:
        """The script has reached its first boundary: its set-up is over."""
        return self.begun > 0 or self.phase is not StepPhase.IDLE

    @property
    def late_to(self) -> int:
        """The step that this worker has healed to, has begun with, or has come back at.

        Its peers may have exchanged values at that step, and at earlier ones, without it.
        """
        return self.heal.healed_to

    @property
    def heals_to(self) -> int | None:
        """The step whose state this worker is healing to; None: it holds its quorum's state."""
        is_healing = self.healing and self.in_force is not None
        return self.in_force.first_step if is_healing and self.in_force is not None else None

    @property
    def trains_from(self) -> StateId | None:
        """The state from which it trains the step under way with its peers; None: it does not.

        Not a state to which it has just healed: its script may be at its end. Nor once it has all
        results of the step: the peer that asks took part in it, and both may end there.
        """
        step = self._step
        trains = step is not None and step.fate is Fate.OPEN and not step.operations.all_handed
        is_its_own = not self.healing and self.state.step > self.heal.given_at
        return self.state if trains and is_its_own else None

    @property
    def may_issue(self) -> bool:
        """Whether operations are issued now; otherwise they are kept for the repair."""
        return self.fate is Fate.OPEN

    def look_up(self, question: Question) -> Entry | None:
        """This worker's answer to a peer's question; None: it is not known yet."""
        current = self._step.comparison if self._step is not None else None
        if self.lingers and current is not None and current.is_asked(question):
            return Entry(None, changed=False, cleared=True, over=True)
        return self._comparisons.look_up(question, current)

    def takes(self, entry: Entry) -> bool:
        """Whether a peer's answer settles a comparison here, or the peer must be asked again.

        The answer of a peer at the end of its script is meant for newcomers, which heal from it. A
        replica that trains continues as soon as that peer has left.
        """
        return self.healing or self._peers_ended or not entry.over

    def counts(self, attempt: Attempt) -> bool:
        """Whether an operation's result or error under ``attempt`` has an effect here (C3)."""
        return self._step is not None and self._step.counts(attempt)

    @property
    def reduced(self) -> Tag | None:
        """The tag under which the results of this step stand, if they do.

        A loaded state counts as held before it is applied. In a group of several workers it does
        not, because a mate may lack it (C1).
        """
        step = self._step
        if step is None or step.fate is Fate.INTERRUPTED:
            return None
        lacks_state = self.healing and (self.heal.loaded is None or not self._decides_alone)
        return step.results if not lacks_state else None

    @property
    def is_decidable(self) -> bool:
        """The main thread can decide: nothing that could change the step is outstanding."""
        if self._step is not None and self.fate is Fate.VOID and self._leaves_for:
            return True
        if self.isolated or self._step is None:
            return False  # Q3: the peers may have continued without this worker
        if self.fate is Fate.INTERRUPTED_COMPLETE:
            may_stand = self._decides_alone and not self._step.is_blind
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

        If the vote was true, all ranks have reported their results, and no rank is asked a second
        time.
        """
        voted = self._step.voted if self._step is not None else None
        return voted is not None and voted == self.reduced

    @property
    def must_catch_up(self) -> bool:
        """Whether this worker, between two steps, lacks the last step, which its peers have
        committed.

        The quorum in force, or the one that is joined at the next boundary, continues from the
        result of that step. A still later state belongs to another place in the script: this worker
        heals to it in its next step, where it is set to that place. A quorum may not know that this
        worker lacks the state: such a quorum is given up at the boundary, and the next one knows.
        """
        quorum, pending, after = self.in_force, self.pending, self.state.step + 1
        if quorum is None:
            return pending is not None and pending.promise == after
        if not self.quorums.is_unentered or quorum.first_step != after:
            return False
        return self.quorums.is_newcomer(quorum) or quorum.state not in (None, self.state)

    @property
    def heals_first(self) -> bool:
        """The state must be applied before the forward pass of this step.

        Not in a step that was begun to catch up, if the peers have advanced meanwhile.
        """
        if self.heal.catches_up and self.position != self.state.step + 1:
            return False
        always = self.heal.heals_first or self._peers_ended
        return self.healing and (always or self.position == 0)

    def contributors(self) -> tuple[int, ...]:
        """The replica_ranks that count in the step under way (C4).

        If the step is repeated because too few counted, the newcomers have healed and count.
        """
        quorum, step = self.in_force, self._step
        if quorum is None or step is None or step.tag.attempt != quorum.attempt:
            return ()
        healed = self.heal.heals_first or step.repeats
        return contributors(quorum, step.tag.step, healed, self._contributors_max)

    @property
    def tries_again(self) -> bool:
        """Whether the step under way was begun before under this quorum, with too few contributors.

        A log may then have results of either try under the same attempt.
        """
        return self._step is not None and self._step.repeats

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

        A healing worker reports the loaded state once the results of its step stand. Before that it
        reports its own state, so that it becomes a newcomer again, which adds zeros (C4).
        """
        reduced, step, pending = self.reduced, self._step, self.pending
        under, handed, done = None, 0, 0
        if step is not None and self._goes_on(step):
            under, operations = step.commits_as, step.operations
            handed, done = operations.handed, operations.done_until
        can_repair = step is None or (step.fate.is_interrupted and self._is_whole(step))
        stands = (
            self.heal.loaded if reduced is not None and self.heal.loaded is not None else self.state
        )
        return m.Report(
            state=stands,
            endpoint=self.endpoint,
            interrupted=self.quorums.interrupted,
            in_force=self.in_force,
            pending=pending.reported() if pending is not None else None,
            reduced=reduced,
            under=under,
            handed=handed,
            done=done,
            voted=step.voted if step is not None else None,
            healing=self.healing and reduced is None,
            torn=self.heal.torn and reduced is None,
            local_step_index=self.begun + (step is None),
            repairable=can_repair,
            freezes_membership=self.quorums.freezes_membership,
            too_few=self.is_stuck,
            contributors_min=self.contributors_min if self._tells_min else 0,
            refused=self._tries.refused,
            refused_tries=self._tries.count,
        )

    def check(self) -> None:
        """Assert the invariants between events (INVARIANTS.md: C3, Q2, Q5, S3)."""
        self.quorums.check()
        quorum, tag = self.in_force, self.tag
        assert not self.fate.is_interrupted or quorum is None, "interrupted, yet in a quorum"
        assert not self.heal.torn or self.healing or tag is None or self.fate is not Fate.OPEN, (
            "S3: trains from a torn state"
        )
        if self.fate is Fate.OPEN:
            assert tag is not None and quorum is not None, "open without a quorum in force"
            assert tag.attempt == quorum.attempt, "C3: open under another attempt"
            assert not self.quorums.is_unentered, "open in a quorum that has not begun"
        if self.fate is Fate.REPAIR:
            assert self.pending is not None and not self.pending.is_switch, (
                "repair without a new quorum"
            )

    def may_overwrite(self, tag: Tag) -> bool:
        """Whether the state for ``tag`` may be written over the script's own from here on."""
        return self.heal.torn and self._awaits_state(tag)

    def _awaits_state(self, tag: Tag) -> bool:
        return self.heal.must_load and self.fate is Fate.OPEN and tag == self.tag

    def _goes_on(self, step: StepUnderWay) -> bool:
        """Its part of the step can stand under the next quorum, before its group has voted."""
        may_stand = step.fate.is_interrupted and step.is_enough and not self.healing
        goes_on = self._repair or step.operations.complete
        return may_stand and goes_on and not self._decides_alone

    def _is_whole(self, step: StepUnderWay) -> bool:
        """Repair is on, no result was handed to the script, and no vote has begun."""
        return self._repair and step.operations.untouched and not step.is_voting

    def _repairable(self, step: StepUnderWay, quorum: Quorum) -> bool:
        """Whether the operations of this step can be issued again under ``quorum``.

        A newcomer that was interrupted before it had healed adds zeros again, and heals then.
        """
        if quorum.step != step.tag.step:
            return False
        if quorum.stands_as is not None:
            kept, operations = quorum.kept_by(self.key.group_rank), step.operations
            has_these = operations.handed <= kept <= operations.done_until
            is_of_it = kept == 0 or step.commits_as == quorum.repaired_tag
            return self._goes_on(step) and has_these and is_of_it and quorum.state == self.state
        if not self._is_whole(step):
            return False
        if self.key.replica_id in quorum.recomputes:
            return False
        if quorum.recomputes and self.sets_up_together:
            return False  # the script's own calls would wait for a replica whose step is void
        if quorum.newcomers and self.serves_between_steps and self.heal.heals_first:
            return False  # they heal before their forward pass, from a state that is read later
        if self.healing:
            return self.quorums.is_newcomer(quorum) and not self.heals_first
        return quorum.state == self.state

    def _missing(self, event: m.NewQuorum) -> int:
        """The number of tries of the quorum's first step that this worker must make as void."""
        quorum = event.quorum
        if self.fate is Fate.STANDS:  # it has not begun that step
            return event.refused_tries - self._tries.owed_at(quorum.first_step)
        if quorum.state != self.state and not (self.healing and self.position == quorum.step):
            return 0
        return event.refused_tries - self._tries.count - self._tries.owed_at(quorum.first_step)

    def _may_commit(self, step: StepUnderWay) -> bool:
        if step.fate is Fate.VOID or self.healing:
            return False
        if self._decides_alone:
            return self.is_decidable
        if step.fate.is_interrupted:
            return self._vote_stands
        return step.operations.complete and step.voted == step.commits_as  # C1, C3

    @property
    def is_stuck(self) -> bool:
        """Whether no further step comes at which a replica could join, so that it must join at this
        one.

        That is so if too few contributed twice: newcomers count in the second try, so a third
        cannot help. Or if the script has ended.
        """
        return self.lingers or self._too_few > 1
