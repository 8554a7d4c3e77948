"""Supervision of one node's replica groups: spawn, watch, restart, stop.

Theory of operation. The agent's shell tells what has happened (``handle``) and carries out what
comes back. Each slot that the lighthouse has assigned is in one phase:

| event \\ phase    | WAITING | RUNNING                 | STOPPING        | ENDED     |
|------------------|---------|-------------------------|-----------------|-----------|
| wake time        | RUNNING |                         |                 |           |
| a script raises  |         | lost                    |                 |           |
| a worker exits 0 |         | all have: ENDED         | all have: next  |           |
| one exits else   |         | lost; kill: STOPPING    | all have: next  |           |
| restart asked    |         | lost; kill: STOPPING    |                 |           |
| drain asked      | ENDED   | asked: STOPPING         |                 |           |
| job ended        | ENDED   | asked: STOPPING         | no restart      |           |
| slot taken away  | removed | kill, unless it has left| then removed    | removed   |
| stop time        |         | (raised, hangs) lost    | asked, then kill|           |
| silent for long  |         | lost; kill: STOPPING    |                 |           |

"Next" after STOPPING is WAITING for a restart, ENDED, or the slot's removal. Who is asked to stop
is told so at once and has the whole grace (inject/stopping.py); whoever has to be killed then is
called killed. A group that is broken is killed first, and its loss is told right after that (Q3).

Not here: whether a restart is due (restarts.py), which standbys are kept (standby.py), how long
imports may take (imports.py), who is silent for too long (hang_watch.py), the lighthouse's silence
(lease.py), processes, sockets and files (agent/), membership (core/lighthouse/machine.py).
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ftrun.core.activity import NOT_ITS_OWN, STANDING_STILL, Activity
from ftrun.core.agent.events import (
    AskToStop,
    AskWorker,
    DrainAsked,
    EndAgent,
    Event,
    FailureReported,
    Instruction,
    JobEnded,
    LighthouseGone,
    LighthouseSent,
    NoManagerMade,
    RestartAsked,
    SendToLighthouse,
    SendToReplica,
    SendToWorkers,
    ShowNotice,
    SignalReplica,
    SlotsAssigned,
    SpawnerLost,
    SpawnerReady,
    SpawnerWarmed,
    StandbyExited,
    StartReplica,
    StartStandby,
    StopAsked,
    SweepReplica,
    WorkerDisconnected,
    WorkerExited,
    WorkerLife,
    WorkerSent,
    WorkerUsed,
)
from ftrun.core.agent.failures import Failure, exit_code_of
from ftrun.core.agent.imports import LIMIT_S, NOTICE_AFTER_S, ImportDeadline
from ftrun.core.agent.lease import AgentLease
from ftrun.core.agent.restarts import CrashLoop, Restart, RestartRules
from ftrun.core.agent.slot_state import Outcome, SlotPhase, SlotState, SlotSummary
from ftrun.core.agent.slot_table import NodeSlots
from ftrun.core.agent.standby import StandbyPool, StandbyRules
from ftrun.core.ids import WorkerKey, replica_order
from ftrun.core.messages import (
    USAGE_CODE,
    AgentLeaving,
    FailureReport,
    FromAgent,
    FromWorker,
    Goodbye,
    Healed,
    InForce,
    JobFailed,
    Lease,
    LeaveNow,
    Leaving,
    Loss,
    Progress,
    ReplicaFinished,
    ReplicaLost,
    ReplicaStarted,
    RunningReplica,
    StartFailure,
)

SIGTERM = int(signal.SIGTERM)
SIGKILL = int(signal.SIGKILL)
PRESS_SHARE = 0.5
"""A group that has not left when this share of the grace has passed leaves where it stands."""
LEFT_WAIT_S = 1.0
"""So long a slot that was left waits for another start here: it may be given to another agent."""
STANDS_NOTICE_S = 3.0
"""So long training stands for want of a lighthouse until people are told."""

REMEDY_APART = (
    "For replicas that train together and heal, give the script a Manager (README: A script); for "
    "one training of N workers, use --workers-per-replica N."
)


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """The rules of supervision. ``alone``: the lighthouse is this agent's own, no other will come.

    ``crash_code``: the exit code of a crash loop of uncaught exceptions, whose own, 1, would say
    nothing. ``unreachable_code``: if no lighthouse ever answered. ``unready_code``: if no worker
    could ever be started. ``hang_timeout_s``: see hang_watch.py; 0: silent workers are left alone.
    ``replicas``: of the whole job. ``target``: what the workers run, for people.
    """

    agent_id: str
    workers_per_replica: int
    restarts: RestartRules
    grace_s: float
    isolation_limit_s: float
    join_timeout_s: float
    alone: bool = True
    end_grace_s: float = 2.0
    stuck_after_s: float = 5.0
    hang_timeout_s: float = 60.0
    crash_code: int = 72
    unreachable_code: int = 71
    unready_code: int = 2
    replicas: int = 1
    target: str = "the script"
    standbys: StandbyRules = field(default_factory=StandbyRules)


class Supervisor:
    """The decisions of one agent. See the module's table."""

    def __init__(self, settings: SupervisorSettings, now: float) -> None:
        self._settings = settings
        self._slots = NodeSlots(settings.restarts)
        self._standbys = StandbyPool(settings.standbys)
        self._starts = 0
        self._import_deadline = ImportDeadline(now, max(LIMIT_S, settings.join_timeout_s))
        self._lease = AgentLease(settings.join_timeout_s, settings.isolation_limit_s)
        self._ending: EndAgent | None = None
        self._ending_outcome = Outcome.STOPPED
        self._end_at: float | None = None
        self._ended = False
        self._without_manager = False
        self._stands_shown = False
        self._gone_at: float | None = None
        self._stood_by = False
        self._now = now
        self._out: list[Instruction] = []

    # ------------------------------------------------------------ the interface

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event; what it returns is to be carried out in order."""
        self._now = now
        self._out = []
        match event:
            case SlotsAssigned(replica_ids):
                self._assign(replica_ids)
            case WorkerExited():
                self._worker_exited(event)
            case FailureReported(key, report):
                self._failure_reported(key, report)
            case NoManagerMade(key, has_stepped):
                self._no_manager_made(key, has_stepped)
            case WorkerSent(key, message):
                self._worker_sent(key, message)
            case WorkerDisconnected(key):
                self._disconnected(key)
            case WorkerUsed():
                self._worker_used(event)
            case RestartAsked(_, incarnation, reason):
                self._give_incarnation_up(incarnation, reason)
            case DrainAsked(reason, exit_code):
                self._drain(reason, exit_code)
            case StopAsked():
                self._stop_now()
            case JobEnded(exit_code, reason):
                self._end_job(exit_code, reason)
            case SpawnerReady():
                self._import_deadline.is_done = True
                self._lease.ready(now)
            case SpawnerWarmed():
                self._standbys.open(now)
            case StandbyExited(name, status):
                self._standby_exited(name, status)
            case SpawnerLost(reason, exit_code):
                self._spawner_lost(reason, exit_code)
            case LighthouseSent(asked_at):
                self._lighthouse_sent(asked_at)
            case LighthouseGone(reason):
                self._lighthouse_gone(reason)
            case _:
                pass  # TimerFired: time alone is enough.
        self._timers()
        self._conclude()
        return self._out

    def next_deadline(self) -> float | None:
        """When to send ``TimerFired``, at the latest."""
        return None if self._ended else min(self._deadlines(), default=None)

    def running(self) -> tuple[RunningReplica, ...]:
        """For a Hello: incarnations whose workers live."""
        return self._slots.running()

    def dead(self) -> tuple[Loss, ...]:
        """For a Hello: the latest incarnations whose end was seen."""
        return tuple(self._slots.dead)

    def finished(self) -> tuple[str, ...]:
        """For a Hello: slots that have ended well."""
        return self._slots.finished()

    @property
    def isolated(self) -> bool:
        """True while workers may not commit, for want of a word from a lighthouse (Q3)."""
        return self._lease.isolated

    @property
    def lease(self) -> Lease | None:
        """Until when workers may commit without another word; None: nobody has heard us yet."""
        until_s = self._lease.until_s()
        return None if until_s is None else Lease(until_s)

    @property
    def was_answered(self) -> bool:
        """True once a lighthouse has answered a Hello or a heartbeat."""
        return self._lease.renewed_at is not None

    @property
    def gives_up_at(self) -> float | None:
        """When it will end because no lighthouse has answered; None: not known yet, or one has."""
        return self._lease.deadline() if self._lease.renewed_at is None else None

    @property
    def is_ending(self) -> bool:
        """True once the job is to end here, whatever for."""
        return self._ending is not None

    def summary(self) -> tuple[SlotSummary, ...]:
        """What became of each slot."""
        return self._slots.summary()

    @property
    def ran_apart(self) -> bool:
        """Whether the replica groups were several trainings: the script has made no Manager."""
        has_manager = any(slot.has_manager or slot.has_trained for slot in self._slots)
        return self._without_manager and not has_manager

    @property
    def standbys_used(self) -> int:
        """How many starts were a standby's."""
        return self._standbys.used

    def story(self, replica_id: str) -> list[str]:
        """The history of one slot, oldest first."""
        return self._slots.story(replica_id)

    def check(self) -> None:
        """Assert what must hold between events (AssertionError, with the slot's story)."""
        self._slots.check(self.is_ending)
        self._standbys.check()

    # ------------------------------------------------------------ slots and starts

    def _assign(self, replica_ids: tuple[str, ...]) -> None:
        if self.is_ending:
            return  # all that runs here is being stopped, and keeps its place in the report
        for slot in self._slots:
            if slot.replica_id not in replica_ids:
                self._forget(slot)
        for replica_id in sorted(replica_ids, key=replica_order):
            known = self._slots.get(replica_id)
            if known is not None:
                # Taken away and given back while its workers are being killed: start it again.
                known.forgotten = False
            else:
                self._slots.add(replica_id, self._now)
        if not len(self._slots) and not self._stood_by:
            self._stood_by = True
            self._notice("idle", "", "All replicas have a node: this one stands by.")

    def _forget(self, slot: SlotState) -> None:
        if not slot.alive:
            self._slots.remove(slot)
            return
        slot.forgotten = True
        if slot.phase is SlotPhase.STOPPING:
            return
        if slot.has_left:
            self._stop(slot)  # its script saves, perhaps
        elif slot.failure_reports:
            # Not running any more for a lighthouse that has come back, but a failure of ours (P6).
            self._fail(slot, WorkerExited(slot.incarnation, min(slot.failure_reports), 0, 1))
        else:
            self._kill(slot)

    def _start(self, slot: SlotState) -> None:
        restarts = slot.started
        # Unforeseeable, for the agent's id is random, and never used again: a slot may be taken
        # away and come back, and then it counts its restarts anew.
        self._starts += 1
        text = f"{self._settings.agent_id}|{slot.replica_id}|{self._starts}"
        incarnation = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        settings = self._settings
        slot.begin(incarnation, settings.workers_per_replica, settings.hang_timeout_s)
        self._slots.note(self._now, slot, f"started as {incarnation}")
        standbys = self._standbys.take(settings.workers_per_replica, self._now)
        self._out.append(StartReplica(slot.replica_id, incarnation, restarts, standbys))
        self._send(ReplicaStarted(slot.replica_id, incarnation, restarts))

    def _refill_standbys(self) -> None:
        if not self._wants_standbys():
            return
        for name in self._standbys.refill(self._now):
            self._out.append(StartStandby(name))

    def _wants_standbys(self) -> bool:
        """They are for what runs here: nothing runs, nothing is kept ready."""
        return not self.is_ending and any(slot.alive for slot in self._slots)

    def _standby_exited(self, name: str, status: int) -> None:
        if self._standbys.died(name, self._now):
            times = self._settings.standbys.deaths_max
            words = f"A standby has ended {times} times before it was used, at last with status"
            self._notice("standby", "", f"{words} {status}. No more are kept; the job goes on.")

    # ------------------------------------------------------------ workers' ends

    def _worker_exited(self, event: WorkerExited) -> None:
        slot = self._slots.of_incarnation(event.incarnation)
        if slot is None or event.group_rank not in slot.alive:
            return
        slot.alive.discard(event.group_rank)
        slot.hang_watch.gone(event.group_rank)
        self._slots.note(self._now, slot, f"worker {event.group_rank} exited {event.status}")
        if slot.phase is SlotPhase.RUNNING:
            # Who has raised has failed, whatever an exit handler of the script makes of it.
            status = event.status or int(event.group_rank in slot.failure_reports)
            slot.status = status
            if status != 0 and event.group_rank not in slot.left:
                self._fail(slot, replace(event, status=status))
        elif self.is_ending and not slot.killed:
            slot.status = event.status
        if not slot.alive:
            self._group_ended(slot)

    def _fail(self, slot: SlotState, event: WorkerExited) -> None:
        """The group is broken: the rest of it is killed, and then its loss is told.

        In this order: who hears of the loss may count on it that no worker of it commits (Q3).
        """
        failure = _failure(slot, event)
        if slot.alive:
            self._kill(slot)
        self._lose(slot, failure.cause(), failure=failure)
        slot.failures.append(failure)
        slot.outcome_ahead = Outcome.FAILED
        slot.stands(self._now)
        if self.is_ending:  # it had raised before the end came
            self._notice_loss(failure, "")
        else:
            self._judge(slot, failure)

    def _lose(
        self,
        slot: SlotState,
        cause: str,
        *,
        killed: bool = False,
        failure: Failure | None = None,
    ) -> None:
        if slot.lost:
            return
        slot.lost = True
        self._slots.dead.append(Loss(slot.replica_id, slot.incarnation, cause, killed))
        start_failure = self._start_failure(slot, failure) if failure is not None else None
        self._send(ReplicaLost(slot.replica_id, slot.incarnation, cause, killed, start_failure))

    def _start_failure(self, slot: SlotState, failure: Failure) -> StartFailure | None:
        """What is compared between replicas; None: it has trained, or has died by chance."""
        signature = failure.signature()
        if signature is None or not slot.is_at_start:
            return None
        digest = hashlib.blake2b(signature.encode(), digest_size=16).hexdigest()
        return StartFailure(digest, exit_code_of(failure.status), failure.words())

    def _group_ended(self, slot: SlotState) -> None:
        was_running = slot.phase is SlotPhase.RUNNING
        slot.clear_deadlines()
        self._out.append(SweepReplica(slot.replica_id, slot.incarnation))
        if slot.forgotten:
            self._lose(slot, "its slot was given to another agent")
            self._slots.remove(slot)
        elif slot.restart_in_s is not None and not self.is_ending:
            self._wait(slot, slot.restart_in_s)
        elif slot.outcome_ahead is not None:
            slot.end(slot.outcome_ahead, self._now)
        elif was_running and slot.has_left:
            self._lose(slot, "it has left")
            self._wait(slot, LEFT_WAIT_S)
        elif was_running:
            slot.end(Outcome.FINISHED, self._now)
            self._send(ReplicaFinished(slot.replica_id, slot.incarnation))
        elif self.is_ending:
            self._has_stopped(slot)
        else:
            self._lose(slot, "its slot was given away for a moment")
            self._wait(slot, 0.0)

    def _has_stopped(self, slot: SlotState) -> None:
        """It was asked to stop, and all its workers have ended."""
        outcome = Outcome.KILLED if slot.killed else self._ending_outcome
        if slot.failure_reports and not slot.killed:
            rank = min(slot.failure_reports)
            failure = _failure(slot, WorkerExited(slot.incarnation, rank, 0, 1))
            slot.failures.append(failure)
            outcome = Outcome.FAILED
            self._notice_loss(failure, "That was while it left: its checkpoint may be unfinished.")
        self._lose(slot, outcome.value)
        slot.end(outcome, self._now)

    def _judge(self, slot: SlotState, failure: Failure) -> None:
        """Restart once all its workers have ended, or end the job and say why (P5)."""
        budget = self._settings.restarts.max_restarts
        at_start = slot.is_at_start and failure.signature() is not None
        match slot.budget.failed(failure, at_start=at_start):
            case Restart(delay_s, number):
                slot.restart_in_s = delay_s
                when = f"in {delay_s:g} s" if delay_s else "now"
                is_usage = failure.status == USAGE_CODE
                alike = "no replica has trained yet" if is_usage else "all replicas fail so"
                unless = f", unless {alike}" if at_start else ""
                self._notice_loss(failure, f"Restart {number} of {budget} {when}{unless}.")
            case CrashLoop(strikes):
                slot.outcome_ahead = Outcome.CRASH_LOOP
                code = self._settings.crash_code if failure.report else failure.status
                self._give_up(
                    failure,
                    exit_code_of(code),
                    f"crash loop: replica {slot.replica_id} has failed {strikes} times in the "
                    f"same way ({failure.words()}) without a new step in between",
                )
            case spent:
                slot.outcome_ahead = Outcome.BUDGET_SPENT
                self._give_up(
                    failure,
                    exit_code_of(spent.first.status),
                    f"replica {slot.replica_id} has failed ({failure.words()}) and no restart is "
                    f"left of {budget}",
                )

    def _wait(self, slot: SlotState, delay_s: float) -> None:
        slot.phase = SlotPhase.WAITING
        slot.wake_at = self._now + delay_s

    def _give_up(self, failure: Failure, exit_code: int, reason: str) -> None:
        self._notice_loss(failure, "It is not restarted.")
        self._notice("failed", failure.replica_id, f"The job ends: {reason}.")
        self._send(JobFailed(exit_code, reason))
        self._end_job(exit_code, reason)

    def _give_incarnation_up(self, incarnation: str, reason: str) -> None:
        slot = self._slots.of_incarnation(incarnation)
        if slot is not None and slot.phase is SlotPhase.RUNNING:
            why = f"was given up: {reason}"
            self._fail(slot, WorkerExited(incarnation, min(slot.alive), 0, -SIGKILL, why))

    # ------------------------------------------------------------ workers' words

    def _failure_reported(self, key: WorkerKey, report: FailureReport) -> None:
        slot = self._slots.of_incarnation(key.incarnation)
        if slot is None or key.group_rank not in slot.alive:
            return
        slot.failure_reports[key.group_rank] = report
        if slot.is_at_start and self._settings.workers_per_replica > 1:
            return  # nobody trains with it yet; and it may have raised because a mate has died
        if slot.phase is SlotPhase.RUNNING:
            # Its peers need not wait while the interpreter ends, which takes half a second.
            gone = WorkerExited(key.incarnation, key.group_rank, 0, 1)
            failure = _failure(slot, gone)
            self._lose(slot, failure.cause(), failure=failure)
            slot.stands(self._now)
            # A script that has raised may still hang at exit, on a thread or a child of its own.
            if slot.kill_at is None:
                slot.kill_at = self._now + self._settings.grace_s

    def _no_manager_made(self, key: WorkerKey, has_stepped: bool) -> None:
        """Several groups without a Manager are several trainings: said once, when it is a fact."""
        slot = self._slots.of_incarnation(key.incarnation)
        if slot is not None and has_stepped:
            slot.steps_alone = True
            slot.goes_on(self._now)
        if self._settings.replicas < 2 or self._without_manager:
            return
        self._without_manager = True
        target, number = self._settings.target, self._settings.replicas
        does, each = ("trains", "trains") if has_stepped else ("has ended", "ran")
        self._notice(
            "apart",
            key.replica_id,
            f"{target} {does} without a Manager: its {number} replica groups are supervised, and "
            f"each {each} by itself. {REMEDY_APART}",
        )

    def _worker_sent(self, key: WorkerKey, message: FromWorker) -> None:
        slot = self._slots.of_incarnation(key.incarnation)
        if slot is None:
            return
        slot.has_manager = True
        slot.hang_watch.received(key.group_rank, self._now)
        match message:
            case Progress():
                if message.phase not in NOT_ITS_OWN:
                    slot.budget.progressed(message.step)
                if key.group_rank == 0:
                    self._account(slot, message)
            case Healed(step=step):
                slot.budget.healed(step)
            case InForce():
                slot.has_trained = True
                slot.goes_on(self._now)
            case Leaving(reason=reason):
                slot.hang_watch.gone(key.group_rank)
                if reason == "drained":
                    slot.left.add(key.group_rank)
            case _:
                pass

    def _account(self, slot: SlotState, progress: Progress) -> None:
        """Seconds in which a replica that has trained cannot are counted as lost."""
        if not slot.has_trained or slot.lost:
            return
        if progress.phase in STANDING_STILL:
            slot.stands(self._now - progress.since_s)
        if progress.phase not in STANDING_STILL or progress.phase == Activity.STOPPED.value:
            slot.goes_on(self._now)

    def _disconnected(self, key: WorkerKey) -> None:
        slot = self._slots.of_incarnation(key.incarnation)
        if slot is not None:
            slot.hang_watch.disconnected(key.group_rank)

    def _ask_the_silent(self, slot: SlotState) -> None:
        for rank in slot.hang_watch.ask(self._now):
            self._out.append(AskWorker(WorkerKey(slot.replica_id, slot.incarnation, rank)))

    def _worker_used(self, event: WorkerUsed) -> None:
        key = event.key
        slot = self._slots.of_incarnation(key.incarnation)
        if slot is None or slot.phase is not SlotPhase.RUNNING:
            return
        silent_s = slot.hang_watch.used(key.group_rank, event.cpu_s, self._now)
        if silent_s is not None:
            slot.stands(self._now - silent_s)
            why = f"hangs: it has answered nothing for {silent_s:.0f} s, though asked"
            gone = WorkerExited(key.incarnation, key.group_rank, event.pid, -SIGKILL, why)
            self._fail(slot, gone)

    # ------------------------------------------------------------ stopping

    def _kill(self, slot: SlotState) -> None:
        slot.phase = SlotPhase.STOPPING
        slot.clear_deadlines()
        slot.stuck_at = self._now + self._settings.stuck_after_s
        self._out.append(SignalReplica(slot.replica_id, slot.incarnation, SIGKILL))

    def _stop(self, slot: SlotState) -> None:
        """Tell its script to stop; it has the whole grace from now on.

        A script that has raised ends by itself, and has its deadline.
        """
        if slot.failure_reports:
            return
        grace_s = self._settings.grace_s
        slot.phase = SlotPhase.STOPPING
        slot.press_at = self._now + PRESS_SHARE * grace_s
        slot.kill_at = self._now + grace_s
        self._out.append(AskToStop(slot.replica_id, slot.incarnation))

    def _press(self, slot: SlotState) -> None:
        """It has not left in half of its grace: it leaves where it stands."""
        slot.press_at = None
        self._out.append(AskToStop(slot.replica_id, slot.incarnation))
        self._leave_now(slot)

    def _leave_now(self, slot: SlotState, *, in_quorum: bool = True) -> None:
        """No lighthouse will agree on a boundary: its Managers leave at the next one.

        ``in_quorum`` False: those that are in no quorum do; the others leave by an agreement.
        """
        if slot.has_manager and not slot.has_left:
            order = LeaveNow("drained", in_quorum)
            self._out.append(SendToReplica(slot.replica_id, slot.incarnation, order))

    def _begin_ending(self, exit_code: int, reason: str, outcome: Outcome) -> None:
        """The first word counts: what comes after it is its consequence."""
        if self._ending is None:
            self._ending = EndAgent(exit_code, reason)
            self._ending_outcome = outcome
        for slot in self._slots:
            if slot.phase is SlotPhase.WAITING:
                slot.end(slot.outcome_ahead or outcome, self._now)

    def _end_job(self, exit_code: int, reason: str) -> None:
        self._begin_ending(exit_code, reason, Outcome.STOPPED)
        for slot in self._slots:
            if slot.phase is SlotPhase.RUNNING and slot.alive:
                self._stop(slot)
                self._leave_now(slot)

    def _drain(self, reason: str, exit_code: int) -> None:
        """Every script is told; those with a Manager leave at a boundary that all agree on.

        Without a lighthouse nobody can agree, and each leaves at its own next one. Without a quorum
        it depends on whether other nodes may go on with the state that is here: where there are
        none, it leaves at once.
        """
        if self.is_ending:
            return
        self._begin_ending(exit_code, reason, Outcome.DRAINED)
        self._notice("draining", "", f"{reason}: leaving within {self._settings.grace_s:g} s.")
        for slot in self._slots:
            if slot.phase is SlotPhase.RUNNING:
                self._stop(slot)
                if not self._lease.is_connected or self._settings.alone:
                    self._leave_now(slot, in_quorum=not self._lease.is_connected)
        self._send(AgentLeaving(reason, self.running()))

    def _stop_now(self) -> None:
        """A second request: whatever still runs is killed, and called so."""
        self._begin_ending(exit_code_of(-SIGTERM), "stopped", Outcome.STOPPED)
        for slot in self._slots:
            if slot.alive:
                slot.killed = "was killed by a second request to stop"
                self._lose(slot, slot.killed, killed=True)
                self._kill(slot)

    def _spawner_lost(self, reason: str, exit_code: int) -> None:
        """The kernel kills the workers with their spawner; the shell sweeps the rest."""
        self._notice("failed", "", f"The job ends here: {reason}.")
        self._begin_ending(exit_code, reason, Outcome.FAILED)
        for slot in self._slots:
            if slot.alive:
                self._lose(slot, reason)
                slot.alive.clear()
                slot.end(Outcome.FAILED, self._now)

    # ------------------------------------------------------------ the lighthouse

    def _lighthouse_sent(self, asked_at: float | None) -> None:
        if not self._lease.is_connected and self._lease.renewed_at is not None:
            self._notice("lighthouse", "", "The lighthouse is back.")
        self._lease.received(self._now, asked_at)
        if asked_at is not None and self.lease is not None:
            self._out.append(SendToWorkers(self.lease))
        self._end_at = self._gone_at = None

    def _lighthouse_gone(self, reason: str) -> None:
        if self._lease.is_connected:
            self._gone_at = self._now
            self._stands_shown = False
            if not self.is_ending:
                text = (
                    f"The lighthouse is gone ({reason}); training goes on until a replica is lost."
                )
                self._notice("lighthouse", "", text)
            for slot in self._slots:
                if self.is_ending and slot.phase is SlotPhase.STOPPING:
                    self._leave_now(slot)  # what was asked of it will not come about
        self._lease.disconnected()

    def _stands_at(self) -> float | None:
        """When to say that training stands for want of a lighthouse; None: it does not."""
        since = [s.lost_at for s in self._slots if s.lost_at is not None and s.has_trained]
        if self._gone_at is None or self._stands_shown or not since or self.is_ending:
            return None
        return max(min(since), self._gone_at) + STANDS_NOTICE_S

    def _standing_timer(self) -> None:
        if not _due(self._stands_at(), self._now):
            return
        assert self._gone_at is not None
        self._stands_shown = True
        step = max((slot.budget.mark for slot in self._slots), default=0)
        since = min(s.lost_at for s in self._slots if s.lost_at is not None and s.has_trained)
        stood_s = self._now - max(since, self._gone_at)
        self._notice(
            "lighthouse",
            "",
            f"There is no new quorum without the lighthouse: training stands at step {step} since "
            f"{stood_s:.0f} s, and goes on when the lighthouse is back.",
        )

    def _import_timers(self) -> None:
        if self.is_ending:
            return
        if self._import_deadline.is_over(self._now):
            self._end_job(
                self._settings.unready_code,
                "no worker could be started: torch and the --preload modules were not imported "
                f"within {self._import_deadline.limit_s:g} s (a longer --join-timeout allows more)",
            )
        elif self._import_deadline.is_slow(self._now):
            self._import_deadline.shown = True
            self._notice(
                "importing",
                "",
                "torch and the --preload modules are still being imported after "
                f"{NOTICE_AFTER_S:g} "
                f"s; no worker can start before. That may take "
                f"{self._import_deadline.limit_s:g} s.",
            )

    def _link_timers(self) -> None:
        if self.is_ending:
            return
        if self._lease.never_began(self._now):
            self._end_job(self._settings.unreachable_code, "no lighthouse has answered")
        elif self._lease.ends(self._now) and self.lease is not None:
            self._lease.isolated = True
            self._out.append(SendToWorkers(self.lease))
            limit_s = self._settings.isolation_limit_s
            self._notice(
                "isolated",
                "",
                f"No word from a lighthouse for {limit_s:g} s: workers stop committing until "
                "one is back.",
            )

    # ------------------------------------------------------------ time

    def _deadlines(self) -> Iterator[float]:
        for slot in self._slots:
            yield from slot.deadlines()
        if self._end_at is not None:
            yield self._end_at
        if self._standbys.due_at is not None and self._wants_standbys():
            yield self._standbys.due_at
        for deadline in (
            self._import_deadline.deadline(),
            self._lease.deadline(),
            self._stands_at(),
        ):
            if deadline is not None and not self.is_ending:
                yield deadline

    def _timers(self) -> None:
        for slot in self._slots:
            if _due(slot.wake_at, self._now):
                self._start(slot)
            if _due(slot.kill_at, self._now):
                self._out_of_time(slot)
            elif _due(slot.press_at, self._now):
                self._press(slot)
            if _due(slot.stuck_at, self._now):
                self._stuck(slot)
            if slot.phase is SlotPhase.RUNNING:
                self._ask_the_silent(slot)
        self._refill_standbys()
        self._import_timers()
        self._link_timers()
        self._standing_timer()

    def _out_of_time(self, slot: SlotState) -> None:
        if slot.phase is SlotPhase.RUNNING:
            rank = min(slot.failure_reports)
            self._fail(slot, WorkerExited(slot.incarnation, rank, 0, 1))
            return
        slot.killed = (
            f"did not end within --grace {self._settings.grace_s:g} s and was killed; its "
            "checkpoint may be unfinished"
        )
        self._notice("killed", slot.replica_id, f"replica {slot.replica_id} {slot.killed}.")
        self._lose(slot, slot.killed, killed=True)
        self._kill(slot)

    def _stuck(self, slot: SlotState) -> None:
        slot.stuck_at = None
        ranks = ", ".join(str(rank) for rank in sorted(slot.alive))
        self._notice(
            "stuck",
            slot.replica_id,
            f"replica {slot.replica_id}: worker {ranks} was killed and does not end: it is stuck "
            "in the kernel. Its slot waits for it.",
        )
        if self.is_ending:
            slot.alive.clear()
            self._group_ended(slot)

    def _conclude(self) -> None:
        """End when nothing runs: on the lighthouse's word, or after a while without one."""
        if self._ended:
            return
        if not self._slots.all_ended():
            self._end_at = None
            return
        if self._ending is None:
            if not self._slots or (self._lease.is_connected and not self._settings.alone):
                self._end_at = None  # not by itself: slots may have been taken away since
                return
            if self._end_at is None:
                self._end_at = self._now + self._settings.end_grace_s
            if self._now < self._end_at:
                return
            self._ending = EndAgent(0, "all replicas have finished")
        self._ended = True
        self._send(Goodbye())
        self._out.append(self._ending)

    # ------------------------------------------------------------ small words

    def _send(self, message: FromAgent) -> None:
        self._out.append(SendToLighthouse(message))

    def _notice(self, kind: str, replica_id: str, text: str) -> None:
        self._out.append(ShowNotice(kind, (replica_id,) if replica_id else (), text))

    def _notice_loss(self, failure: Failure, then: str) -> None:
        who = f"replica {failure.replica_id}"
        if self._settings.workers_per_replica > 1:
            who += f", worker {failure.group_rank}"
        pid = f" (pid {failure.pid})" if failure.pid else ""
        text = f"{who}{pid} {failure.cause()}. {then}".rstrip()
        log = WorkerLife(failure.replica_id, failure.group_rank, failure.restarts)
        self._out.append(ShowNotice("lost", (failure.replica_id,), text, log))


def _failure(slot: SlotState, event: WorkerExited) -> Failure:
    return Failure(
        replica_id=slot.replica_id,
        group_rank=event.group_rank,
        pid=event.pid,
        restarts=slot.started - 1,
        status=event.status,
        report=slot.failure_reports.get(event.group_rank),
        reason=event.reason,
    )


def _due(at: float | None, now: float) -> bool:
    return at is not None and at <= now
