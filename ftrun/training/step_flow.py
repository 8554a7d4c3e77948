"""The flow of a step in the main thread: begin, heal, decide.

| call                | in this order                                                              |
|---------------------|----------------------------------------------------------------------------|
| begin               | BoundaryReached; a quorum is in force, or the replica has left; heal, if a |
|                     | newcomer heals before its forward pass                                     |
| heal_after_backward | heal, with the reduced gradients at hand                                   |
| decide              | OperationsEnded; the step is decidable; results complete; heal, if not yet |
|                     | done; the group's vote; its verdict; Decided                               |

Each wait has a deadline, and ends early when the engine has a fatal error.

Not here: what users call, and its arguments (manager.py); any decision (core/worker/machine.py).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from ftrun.base import clock
from ftrun.base.errors import PeerError, UserError
from ftrun.core.worker import events as e
from ftrun.core.worker.facts import StepPhase
from ftrun.core.worker.under_way import Fate
from ftrun.training.engine import Engine
from ftrun.training.healing import OWN
from ftrun.training.joining import Joining
from ftrun.training.keeper import Keeper
from ftrun.training.resuming import Resuming
from ftrun.training.snapshots import Snapshots
from ftrun.training.vote import GroupVote, Votes

log = logging.getLogger(__name__)

FIRST_COMMITS = 2
"""Commits reported at once: the step in which the worker heals, and its own first step."""


@dataclass(frozen=True, slots=True)
class Choices:
    """How a Manager trains: its arguments, in the form that its parts need.

    Attributes:
        name: of the replica group, in the records of event_loggers.py.
        timeout_s: deadline of an operation, and of a heal.
        gives_up_s: how long to wait for a step's results before giving the step up; None: no limit.
        max_retries: consecutive steps that may fail; None: no limit.
    """

    name: str
    min_replica_size: int
    spares: bool
    repairs: bool
    heals_first: bool
    init_sync: bool
    timeout_s: float
    gives_up_s: float | None
    quorum_timeout_s: float
    connect_timeout_s: float
    max_retries: int | None


class _Until:
    """The deadline of one call of the script, over all of its waits.

    ``is_stated``: the call has stated it, so it covers every phase; otherwise each wait has its own
    deadline.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self.is_stated = timeout_s is not None
        self._end = math.inf if timeout_s is None else clock.now() + timeout_s

    def left_s(self, otherwise_s: float) -> float:
        """Seconds that are left; ``otherwise_s`` if the call has stated no timeout."""
        return max(0.0, self._end - clock.now()) if self.is_stated else otherwise_s


class StepFlow:
    """Begins, heals and decides one step after another. For the main thread only.

    Args:
        vote: the vote of a replica group of several workers; None for one worker.
        choices: how it trains.
        first_s: how long the first quorum may take, if ``quorum_timeout_s`` is less.
        resuming, snapshots: of this worker; None: it has no directory for snapshots.
        own_error: returns why the script's own process group has failed; called at the end of each
            step.
        keeper: of this worker; None: it is not kept.
    """

    def __init__(
        self,
        engine: Engine,
        vote: GroupVote | None,
        choices: Choices,
        first_s: float,
        resuming: Resuming | None = None,
        snapshots: Snapshots | None = None,
        own_error: Callable[[], Exception | None] | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self._keeper = keeper
        self._engine, self._machine = engine, engine.machine
        self._healing, self._progress = engine.healing, engine.progress
        self._vote = vote
        self._choices = choices
        self._first_s = max(first_s, choices.quorum_timeout_s)
        self._resuming = resuming
        self._snapshots = snapshots
        self._own_error = own_error
        self._longest_s = choices.timeout_s + choices.quorum_timeout_s
        self._failures = 0  # consecutive
        self._commits = 0  # since the start or the last heal
        self._error: Exception | None = None
        self._drawn = -1  # ``machine.begun`` of the step that began because its batch was drawn
        self.joining: Joining | None = None
        """This worker's part in Joins; None: the script has opened none."""

    def begin(
        self,
        freeze_membership: bool,
        timeout_s: float | None,
        *,
        for_draw: bool = False,
        catches_up: bool = False,
    ) -> bool:
        """Begin a step, unless one has begun in which nothing has happened yet.

        ``for_draw``: because its batch is drawn now; a newcomer heals first. No other step begins
        until this one is decided, because the batch belongs to it. ``catches_up``: only to take the
        peers' state.

        Returns:
            False if this replica has left instead.

        Raises:
            TimeoutError: no quorum within ``timeout_s``.
        """
        engine, machine = self._engine, self._machine
        self._error = None
        until = _Until(timeout_s)
        if engine.is_fresh or self._awaits_backward:
            if machine.heals_first:  # an earlier call timed out in its wait
                self._heal(lambda: not machine.may_issue, until)
            if for_draw:
                self._drawn = machine.begun
                self.heal_after_backward()
            return True
        if timeout_s is None:
            timeout_s = self._quorum_limit_s
        if self._resuming is not None:
            self._resuming.claim()
        if self._keeper is not None:
            self._keeper.begins()
        self._healing.forward_over()
        self._healing.passes.begins()
        machine.serves_between_steps = self._healing.serves_between_steps
        engine.register()
        has_resumed = False
        while True:
            boundary = e.BoundaryReached(freeze_membership, catches_up)
            self._await_step(boundary, until.left_s(timeout_s), until)
            if machine.phase is StepPhase.LEFT:
                engine.note_progress(at_once=True)
                return False
            if self._resuming is None or not self._resuming.is_pending:
                break
            has_resumed = self._resuming.load_now()
            if has_resumed:
                break
        self._healing.quorum_stands()
        if machine.heals_first:
            self._heal(lambda: not machine.may_issue, until)
        elif self._snapshots is not None and not (freeze_membership or machine.healing):
            self._snapshots.at_boundary()  # a job can resume only where replicas may join
        if self._keeper is not None:
            # A replica that resumes is not at its place in the script yet.
            self._keeper.has_begun(is_whole=not (machine.healing or has_resumed))
        if for_draw:
            self._drawn = machine.begun
            self.heal_after_backward()  # the sampler's position heals too
        return True

    def _await_step(self, boundary: e.BoundaryReached, timeout_s: float, until: _Until) -> None:
        """Come to the boundary, and wait until a step has begun there or this replica has left."""
        engine, machine = self._engine, self._machine
        engine.feed(boundary)
        engine.raise_fatal()
        if not machine.in_step:
            engine.wait_until(
                lambda: machine.in_step or machine.phase is StepPhase.LEFT,
                timeout_s,
                "a quorum",
                counts_isolation=until.is_stated,
            )

    @property
    def _quorum_limit_s(self) -> float:
        may_lack = self._choices.min_replica_size > 1  # may wait for a replica's restart
        is_long = may_lack or not self._machine.begun
        return self._first_s if is_long else self._choices.quorum_timeout_s

    @property
    def _awaits_backward(self) -> bool:
        """Whether a step has begun whose batch was drawn and not used yet."""
        is_drawn = self._machine.in_step and self._machine.begun == self._drawn
        return is_drawn and not self._engine.in_flight.reductions

    def catch_up(self, joins: Callable[[], bool]) -> bool:
        """Between two steps: take the peers' state if they have committed a step lost here.

        For that a step is begun, at which no replica joins, and is given up at once.

        Args:
            joins: whether the caller begins the next step instead, given the quorum in force.

        Returns:
            Whether this replica holds their state, or has left the job, or ``joins``.

        Raises:
            TimeoutError: no quorum within the limit.
        """
        machine = self._machine
        self._engine.wait_until(
            lambda: (
                machine.in_force is not None or machine.is_alone or machine.phase is StepPhase.LEFT
            ),
            self._quorum_limit_s,
            "a quorum",
        )
        if not machine.must_catch_up or joins() or not self.begin(True, None, catches_up=True):
            return True
        has_state = not machine.healing
        reason = "it was begun to take the peers' state"
        self._engine.feed(e.Decided(False, shared=False, reason=reason))
        return has_state

    def heal_after_backward(self) -> None:
        """If this replica lacks its peers' state, heal it now, outside of any forward or backward
        pass."""
        machine = self._machine
        while machine.healing and machine.in_step and machine.fate is not Fate.VOID:
            self._heal(lambda: machine.fate is Fate.VOID)
            if machine.heal.loaded is not None:
                return  # another state replaces the loaded one: ``decide`` waits for that

    def decide(
        self, timeout_s: float | None, forgoes: str = "", *, all_forgo: bool = False
    ) -> bool:
        """End the step. Returns True if it is committed.

        ``forgoes``: the reason why this replica does not commit it, though others may; it then
        heals from them. That does not count as a failure. ``all_forgo``: no replica commits it.

        Raises:
            RuntimeError: more than ``max_retries`` steps in a row were not committed.
            TimeoutError: the results did not come within ``timeout_s``.
            UserError: no step has begun.
        """
        machine, engine = self._machine, self._engine
        engine.raise_fatal()
        if not machine.in_step:
            raise UserError(
                "should_commit() outside a step: call start_quorum() (zero_grad()) first"
            )
        until = _Until(timeout_s)
        timeout_s = self._longest_s if timeout_s is None else timeout_s
        engine.feed(e.OperationsEnded())
        self._healing.forward_over()  # the results may depend on newcomers that heal first
        self._healing.step_ends()
        if not machine.is_decidable:
            engine.wait_until(
                lambda: machine.is_decidable or not machine.in_step,
                until.left_s(timeout_s),
                "results",
                counts_isolation=until.is_stated,
            )
        engine.finish_results()
        group_error = None if self._own_error is None else self._own_error()
        if group_error is not None:
            self.report_error(group_error)
        if machine.healing:
            self._heal(lambda: not machine.may_issue, until)
        enough = engine.in_flight.divisor >= self._choices.min_replica_size
        error = self.errored()
        flag = enough and error is None and not machine.healing and not forgoes
        votes = Votes(flag, False)
        if self._vote is not None:
            votes = self._ask_group(self._vote, flag, until.left_s(timeout_s), until)
        before = machine.state.step
        may_follow = machine.will_be_enough  # newcomers count in the retry: not a failure
        reason = str(error) if error is not None else forgoes or "voted against"
        torn = votes.commits is None
        shared = not enough or all_forgo
        engine.feed(e.Decided(votes.commits is True, shared=shared, reason=reason, torn=torn))
        engine.raise_fatal()
        if self._keeper is not None:
            self._keeper.decided(committed=machine.state.step > before)
        if self._snapshots is not None:
            self._snapshots.voted(votes.copies, committed=machine.state.step > before)
        if error is None and not enough:
            reason = "too few replicas contribute"
        is_left = bool(forgoes) or may_follow
        if is_left and error is None and machine.state.step == before:
            self._engine.note_progress()
            return False
        return self._note_outcome(machine.state.step > before, reason)

    def is_over(self) -> None:
        """The script has ended, and no longer changes its state."""
        self._healing.keep_still()

    def report_error(self, error: Exception) -> None:
        """Forbid to commit the current step. The last error is kept, as with torchft."""
        self._error = error

    def errored(self) -> Exception | None:
        """The last error that was reported for the current step, or its own first one."""
        return self._error or self._engine.in_flight.error

    def _ask_group(self, vote: GroupVote, flag: bool, timeout_s: float, until: _Until) -> Votes:
        machine = self._machine
        self._engine.feed(e.VoteStarted())
        copies = self._snapshots is not None and self._snapshots.ballot()
        votes = vote.decide(machine.commits_as, flag and machine.votes, copies)
        self._engine.wait_until(
            lambda: machine.verdict_known,
            timeout_s,
            "the verdict on a vote",
            counts_isolation=until.is_stated,
        )
        return votes

    def _note_outcome(self, committed: bool, reason: str) -> bool:
        if committed:
            self._failures = 0
            in_flight, joining = self._engine.in_flight, self.joining
            divisor = in_flight.divisor
            self._progress.batches += divisor if joining is None else joining.batches(divisor)
            if in_flight.sampled is not None:
                in_flight.sampled.committed(in_flight.contributors)
            self._commits += 1
            self._engine.note_progress(at_once=self._commits <= FIRST_COMMITS)
            return True
        self._failures += 1
        self._engine.note_progress()
        most = self._choices.max_retries
        if most is not None and self._failures > most:
            raise RuntimeError(
                f"{self._failures} steps in a row were not committed (max_retries="
                f"{most}); the last reason: {reason}"
            )
        return False

    def _heal(self, is_over: Callable[[], bool], until: _Until | None = None) -> None:
        """Wait, until ``is_over``, for the state to heal from, and apply it.

        ``until``: the deadline that the script has stated, if any.

        Raises:
            PeerError: peers count on this step's results, and the state cannot be applied here.
            TimeoutError: the state did not come in time.
        """
        until = until or _Until(None)
        machine = self._machine
        self._commits = 0
        self._engine.note_progress()
        self._engine.wait_until(
            lambda: machine.heal.loaded is not None or is_over(),
            until.left_s(self._longest_s),
            "the state to heal from",
            counts_isolation=until.is_stated,
        )
        with self._healing.applying:
            fetched = self._healing.fetched
            if (
                machine.heal.loaded is None
                or fetched is None
                or fetched.state_id != machine.heal.loaded
            ):
                return  # interrupted: the next quorum names the donors
            spoiled = self._healing.apply()
            if spoiled:
                log.warning("heal for %s: %s", machine.tag, spoiled)
                self._engine.feed(e.StateSpoiled(spoiled))
                if (
                    machine.fate is Fate.STANDS
                ):  # peers count on a state that this worker does not hold
                    raise PeerError(f"heal: {spoiled}. This replica restarts")
                return
            self._progress.batches = int(fetched.tree[OWN]["batches_committed"])
            if self._resuming is not None:
                self._resuming.healed()
            self._engine.feed(e.StateApplied(fetched.donors, fetched.nbytes, fetched.duration_s))
