"""Supervision of one node's replica groups: spawn, watch, restart, stop.

Theory of operation. The agent's shell tells what has happened (``handle``) and carries out what
comes back. Each slot that the lighthouse has assigned is in one phase:

| event \\ phase    | WAITING | RUNNING                 | STOPPING        | ENDED     |
|------------------|---------|-------------------------|-----------------|-----------|
| wake time        | RUNNING |                         |                 |           |
| a worker exits 0 |         | all have: ENDED         | all have: next  |           |
| one exits else   |         | lost; kill: STOPPING    | all have: next  |           |
| restart asked    |         | lost; kill: STOPPING    |                 |           |
| drain asked      | ENDED   | leave or term: STOPPING |                 |           |
| job ended        | ENDED   | term: STOPPING          | no restart      |           |
| slot taken away  | removed | kill: STOPPING          | then removed    | removed   |
| stop time        |         | (raised, hangs) lost    | term, then kill |           |

"Next" after STOPPING is a restart (WAITING), or ENDED, or the slot's removal.

A loss is told to the lighthouse before anything else is done about it. The first failure restarts
at once, later ones back off as long as no step was committed in between. The budget refills with
progress. The same signature (the frames of a traceback, a crash signal, an exit code) three times
without a new step in between is a crash loop: the job ends and says why (P5).

Not here: processes, sockets and files (agent/), membership (lighthouse.py).
"""

from __future__ import annotations

import hashlib
import signal
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from ftrun.core.failures import Failure, exit_code_of
from ftrun.core.ids import WorkerKey, replica_order
from ftrun.core.messages import (
    DrainReplicas,
    FailureReport,
    FromAgent,
    FromWorker,
    Goodbye,
    Healed,
    InForce,
    Isolation,
    JobFailed,
    Leaving,
    Loss,
    Progress,
    ReplicaFinished,
    ReplicaLost,
    ReplicaStarted,
    RunningReplica,
)
from ftrun.core.supervisor_events import (
    DrainAsked,
    EndAgent,
    Event,
    FailureReported,
    Instruction,
    JobEnded,
    LighthouseGone,
    LighthouseSpoke,
    RestartAsked,
    Say,
    SignalReplica,
    SlotsAssigned,
    SpawnerLost,
    StartReplica,
    StopAsked,
    SweepReplica,
    TellLighthouse,
    TellWorkers,
    TimerFired,
    WorkerExited,
    WorkerSaid,
)

SIGTERM = int(signal.SIGTERM)
SIGKILL = int(signal.SIGKILL)
STORY_MAX = 200
DEAD_MAX = 64


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """The rules of supervision. ``alone``: the lighthouse is this agent's own, no other will come.

    ``refill_steps``: so many new steps of a slot give one restart back. ``unreachable_code``: what
    ftrun exits with if no lighthouse ever answered; ``crash_code`` after a crash loop of uncaught
    exceptions, whose own exit code, 1, would say nothing.
    """

    agent_id: str
    workers_per_replica: int
    max_restarts: int
    grace_s: float
    isolation_limit_s: float
    join_timeout_s: float
    alone: bool = True
    refill_steps: int = 10
    backoff_first_s: float = 1.0
    backoff_max_s: float = 60.0
    strikes_max: int = 3
    end_grace_s: float = 2.0
    stuck_after_s: float = 5.0
    crash_code: int = 72
    unreachable_code: int = 71


# ---------------------------------------------------------------- state


class Phase(Enum):
    """Where a slot is; see the table at the top."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class SlotSummary:
    """One slot's part in the final report."""

    replica_id: str
    phase: Phase
    outcome: str
    steps: int
    restarts: int
    lost_s: float
    status: int | None
    failures: tuple[Failure, ...]


@dataclass
class _Slot:
    """One slot. ``alive``: group_ranks whose process has not ended; never more than W.

    ``spent`` restarts of the budget; ``row`` failures since the last new step; ``mark`` the highest
    step it has ever reached; ``baseline`` the step from which the incarnation's own commits count.
    """

    replica_id: str
    phase: Phase = Phase.WAITING
    incarnation: str = ""
    started: int = 0
    alive: set[int] = field(default_factory=set)
    reports: dict[int, FailureReport] = field(default_factory=dict)
    reported: bool = False
    drained: bool = False
    lost: bool = False
    wake_at: float | None = None
    term_at: float | None = None
    kill_at: float | None = None
    stuck_at: float | None = None
    restart: bool = False
    forgotten: bool = False
    outcome: str = ""
    spent: int = 0
    row: int = 0
    refill: int = 0
    mark: int = 0
    baseline: int | None = None
    strikes: Counter[str] = field(default_factory=Counter)
    failures: deque[Failure] = field(default_factory=lambda: deque(maxlen=16))
    row_first: Failure | None = None
    lost_at: float | None = None
    lost_s: float = 0.0
    status: int | None = None


class Supervisor:
    """The decisions of one agent. See the module's table."""

    def __init__(self, settings: SupervisorSettings, now: float) -> None:
        self._settings = settings
        self._slots: dict[str, _Slot] = {}
        self._dead: deque[Loss] = deque(maxlen=DEAD_MAX)
        self._story: deque[tuple[float, str, str]] = deque(maxlen=STORY_MAX)
        self._started_at = now
        self._heard_at: float | None = None
        self._link_up = False
        self._isolated = False
        self._ending: EndAgent | None = None
        self._drained = False
        self._end_at: float | None = None
        self._ended = False
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
            case WorkerSaid(key, message):
                self._worker_said(key, message)
            case RestartAsked():
                self._restart_asked(event)
            case DrainAsked(reason, exit_code):
                self._drain(reason, exit_code)
            case StopAsked():
                self._stop_now()
            case JobEnded(exit_code, reason):
                self._end_job(exit_code, reason)
            case SpawnerLost(reason, exit_code):
                self._spawner_lost(reason, exit_code)
            case LighthouseSpoke():
                self._lighthouse_spoke()
            case LighthouseGone(reason, failures):
                self._lighthouse_gone(reason, failures)
            case TimerFired():
                pass
        self._timers()
        self._conclude()
        return self._out

    def next_deadline(self) -> float | None:
        """When to send ``TimerFired``, at the latest."""
        return min((at for at in self._deadlines() if at is not None), default=None)

    def running(self) -> tuple[RunningReplica, ...]:
        """For a Hello: incarnations whose workers live."""
        return tuple(
            RunningReplica(slot.replica_id, slot.incarnation)
            for slot in self._ordered()
            if slot.alive and not slot.lost
        )

    def dead(self) -> tuple[Loss, ...]:
        """For a Hello: the latest incarnations whose end was seen."""
        return tuple(self._dead)

    def finished(self) -> tuple[str, ...]:
        """For a Hello: slots that have ended well."""
        return tuple(slot.replica_id for slot in self._ordered() if slot.outcome == "finished")

    @property
    def isolated(self) -> bool:
        """True while workers may not commit, for want of a word from a lighthouse (Q3)."""
        return self._isolated

    @property
    def is_ending(self) -> bool:
        """True once the job is to end here, whatever for."""
        return self._ending is not None

    def summary(self) -> tuple[SlotSummary, ...]:
        """What became of each slot."""
        return tuple(
            SlotSummary(
                replica_id=slot.replica_id,
                phase=slot.phase,
                outcome=slot.outcome or slot.phase.value,
                steps=slot.mark,
                restarts=max(0, slot.started - 1),
                lost_s=slot.lost_s,
                status=slot.status,
                failures=tuple(slot.failures),
            )
            for slot in self._ordered()
        )

    def story(self, replica_id: str) -> list[str]:
        """The history of one slot, oldest first."""
        return [f"{at:.3f} {text}" for at, slot, text in self._story if slot == replica_id]

    def check(self) -> None:
        """Assert what must hold between events.

        Raises:
            AssertionError: it does not; the slot's story is in the text.
        """
        for slot in self._slots.values():
            story = "\n".join(self.story(slot.replica_id))
            if slot.phase in (Phase.WAITING, Phase.ENDED):
                assert not slot.alive, f"{slot.phase} with live workers\n{story}"
            else:
                assert slot.alive, f"{slot.phase} without workers\n{story}"
            assert (slot.phase is Phase.WAITING) == (slot.wake_at is not None), story
            assert 0 <= slot.spent <= self._settings.max_restarts, story
            if self._ending is not None:
                assert slot.phase in (Phase.STOPPING, Phase.ENDED), story

    # ------------------------------------------------------------ slots and starts

    def _assign(self, replica_ids: tuple[str, ...]) -> None:
        for slot in list(self._ordered()):
            if slot.replica_id not in replica_ids:
                self._forget(slot)
        if self._ending is not None:
            return
        for replica_id in sorted(replica_ids, key=replica_order):
            slot = self._slots.setdefault(replica_id, _Slot(replica_id, wake_at=self._now))
            slot.forgotten = False

    def _forget(self, slot: _Slot) -> None:
        if slot.phase in (Phase.WAITING, Phase.ENDED):
            del self._slots[slot.replica_id]
            return
        slot.forgotten = True
        slot.restart = False
        self._kill(slot)

    def _start(self, slot: _Slot) -> None:
        restarts = slot.started
        slot.started += 1
        slot.incarnation = self._incarnation(slot)
        slot.phase = Phase.RUNNING
        slot.alive = set(range(self._settings.workers_per_replica))
        slot.wake_at = slot.term_at = slot.kill_at = slot.stuck_at = slot.baseline = None
        slot.reported = slot.drained = slot.lost = slot.restart = False
        slot.reports = {}
        self._note(slot, f"start {slot.incarnation}")
        self._out.append(StartReplica(slot.replica_id, slot.incarnation, restarts))
        self._tell(ReplicaStarted(slot.replica_id, slot.incarnation, restarts))

    def _incarnation(self, slot: _Slot) -> str:
        """Unique and unforeseeable, for the agent's id is random."""
        text = f"{self._settings.agent_id}|{slot.replica_id}|{slot.started}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    # ------------------------------------------------------------ workers' ends

    def _worker_exited(self, event: WorkerExited) -> None:
        slot = self._of_incarnation(event.incarnation)
        if slot is None or event.group_rank not in slot.alive:
            return
        slot.alive.discard(event.group_rank)
        self._note(slot, f"worker {event.group_rank} exited {event.status}")
        if slot.phase is Phase.RUNNING:
            slot.status = event.status
            if event.status != 0:
                self._fail(slot, self._failure(slot, event))
        if not slot.alive:
            self._group_ended(slot)

    def _failure(self, slot: _Slot, event: WorkerExited) -> Failure:
        return Failure(
            replica_id=slot.replica_id,
            group_rank=event.group_rank,
            pid=event.pid,
            restarts=slot.started - 1,
            status=event.status,
            report=slot.reports.get(event.group_rank),
            reason=event.reason,
        )

    def _fail(self, slot: _Slot, failure: Failure) -> None:
        """The group is broken: its loss is told first, then the rest of it is killed."""
        self._lose(slot, failure.cause())
        slot.row += 1
        if slot.row == 1:
            slot.row_first = failure
        slot.failures.append(failure)
        signature = failure.signature()
        if signature is not None:
            slot.strikes[signature] += 1
        if slot.lost_at is None:
            slot.lost_at = self._now
        slot.restart = True
        if slot.alive:
            self._kill(slot)

    def _lose(self, slot: _Slot, cause: str) -> None:
        if slot.lost:
            return
        slot.lost = True
        self._dead.append(Loss(slot.replica_id, slot.incarnation, cause))
        self._tell(ReplicaLost(slot.replica_id, slot.incarnation, cause))

    def _group_ended(self, slot: _Slot) -> None:
        was_running = slot.phase is Phase.RUNNING
        failed = slot.restart
        slot.term_at = slot.kill_at = slot.stuck_at = None
        self._out.append(SweepReplica(slot.replica_id, slot.incarnation))
        if slot.forgotten:
            self._lose(slot, "its slot was given to another agent")
            del self._slots[slot.replica_id]
        elif failed and self._ending is None:
            self._restart_or_give_up(slot)
        elif failed:
            self._end_slot(slot, "failed")
        elif was_running:
            self._end_slot(slot, "finished")
            self._tell(ReplicaFinished(slot.replica_id, slot.incarnation))
        else:
            self._lose(slot, "drained" if self._drained else "stopped")
            self._end_slot(slot, "drained" if self._drained else "stopped")

    def _end_slot(self, slot: _Slot, outcome: str) -> None:
        slot.phase = Phase.ENDED
        slot.outcome = outcome
        slot.wake_at = None
        self._note(slot, outcome)

    def _restart_or_give_up(self, slot: _Slot) -> None:
        failure = slot.failures[-1]
        signature = failure.signature()
        strikes = slot.strikes[signature] if signature is not None else 0
        if strikes >= self._settings.strikes_max:
            self._end_slot(slot, "crash loop")
            self._say_lost(failure, "It is not restarted.")
            code = self._settings.crash_code if failure.report else exit_code_of(failure.status)
            self._give_up(
                slot,
                code,
                f"crash loop: replica {slot.replica_id} has failed {strikes} times in the same "
                f"way ({failure.words()}) without a new step in between",
            )
        elif slot.spent >= self._settings.max_restarts:
            self._end_slot(slot, "budget spent")
            self._say_lost(failure, "It is not restarted.")
            first = slot.row_first or failure
            self._give_up(
                slot,
                exit_code_of(first.status),
                f"replica {slot.replica_id} has failed ({failure.words()}) and its "
                f"{self._settings.max_restarts} restarts are spent",
            )
        else:
            self._restart(slot, failure)

    def _restart(self, slot: _Slot, failure: Failure) -> None:
        slot.spent += 1
        delay_s = self._backoff_s(slot.row)
        slot.phase = Phase.WAITING
        slot.wake_at = self._now + delay_s
        when = f"in {delay_s:g} s" if delay_s else "now"
        self._say_lost(failure, f"Restart {slot.spent} of {self._settings.max_restarts} {when}.")

    def _say_lost(self, failure: Failure, then: str) -> None:
        who = f"replica {failure.replica_id}"
        if self._settings.workers_per_replica > 1:
            who += f", worker {failure.group_rank}"
        pid = f" (pid {failure.pid})" if failure.pid else ""
        self._say("lost", failure.replica_id, f"{who}{pid} {failure.cause()}. {then}")

    def _backoff_s(self, row: int) -> float:
        if row <= 1:
            return 0.0
        return min(
            self._settings.backoff_first_s * 2.0 ** min(row - 2, 32), self._settings.backoff_max_s
        )

    def _give_up(self, slot: _Slot, exit_code: int, reason: str) -> None:
        self._say("failed", slot.replica_id, f"The job ends: {reason}.")
        self._tell(JobFailed(exit_code, reason))
        self._end_job(exit_code, reason)

    # ------------------------------------------------------------ workers' words

    def _failure_reported(self, key: WorkerKey, report: FailureReport) -> None:
        slot = self._of_incarnation(key.incarnation)
        if slot is None or key.group_rank not in slot.alive:
            return
        slot.reports[key.group_rank] = report
        if slot.phase is Phase.RUNNING and slot.kill_at is None:
            # A script that has raised may still hang at exit, on a thread or a child of its own.
            slot.kill_at = self._now + self._settings.grace_s

    def _worker_said(self, key: WorkerKey, message: FromWorker) -> None:
        slot = self._of_incarnation(key.incarnation)
        if slot is None:
            return
        slot.reported = True
        match message:
            case Progress(step=step):
                self._progress(slot, step)
            case Healed():
                # The step jumps by the heal: only what comes after it is the incarnation's own.
                slot.baseline = None
            case InForce() if slot.lost_at is not None:
                slot.lost_s += self._now - slot.lost_at
                slot.lost_at = None
            case Leaving(reason="drained"):
                slot.drained = True
            case _:
                pass

    def _progress(self, slot: _Slot, step: int) -> None:
        if slot.baseline is None:
            slot.baseline = step
        gained = step - max(slot.mark, slot.baseline)
        slot.mark = max(slot.mark, step)
        if gained <= 0:
            return
        slot.row = 0
        slot.row_first = None
        slot.strikes.clear()
        slot.refill += gained
        refunds = slot.refill // self._settings.refill_steps
        slot.refill %= self._settings.refill_steps
        slot.spent = max(0, slot.spent - refunds)

    def _restart_asked(self, event: RestartAsked) -> None:
        slot = self._of_incarnation(event.incarnation)
        if slot is None or slot.phase is not Phase.RUNNING:
            return
        rank = min(slot.alive)
        reason = f"was given up: {event.reason}"
        given_up = WorkerExited(event.incarnation, rank, 0, -SIGKILL, reason)
        self._fail(slot, self._failure(slot, given_up))

    # ------------------------------------------------------------ stopping

    def _kill(self, slot: _Slot) -> None:
        slot.phase = Phase.STOPPING
        slot.term_at = slot.kill_at = None
        slot.stuck_at = self._now + self._settings.stuck_after_s
        self._out.append(SignalReplica(slot.replica_id, slot.incarnation, SIGKILL))

    def _terminate(self, slot: _Slot) -> None:
        slot.phase = Phase.STOPPING
        slot.term_at = None
        if slot.kill_at is None:
            slot.kill_at = self._now + self._settings.grace_s
        self._out.append(SignalReplica(slot.replica_id, slot.incarnation, SIGTERM))

    def _end_job(self, exit_code: int, reason: str) -> None:
        """Stop what runs; a drain under way keeps its own exit code."""
        if self._ending is None:
            self._ending = EndAgent(exit_code, reason)
        for slot in self._ordered():
            if slot.phase is Phase.WAITING:
                self._end_slot(slot, "failed" if slot.row else "stopped")
            elif slot.phase is Phase.RUNNING:
                self._terminate(slot)

    def _drain(self, reason: str, exit_code: int) -> None:
        if self._ending is not None:
            return
        self._ending = EndAgent(exit_code, reason)
        self._drained = True
        leaving = []
        for slot in self._ordered():
            if slot.phase is Phase.WAITING:
                self._end_slot(slot, "drained")
            elif slot.phase is Phase.RUNNING and slot.reported and self._link_up:
                leaving.append(slot.replica_id)
                slot.phase = Phase.STOPPING
                slot.term_at = self._now + 0.8 * self._settings.grace_s
                slot.kill_at = self._now + self._settings.grace_s
            elif slot.phase is Phase.RUNNING:
                self._terminate(slot)
        if leaving:
            self._tell(DrainReplicas(tuple(leaving), reason))
        self._say("draining", "", f"{reason}: leaving within {self._settings.grace_s:g} s.")

    def _stop_now(self) -> None:
        if self._ending is None:
            self._ending = EndAgent(128 + SIGTERM, "stopped")
        for slot in self._ordered():
            if slot.phase is Phase.WAITING:
                self._end_slot(slot, "stopped")
            elif slot.phase is not Phase.ENDED:
                slot.restart = False
                self._kill(slot)

    def _spawner_lost(self, reason: str, exit_code: int) -> None:
        """The kernel kills the workers with their spawner; the shell sweeps the rest."""
        if self._ending is None:
            self._ending = EndAgent(exit_code, reason)
        self._say("failed", "", f"The job ends here: {reason}.")
        for slot in self._ordered():
            if slot.alive:
                self._lose(slot, reason)
                slot.alive.clear()
            if slot.phase is not Phase.ENDED:
                self._end_slot(slot, "failed")

    # ------------------------------------------------------------ the lighthouse

    def _lighthouse_spoke(self) -> None:
        if not self._link_up and self._heard_at is not None:
            self._say("lighthouse", "", "The lighthouse is back.")
        self._link_up = True
        self._heard_at = self._now
        self._end_at = None
        if self._isolated:
            self._isolated = False
            self._out.append(TellWorkers(Isolation(False)))

    def _lighthouse_gone(self, reason: str, failures: int) -> None:
        if self._link_up and self._ending is None:
            self._say("lighthouse", "", f"The lighthouse is gone ({reason}); training goes on.")
        self._link_up = False

    def _never_heard(self) -> bool:
        return self._heard_at is None and self._ending is None

    # ------------------------------------------------------------ time

    def _deadlines(self) -> Iterator[float | None]:
        if self._ended:
            return
        for slot in self._slots.values():
            yield from (slot.wake_at, slot.term_at, slot.kill_at, slot.stuck_at)
        yield self._end_at
        if self._never_heard():
            yield self._started_at + self._settings.join_timeout_s
        if self._heard_at is not None and not self._isolated:
            yield self._heard_at + self._settings.isolation_limit_s

    def _timers(self) -> None:
        for slot in list(self._ordered()):
            if slot.wake_at is not None and slot.wake_at <= self._now:
                self._start(slot)
            if slot.kill_at is not None and slot.kill_at <= self._now:
                self._out_of_time(slot)
            elif slot.term_at is not None and slot.term_at <= self._now:
                self._terminate(slot)
            if slot.stuck_at is not None and slot.stuck_at <= self._now:
                self._stuck(slot)
        self._link_timers()

    def _out_of_time(self, slot: _Slot) -> None:
        if slot.phase is Phase.RUNNING:
            rank = min(slot.reports)
            raised = WorkerExited(slot.incarnation, rank, 0, 1)
            self._fail(slot, self._failure(slot, raised))
        else:
            self._kill(slot)

    def _stuck(self, slot: _Slot) -> None:
        slot.stuck_at = None
        ranks = ", ".join(str(rank) for rank in sorted(slot.alive))
        self._say(
            "stuck",
            slot.replica_id,
            f"replica {slot.replica_id}: worker {ranks} was killed and does not end: it is stuck "
            "in the kernel. Its slot waits for it.",
        )
        if self._ending is not None:
            slot.alive.clear()
            self._group_ended(slot)

    def _link_timers(self) -> None:
        s = self._settings
        if self._never_heard() and self._now >= self._started_at + s.join_timeout_s:
            self._end_job(s.unreachable_code, "no lighthouse has answered")
        if self._heard_at is None or self._isolated:
            return
        if self._now >= self._heard_at + s.isolation_limit_s and self._ending is None:
            self._isolated = True
            self._out.append(TellWorkers(Isolation(True)))
            self._say(
                "isolated",
                "",
                f"No word from a lighthouse for {s.isolation_limit_s:g} s: workers stop "
                "committing until one is back.",
            )

    def _conclude(self) -> None:
        """End when nothing runs: on the lighthouse's word, or after a while without one."""
        if self._ended or any(slot.phase is not Phase.ENDED for slot in self._slots.values()):
            return
        if self._ending is None:
            if not self._slots or (self._link_up and not self._settings.alone):
                return
            if self._end_at is None:
                self._end_at = self._now + self._settings.end_grace_s
            if self._now < self._end_at:
                return
            self._ending = EndAgent(0, "all replicas have finished")
        self._ended = True
        self._tell(Goodbye())
        self._out.append(self._ending)

    # ------------------------------------------------------------ small words

    def _ordered(self) -> list[_Slot]:
        return sorted(self._slots.values(), key=lambda slot: replica_order(slot.replica_id))

    def _of_incarnation(self, incarnation: str) -> _Slot | None:
        for slot in self._slots.values():
            if slot.incarnation == incarnation and slot.alive:
                return slot
        return None

    def _tell(self, message: FromAgent) -> None:
        self._out.append(TellLighthouse(message))

    def _say(self, kind: str, replica_id: str, text: str) -> None:
        self._out.append(Say(kind, (replica_id,) if replica_id else (), text))

    def _note(self, slot: _Slot, text: str) -> None:
        self._story.append((self._now, slot.replica_id, text))
