"""One slot as its agent sees it: the running incarnation, its deadlines, its past.

Not here: reactions to events (supervisor.py), whether it is restarted (restarts.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import Enum

from ftrun.core.activity import STANDING_STILL, Activity
from ftrun.core.agent.events import WorkerExited
from ftrun.core.agent.evidence import Ends
from ftrun.core.agent.failures import Failure
from ftrun.core.agent.hang_watch import HangWatch
from ftrun.core.agent.loop_watch import LoopWatch
from ftrun.core.agent.restarts import RestartBudget, Verdict
from ftrun.core.agent.script_timers import ScriptTimers
from ftrun.core.messages import FailureReport, Progress, ReplicaFinished, ReplicaGivenUp
from ftrun.core.replay.afterwards import StepVerdict
from ftrun.core.replay.mending import Mending

FAILURES_KEPT = 16


class SlotPhase(Enum):
    """The phase of a slot; see the table in supervisor.py."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Leaves(Enum):
    """People's request to a slot whose scripts must stop while the job continues."""

    FOR_GOOD = "drain"
    TO_RESTART = "restart"


class Outcome(Enum):
    """How a slot has ended."""

    FINISHED = "finished"
    DRAINED = "drained"
    STOPPED = "stopped"
    KILLED = "killed"
    FAILED = "failed"
    CRASH_LOOP = "crash loop"
    WILL_NOT_HELP = "would fail again"
    BUDGET_SPENT = "restarts spent"


@dataclass(frozen=True, slots=True)
class SlotSummary:
    """One slot's part in the final report.

    ``status``: the last worker's exit status. ``lost_s``: the time in which the slot could not
    train after its first quorum: dead, without a quorum, or waiting for a peer. ``killed``: how, if
    it did not end when asked. ``left_early``: the step at which its script has ended while its
    peers train.
    """

    replica_id: str
    phase: SlotPhase
    outcome: Outcome | None
    steps: int
    restarts: int
    lost_s: float
    status: int | None
    failures: tuple[Failure, ...]
    killed: str = ""
    left_early: int | None = None


@dataclass
class Replaced:
    """A worker that died, until its replacement has joined. ``is_gone``: its process is gone.

    ``at``: the time of its death. ``step``: the step from which the replacement repeats;
    ``reached``: the number of steps made. ``incident``: the incarnation as which its evidence was
    sent; "": not yet.
    """

    end: WorkerExited
    failure: Failure
    at: float
    step: int
    reached: int = 0
    is_gone: bool = False
    incident: str = ""


@dataclass
class Mend:
    """All of a group are connected again, ``after_s`` after a death; this must be reported.

    ``replaced``: by rank, the workers whose ``ends`` these were; ``lives``: the lives of their
    replacements; ``number``: the restart's. ``rewound_to``: the step at which all resumed after a
    ``fall``; None: they did not.
    """

    ends: Ends
    replaced: dict[int, Replaced]
    lives: dict[int, int]
    after_s: float
    number: int
    rewound_to: int | None
    fall: str


@dataclass
class Slot:
    """The part of a slot that outlives its incarnations.

    ``started``: the number of starts, of all workers or of one alone. ``restarts``: the number of
    failures that count as a restart; the death of a worker counts whatever its consequence.
    ``asked_with``: the signal with which its scripts were asked to stop. ``has_trained``: it was in
    a quorum once; ``has_committed``: it has committed a step; ``steps_alone``: an optimizer steps,
    and there is no Manager. ``begun_at``: when its last incarnation was started. ``forgotten``: it
    belongs to another agent as soon as the processes here have ended. ``lost_at``: since when it
    cannot train; None while it can. ``mending``: the replacement of single workers of its last
    incarnation; None: there are no memory snapshots. ``begins_from``: the step of which workers
    have left their state, and from which the next ones begin; -1: there is none. ``empty``: how
    many of its steps were none of the script's.
    """

    replica_id: str
    budget: RestartBudget
    started: int = 0
    restarts: int = 0
    asked_with: int = 0
    has_trained: bool = False
    has_committed: bool = False
    steps_alone: bool = False
    begun_at: float = 0.0
    forgotten: bool = False
    failures: deque[Failure] = field(default_factory=lambda: deque(maxlen=FAILURES_KEPT))
    lost_at: float | None = None
    lost_s: float = 0.0
    status: int | None = None
    mending: Mending | None = None
    begins_from: int = -1
    empty: int = 0


@dataclass
class SlotState(Slot):
    """A slot with its last incarnation. Deadlines are None while they are off.

    Workers. ``alive``: group_ranks whose process is not gone. ``dying``: the ones whose death is
    reported already. ``left``: group_ranks that left at a boundary. ``done``: those whose script
    had ended before it was asked to stop. ``killed_on_request``: workers that people have killed.
    ``has_manager``: one of its workers has sent a message, so there is a Manager.

    State of the incarnation. ``left_early``: the step at which its script has ended while its peers
    train. ``lost``: its loss is reported. ``killed``: how, if the group did not end when asked.
    ``has_joined``: it was in a quorum; ``has_stepped``: an optimizer steps, and there is no
    Manager. ``hang_watch``, ``loop_watch``, ``script_timers``: watch its workers. ``leaves``:
    people's request for it; None: there is none.

    Failures. ``ends``: the bad ends of its workers so far. ``is_failing``: it has failed, and is
    judged when all of its workers have ended. ``hung``: it is given up when its stacks are taken,
    or at ``stacks_at``. ``restart_in_s``, ``outcome_ahead``: the consequence when all workers of a
    failed group have ended. ``given_up``: it is not started again, and the lighthouse decides what
    follows. ``has_failed``: the node's health is checked before the next start; ``is_checked``,
    ``is_healthy``: the check was requested, or has passed (health.py).

    Replacements. ``replaced``: workers that died, until all make progress; ``mended``: the workers
    of the last mend. ``untold``: mends that are not reported yet, until the fate of the step is
    known that is ``awaited``. ``lives``: by rank, the number of restarts when it was started.
    ``look_at``: when to check the board; ``slow_at``: when to report that it takes long. ``fall``:
    why the whole group has failed after all; ``verdict``: its verdict, if the budget was charged
    already. ``booked``: the number of the newest restart that a replacement has taken from the
    budget. ``ending``: the ranks whose processes are not gone yet, after which all resume from
    memory; ``rewound_to``: the step at which they have resumed. ``waits_from``: the step at which
    they can resume, once a node has replaced a lost one. ``corrupted``: a worker that is killed
    because its parameters are not its mates' any more, and the cause; ``agreed``, ``odd``: the step
    from which all have resumed because of that, and whose parameters differed.

    Start. ``goes_after``: the incarnations here that train and have no quorum yet. The next start
    waits until ``goes_at``, or until they have a quorum.
    """

    phase: SlotPhase = SlotPhase.WAITING
    outcome: Outcome | None = None
    incarnation: str = ""
    alive: set[int] = field(default_factory=set)
    dying: set[int] = field(default_factory=set)
    failure_reports: dict[int, FailureReport] = field(default_factory=dict)
    has_manager: bool = False
    left: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    left_early: int | None = None
    killed: str = ""
    leaves: Leaves | None = None
    killed_on_request: set[int] = field(default_factory=set)
    has_joined: bool = False
    hang_watch: HangWatch = field(default_factory=lambda: HangWatch(0.0))
    loop_watch: LoopWatch = field(default_factory=lambda: LoopWatch(0.0))
    script_timers: ScriptTimers = field(default_factory=ScriptTimers)
    lost: bool = False
    ends: Ends = field(default_factory=Ends)
    is_failing: bool = False
    hung: WorkerExited | None = None
    has_stepped: bool = False
    given_up: ReplicaGivenUp | None = None
    has_failed: bool = False
    is_checked: bool = False
    is_healthy: bool = False
    replaced: dict[int, Replaced] = field(default_factory=dict)
    mended: dict[int, Replaced] = field(default_factory=dict)
    untold: list[Mend] = field(default_factory=list)
    awaited: StepVerdict | None = None
    lives: dict[int, int] = field(default_factory=dict)
    fall: str = ""
    verdict: Verdict | None = None
    booked: int = 0
    ending: set[int] | None = None
    rewound_to: int | None = None
    waits_from: int | None = None
    corrupted: tuple[int, str] | None = None
    agreed: int = -1
    odd: tuple[int, ...] = ()
    goes_after: set[str] = field(default_factory=set)
    goes_at: float = 0.0
    restart_in_s: float | None = None
    outcome_ahead: Outcome | None = None
    wake_at: float | None = None
    press_at: float | None = None
    kill_at: float | None = None
    stuck_at: float | None = None
    stacks_at: float | None = None
    look_at: float | None = None
    slow_at: float | None = None

    def begin(
        self, incarnation: str, workers: int, hang_timeout_s: float, hang_factor: float = 0.0
    ) -> None:
        """Begin a new incarnation. Only the fields of ``Slot`` are kept."""
        self.restarts += self.started > 0 and self.verdict is None
        stays = {one.name: getattr(self, one.name) for one in fields(Slot)}
        vars(self).update(vars(SlotState(**stays)))
        self.incarnation = incarnation
        self.phase = SlotPhase.RUNNING
        self.alive = set(range(workers))
        self.lives = dict.fromkeys(self.alive, self.started)
        self.started += 1
        self.hang_watch = HangWatch(hang_timeout_s)
        self.loop_watch = LoopWatch(hang_factor)
        self.budget.started()

    def wait(self, now: float, delay_s: float) -> None:
        """Start again after ``delay_s``, and after the survivors here (``goes_at``)."""
        self.phase = SlotPhase.WAITING
        self.wake_at = max(now + delay_s, self.goes_at)

    def lets(self, incarnation: str, now: float, repair_s: float) -> None:
        """This incarnation is in a quorum again and repairs its step: stop waiting for it."""
        if incarnation in self.goes_after:
            self.goes_after.remove(incarnation)
            if not self.goes_after:
                due, self.goes_at = self.goes_at, min(self.goes_at, now + repair_s)
                self.wake_at = self.goes_at if self.wake_at == due else self.wake_at

    def end(self, outcome: Outcome, now: float) -> None:
        """The slot does not run any more and is not started again."""
        self.phase = SlotPhase.ENDED
        self.outcome = outcome
        self.goes_on(now)
        self.clear_deadlines()

    def clear_deadlines(self) -> None:
        self.wake_at = self.press_at = self.kill_at = self.stuck_at = self.stacks_at = None
        self.look_at = self.slow_at = None

    def deadlines(self) -> Iterator[float]:
        for at in (self.wake_at, self.press_at, self.kill_at, self.stuck_at, self.stacks_at):
            if at is not None:
                yield at
        if self.phase is SlotPhase.RUNNING:
            yield from self.hang_watch.deadlines()
            if self.look_at is not None:
                yield self.look_at
            if self.hung is None:
                yield from self.loop_watch.deadlines()
                yield from self.script_timers.deadlines()

    @property
    def living(self) -> set[int]:
        """The workers whose script may still run."""
        return self.alive - self.dying

    @property
    def trains(self) -> bool:
        """Whether this incarnation is one of those with which a quorum continues."""
        is_sound = self.phase is SlotPhase.RUNNING and not self.is_failing
        return is_sound and self.has_joined and self.left_early is None

    @property
    def is_at_start(self) -> bool:
        """True while no step of this slot is known."""
        return self.budget.mark == 0 and not self.has_trained and not self.steps_alone

    @property
    def is_unjoined(self) -> bool:
        """It was started again, its slot has trained, and this incarnation was in no quorum."""
        return self.started > 1 and self.has_trained and not self.has_joined

    def finished(self) -> ReplicaFinished:
        """The report that all its workers have ended with exit code 0."""
        is_idle = not (self.has_trained or self.has_committed)
        how = is_idle, self.is_unjoined, self.left_early
        return ReplicaFinished(self.replica_id, self.incarnation, *how)

    def has_position(self, failure: Failure) -> bool:
        """Whether the failure's step is certain: the worker has named it, or it has made none.

        The step of its last progress is not certain, because the worker may have made more since.
        """
        return failure.step is not None or (self.budget.step is None and not self.has_stepped)

    @property
    def is_apart(self) -> bool:
        """True while its script trains without a Manager."""
        return self.phase is SlotPhase.RUNNING and self.has_stepped and not self.has_manager

    @property
    def has_left(self) -> bool:
        """True if all its workers left at an agreed boundary, including those that still live."""
        return bool(self.left) and self.alive <= self.left

    def stands(self, since: float) -> None:
        """The slot cannot train, and that began at ``since``."""
        if self.lost_at is None:
            self.lost_at = since

    def goes_on(self, now: float) -> None:
        """The slot trains again, or has ended: count the time in which it could not train."""
        if self.lost_at is not None:
            self.lost_s += max(0.0, now - self.lost_at)
            self.lost_at = None

    def account(self, progress: Progress, now: float) -> None:
        """Count the seconds in which a slot that has trained cannot train; note empty steps."""
        self.empty = max(self.empty, progress.empty)
        if not self.has_trained or self.lost:
            return
        if progress.phase in STANDING_STILL:
            self.stands(now - progress.since_s)
        if progress.phase not in STANDING_STILL or progress.phase is Activity.STOPPED:
            self.goes_on(now)

    def summary(self) -> SlotSummary:
        return SlotSummary(
            replica_id=self.replica_id,
            phase=self.phase,
            outcome=self.outcome,
            steps=max(0, self.budget.mark - self.empty),
            restarts=self.restarts,
            lost_s=self.lost_s,
            status=self.status,
            failures=tuple(self.failures),
            killed=self.killed,
            left_early=self.left_early,
        )
