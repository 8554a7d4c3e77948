"""Supervision of one node's replica groups: spawn, watch, restart, stop.

Theory of operation. The agent's shell passes each event to ``handle`` and carries out the
instructions that it returns. Each slot that the lighthouse has assigned is in one phase:

| event \\ phase    | WAITING | RUNNING                 | STOPPING        | ENDED     |
|------------------|---------|-------------------------|-----------------|-----------|
| wake time        | RUNNING |                         |                 |           |
| a script raises  |         | lost                    |                 |           |
| a worker exits 0 |         | all have: ENDED         | all have: next  |           |
| one is dying     |         | lost; kill: STOPPING    |                 |           |
| one exits else   |         | lost; kill: STOPPING    | all have: next  |           |
| restart asked    |         | lost; kill: STOPPING    |                 |           |
| drain asked      | ENDED   | asked: STOPPING         |                 |           |
| job ended        | ENDED   | asked: STOPPING         | no restart      |           |
| slot taken away  | removed | kill, unless it has left| then removed    | removed   |
| stop time        |         | (raised, hangs) lost    | asked, then kill|           |
| silent for long  |         | lost; kill: STOPPING    |                 |           |
| people ask       | RUNNING | asked; left: STOPPING   |                 |           |

"Next" after STOPPING is WAITING for a restart, ENDED, or the slot's removal. A group that is asked
to stop has the whole grace period (inject/stopping.py); if it must be killed then, the report says
so. The rest of a broken group is killed first, and its loss is reported right after that (Q3).

A death is one failure, handled once: as ``WorkerDying`` if the kernel shows it early, else as
``WorkerExited``. Peers wait for the report of the loss alone; the restart, the verdict and the
evidence wait until the process is gone. The restart also waits until the surviving replicas here
have their next quorum, and ``REPAIR_S`` more, but ``SURVIVORS_FIRST_S`` at most. Otherwise its
imports would compete for the processors with the survivors' repair.

Not here: the agent's end (ending.py), the consequences of a failure (failed_slots.py, restarts.py),
how a slot is stopped (stopping.py), requests of people (on_request.py), the lighthouse's absence
(outage.py, lease.py), silent workers (hang_watch.py), standbys (standby.py), slow imports
(imports.py), messages of workers (from_workers.py), texts (words.py), processes, sockets and files
(agent/), membership (core/lighthouse/machine.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from ftrun.base.errors import assert_never
from ftrun.core import messages as m
from ftrun.core.agent import events as e
from ftrun.core.agent import words
from ftrun.core.agent.ending import Ending
from ftrun.core.agent.evidence import Unconfirmed
from ftrun.core.agent.failed_slots import FailedSlots, failure_of
from ftrun.core.agent.from_workers import UNREADY, FromWorkers, runs_apart
from ftrun.core.agent.hangs import Hangs
from ftrun.core.agent.health import NodeHealth
from ftrun.core.agent.imports import LIMIT_S, ImportDeadline
from ftrun.core.agent.lease import AgentLease
from ftrun.core.agent.on_request import OnRequest
from ftrun.core.agent.outage import Outage
from ftrun.core.agent.outbox import Outbox
from ftrun.core.agent.replacing import Replacing, mend_of
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.slot_state import Outcome, SlotPhase, SlotState
from ftrun.core.agent.slot_table import NodeSlots
from ftrun.core.agent.standby import StandbyPool
from ftrun.core.agent.stopping import SIGKILL, Stopping
from ftrun.core.forms import Form
from ftrun.core.ids import replica_order

SURVIVORS_FIRST_S = 0.1
REPAIR_S = 0.03
LEFT_WAIT_S = 1.0
"""A slot whose replica has left waits this long for its restart here: another agent may get it."""


class Supervisor:
    """The decisions of one agent. See the module's table.

    ``slots``: all slots of this node. ``evidence``: of failures, which a new lighthouse may not
    know. ``standbys``: those that wait, and how many were used.
    """

    def __init__(self, settings: SupervisorSettings, now: float) -> None:
        self._settings = settings
        self.slots = NodeSlots(settings.restarts)
        self.standbys = StandbyPool(settings.standbys)
        self._starts = 0
        self._import_deadline = ImportDeadline(now, max(LIMIT_S, settings.join_timeout_s))
        self._lease = AgentLease(settings.join_timeout_s, settings.isolation_limit_s)
        self._stood_by = False
        self._resizes = ""
        self._out = Outbox(now)
        self.evidence = Unconfirmed()
        common = settings, self.slots, self._lease, self.evidence, self._out
        self._stopping = Stopping(*common)
        self._ending = Ending(*common, self._stopping)
        self._on_request = OnRequest(*common, self._stopping)
        self._failures = FailedSlots(*common, self._stopping, self._ending)
        parts = self.standbys, self._failures, self._ending
        self._replacing = Replacing(*common, *parts, self._fail, self._group_ended)
        self._hangs = Hangs(*common, self._give_up)
        own = self._failures, self._ending, self._on_request, self._is_in_quorum
        self._from_workers = FromWorkers(*common, *own, self._hangs.given_up)
        self._together = self._from_workers.together
        self._health = NodeHealth(*common, self._failures)
        self._outage = Outage(*common, self._stopping, self._ending)

    # ------------------------------------------------------------ the interface

    def handle(self, event: e.Event, now: float) -> list[e.Instruction]:
        """Take one event and return its instructions, to be carried out in order."""
        self._out.begin(now)
        match event:
            case m.AssignSlots(replica_ids):
                self._assign(replica_ids)
            case e.WorkerDying(end):
                self._worker_dying(end)
            case e.WorkerExited():
                self._worker_exited(event)
            case e.OtherWorldMade(is_open):
                self._from_workers.other_world_made(is_open)
            case e.ScriptTimerSet() | e.ScriptTimerReleased():
                self._hangs.timer_changed(event)
            case e.WorkerSent(key, message):
                self._from_workers.received(key, message)
            case m.WorkerDisconnected(key):
                self._from_workers.disconnected(key)
            case m.WorkerUsed():
                self._hangs.used(event)
            case e.StacksTaken(incarnation, stacks):
                self._hangs.stacks_taken(incarnation, stacks)
            case e.BoardSeen():
                self._replacing.seen(event)
            case e.WorkersUnlike(incarnation, found):
                self._replacing.unlike(incarnation, found)
            case e.MemorySeen(held):
                if not self.is_ending:
                    self._together.seen(held)
            case e.ManagerFound():
                self._replacing.ends()
            case e.HealthChecked():
                self._health.checked(event)
            case m.IncidentRecord(number, incarnations, is_open):
                self.evidence.recorded(incarnations, number, is_open=is_open)
            case m.RestartReplica(_, incarnation, reason) if not self._together.is_under_way:
                if not self._replacing.was_late(incarnation, reason):
                    self._hangs.given_up(incarnation, reason)
                self._has_not_joined(incarnation)
            case m.RestartReplica():
                pass  # it begins again with all others
            case m.StopReplica():
                if not self.is_ending:
                    self._on_request.stop(event)
            case m.KillWorkers():
                self._on_request.kill(event)
            case e.SignalReceived(number):
                self._ending.signalled(number)
            case m.DrainAsked(reason, exit_code, number, is_notice):
                self._ending.drain(reason, exit_code, number, is_notice=is_notice)
            case e.StopAsked():
                self._ending.stop_now()
            case m.EndJob(exit_code, reason, kind):
                self._ending.end_job(exit_code, reason, kind)
            case e.TeamChanged(text):
                self._resizes = text
            case e.SpawnerReady():
                self._import_deadline.is_done = True
                self._lease.ready(now)
            case e.SpawnerWarmed():
                self.standbys.open(now)
            case e.StandbyExited():
                self._standby_exited(event)
            case e.SpawnerLost(reason, exit_code):
                self._ending.spawner_lost(reason, exit_code)
            case e.LighthouseSent():
                if not (self._lease.is_connected or self.is_ending):
                    self.slots.forget_drained()
                self._outage.received(event)
                self._ending.lighthouse_came()
            case e.LighthouseGone(reason, is_moved):
                self._outage.disconnected(reason, is_moved=is_moved)
            case e.TimerFired():
                pass  # ``_timers`` does the rest
            case _:
                assert_never(event)
        if self._resizes and not any(slot.is_failing for slot in self.slots):
            # The failure is judged first: perhaps no restart is left.
            self._ending.resize(self._resizes)
            self._resizes = ""
        self._timers()
        self._ending.conclude()
        return self._out.take()

    def next_deadline(self) -> float | None:
        """When to send ``TimerFired``, at the latest."""
        return None if self._ending.is_over else min(self._deadlines(), default=None)

    def apart(self) -> tuple[m.Heartbeat, ...]:
        """After a Hello: progress of the replicas without a Manager, which cannot report it
        themselves.
        """
        return tuple(runs_apart(slot) for slot in self.slots if slot.is_apart)

    def absent(self) -> tuple[m.FromAgent, ...]:
        """After a Welcome: what a new lighthouse may not know of replicas.

        They were given up, have ended or leave early, or workers of them are being replaced.
        """
        given_up = [slot.given_up for slot in self.slots if slot.given_up is not None]
        mends = [mend_of(slot) for slot in self.slots if slot.replaced]
        return (*given_up, *self.slots.finished_oddly(), *self.slots.leaving_early(), *mends)

    @property
    def isolated(self) -> bool:
        """True while workers may not commit, because no lighthouse has renewed the lease (Q3)."""
        return self._lease.isolated

    @property
    def lease(self) -> m.Lease | None:
        """Until when workers may commit without another answer; None: there was no answer yet."""
        return self._outage.lease()

    @property
    def restarts_spent(self) -> int:
        """The number of used restarts, of the replica that has used most."""
        return max((slot.budget.spent for slot in self.slots), default=0)

    @property
    def was_answered(self) -> bool:
        """True once a lighthouse has answered a Hello or a heartbeat."""
        return self._lease.renewed_at is not None

    @property
    def gives_up_at(self) -> float | None:
        """When the agent ends without an answer; None: not known yet, or there was an answer
        already.
        """
        return self._lease.deadline() if self._lease.renewed_at is None else None

    @property
    def is_ending(self) -> bool:
        """True once the job is to end here, whatever the cause."""
        return self._ending.has_begun

    @property
    def ran_apart(self) -> bool:
        """Whether the replica groups trained separately, because the script has made no Manager."""
        has_manager = any(slot.has_manager or slot.has_trained for slot in self.slots)
        return self._from_workers.is_without_manager and not has_manager

    def check(self) -> None:
        """Assert what must hold between events (AssertionError, with the slot's story)."""
        self.slots.check(self.is_ending)
        self.standbys.check()

    # ------------------------------------------------------------ slots and starts

    def _assign(self, replica_ids: tuple[str, ...]) -> None:
        if self.is_ending:
            return  # every slot here is being stopped, and keeps its place in the report
        for slot in self.slots:
            if slot.replica_id not in replica_ids:
                self._forget(slot)
        for replica_id in sorted(replica_ids, key=replica_order):
            known = self.slots.get(replica_id)
            if known is not None and known.forgotten:
                # Taken away and assigned again while its workers still end: start it again, even if
                # people had drained it, because they must have asked for it since.
                known.forgotten, known.leaves = False, None
            elif known is None:
                self.slots.add(replica_id, self._out.now)
        if not len(self.slots) and not self._stood_by:
            self._stood_by = True
            self._out.add(words.idle())

    def _forget(self, slot: SlotState) -> None:
        if not slot.alive:
            self._remove(slot)
            return
        slot.forgotten = True
        if slot.phase is SlotPhase.STOPPING:
            return
        if slot.has_left:
            self._stopping.ask(slot)  # its script may be saving
        elif slot.failure_reports:
            # The lighthouse no longer counts it as running, but it failed here: report that (P6).
            self._fail(slot, e.WorkerExited(slot.incarnation, min(slot.failure_reports), 0, 1))
        else:
            self._stopping.kill(slot)

    def _remove(self, slot: SlotState) -> None:
        self._replacing.lets_go(slot)
        self.slots.remove(slot)

    def _start(self, slot: SlotState) -> None:
        lives = slot.started
        # The agent's id is random, so incarnations cannot be predicted. The count of all starts
        # makes them unique: a slot that was taken away and comes back counts restarts from zero.
        self._starts += 1
        text = f"{self._settings.agent_id}|{slot.replica_id}|{self._starts}"
        incarnation = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        settings = self._settings
        slot.begun_at = self._out.now
        slot.begin(
            incarnation,
            settings.workers_per_replica,
            settings.hang_timeout_s,
            settings.hang_factor,
        )
        sound_until = self._replacing.begin(slot)
        self.slots.note(self._out.now, slot, f"started as {incarnation}")
        standbys = self.standbys.take(settings.workers_per_replica, self._out.now)
        peers_train = any(one.trains for one in self.slots)
        more = standbys, peers_train, sound_until
        self._out.add(e.StartReplica(slot.replica_id, incarnation, lives, *more))
        restarts, left = slot.restarts, slot.budget.left
        self._out.send(m.ReplicaStarted(slot.replica_id, incarnation, restarts, left))

    def _refill_standbys(self) -> None:
        if not self._wants_standbys():
            return
        for name in self.standbys.refill(self._out.now):
            self._out.add(e.StartStandby(name))

    def _wants_standbys(self) -> bool:
        """Whether to keep standbys: only while workers run here that they could replace."""
        return not self.is_ending and any(slot.alive for slot in self.slots)

    def _standby_exited(self, end: e.StandbyExited) -> None:
        if self.standbys.died(end.name, self._out.now, lacks_room=end.lacks_room):
            deaths = self._settings.standbys.deaths_max
            self._out.add(words.no_more_standbys(deaths, end.status))

    # ------------------------------------------------------------ workers' ends

    def _worker_dying(self, end: e.WorkerExited) -> None:
        """Report a death at once. Any other end is handled when the process is gone."""
        slot = self.slots.of_incarnation(end.incarnation)
        if slot is None or end.group_rank not in slot.alive:
            return
        if not (slot.is_failing or _is_failure(slot, end)) or slot.ending is not None:
            return
        slot.dying.add(end.group_rank)
        self.slots.note(self._out.now, slot, f"worker {end.group_rank} is dying: {end.status}")
        self._worker_ended(slot, end)

    def _worker_exited(self, event: e.WorkerExited) -> None:
        slot = self.slots.of_incarnation(event.incarnation)
        if slot is None or event.group_rank not in slot.alive:
            return
        if self._replacing.ended(slot, event.group_rank):
            return
        if self._replacing.waits_for_end(slot, event.group_rank):
            self._replacing.gone(slot, event.group_rank)
            return
        slot.alive.discard(event.group_rank)
        self.slots.note(self._out.now, slot, f"worker {event.group_rank} exited {event.status}")
        self._worker_ended(slot, event)
        if not slot.alive:
            self._group_ended(slot)

    def _worker_ended(self, slot: SlotState, end: e.WorkerExited) -> None:
        """Judge a worker's end. A death that was handled before changes nothing more."""
        slot.hang_watch.gone(end.group_rank)
        slot.loop_watch.gone(end.group_rank)
        slot.script_timers.gone(end.group_rank)
        if end.kept is not None and end.kept.reached:
            slot.budget.progressed(end.kept.reached)
        if slot.phase is SlotPhase.RUNNING:
            slot.status = _status(slot, end)
            if not _is_failure(slot, end):
                self._on_request.left(slot)
            elif not self._replacing.takes(slot, end):
                self._fail(slot, replace(end, status=slot.status))
        elif slot.is_failing and end.group_rank in slot.replaced:
            pass  # the death of the worker that it replaces is reported
        elif slot.is_failing and end.status not in (0, -SIGKILL):
            # It ended by itself before the SIGKILL arrived, so it may be the first cause.
            slot.ends.note(self._out.now, failure_of(slot, end))
        elif self.is_ending and not slot.killed:
            slot.status = end.status
            if end.status:
                slot.done.discard(end.group_rank)
        if slot.is_failing:
            self._replacing.gone_badly(slot, end)

    def _fail(self, slot: SlotState, event: e.WorkerExited) -> None:
        """Kill the rest of a broken group, and then report its loss.

        In this order, because peers rely on a group whose loss is reported to commit nothing more
        (Q3).
        """
        known = slot.replaced.get(event.group_rank)
        is_known = known is not None and known.end is event  # its replacement has another log
        failure = known.failure if known and is_known else failure_of(slot, event)
        if self._from_workers.fails_as_one and not self.is_ending:
            reason = f"replica {slot.replica_id} {failure.cause()}, and {words.ELSEWHERE}"
            self._from_workers.begin_again(slot, Form.ONE_WORLD, reason)
        slot.ends.note(self._out.now, failure)
        slot.is_failing = True
        self._survivors_first(slot)
        slot.hung = None
        slot.outcome_ahead = Outcome.FAILED
        slot.stands(self._out.now - event.ago_s)
        has_ended = event.group_rank not in slot.living
        if slot.living and has_ended and self._settings.asks_siblings and not slot.has_manager:
            self._stopping.ask_siblings(slot)
        elif slot.living:
            self._stopping.kill(slot)
        elif slot.alive:
            self._stopping.await_end(slot)
        self._failures.report(slot, failure)

    def _give_up(self, slot: SlotState, event: e.WorkerExited) -> None:
        """A worker hangs: kill it, and replace it if that is possible."""
        if not self._replacing.kill(slot):
            self._fail(slot, event)

    def _group_ended(self, slot: SlotState) -> None:
        was_running = slot.phase is SlotPhase.RUNNING
        slot.clear_deadlines()
        self._replacing.group_ended(slot)
        if slot.is_failing:
            self._failures.judge(slot)
        sweep = e.SweepReplica(slot.replica_id, slot.incarnation)
        if slot.forgotten:
            self._stopping.report_lost(slot, "its slot was given to another agent")
            self._remove(slot)
        elif slot.restart_in_s is not None and not self.is_ending:
            self._wait(slot, slot.restart_in_s)
        elif slot.leaves is not None and slot.outcome_ahead is None and not self.is_ending:
            if self._on_request.ended(slot):
                self._wait(slot, 0.0)
        elif slot.outcome_ahead is not None:
            slot.end(slot.outcome_ahead, self._out.now)
        elif was_running and slot.has_left:
            self._stopping.report_lost(slot, "it has left")
            self._wait(slot, LEFT_WAIT_S)
        elif was_running or self._was_done(slot):
            slot.end(Outcome.FINISHED, self._out.now)
            self._out.send(slot.finished())
            return  # processes that a script leaves running after its end are not ours
        elif self.is_ending:
            self._has_stopped(slot)
        else:
            self._stopping.report_lost(slot, "its slot was given away for a moment")
            self._wait(slot, 0.0)
        self._out.add(sweep)

    def _was_done(self, slot: SlotState) -> bool:
        """Whether the request to stop came after the end of each script, but before the processes
        ended.
        """
        is_well = self.is_ending and not (slot.killed or slot.failure_reports)
        return is_well and len(slot.done) == self._settings.workers_per_replica

    def _has_not_joined(self, incarnation: str) -> None:
        """A newcomer has ended with exit code 0 before it joined its peers, which still train.

        It has not finished, so this is a failure of its replica. Only the lighthouse knows which
        replicas train.
        """
        slot = self.slots.last_of(incarnation)
        if slot is None or slot.outcome is not Outcome.FINISHED or self.is_ending:
            return
        failure = failure_of(slot, e.WorkerExited(incarnation, 0, 0, 0))
        slot.ends.note(self._out.now, failure)
        slot.outcome_ahead = None
        self._failures.report(slot, failure)
        slot.stands(self._out.now)
        self._failures.judge(slot)
        if slot.restart_in_s is not None:
            slot.outcome = None
            self._wait(slot, slot.restart_in_s)
        else:
            slot.outcome = slot.outcome_ahead

    def _has_stopped(self, slot: SlotState) -> None:
        """All workers of a group that was asked to stop have ended."""
        outcome = Outcome.KILLED if slot.killed else self._ending.outcome
        if slot.failure_reports and not slot.killed:
            rank = min(slot.failure_reports)
            failure = failure_of(slot, e.WorkerExited(slot.incarnation, rank, 0, 1))
            slot.failures.append(failure)
            outcome = Outcome.FAILED
            self._failures.show(
                failure, "That was while it left: its checkpoint may be unfinished."
            )
        self._stopping.report_lost(slot, outcome.value)
        slot.end(outcome, self._out.now)

    def _wait(self, slot: SlotState, delay_s: float) -> None:
        slot.wait(self._out.now, delay_s)

    def _survivors_first(self, slot: SlotState) -> None:
        """Delay the start, so that the survivors here that repair their step get the processors."""
        self._is_in_quorum(slot.incarnation)
        is_needed = self._settings.replicas <= self._settings.min_replicas
        if not is_needed and not self.standbys.idle:
            slot.goes_after = {one.incarnation for one in self.slots if one.trains}
            slot.goes_at = self._out.now + SURVIVORS_FIRST_S if slot.goes_after else 0.0

    def _is_in_quorum(self, incarnation: str) -> None:
        for slot in self.slots:
            slot.lets(incarnation, self._out.now, REPAIR_S)

    # ------------------------------------------------------------ time

    def _deadlines(self) -> Iterator[float]:
        for slot in self.slots:
            yield from slot.deadlines()
        if self._ending.end_at is not None:
            yield self._ending.end_at
        if self.standbys.due_at is not None and self._wants_standbys():
            yield self.standbys.due_at
        imported_at = self._import_deadline.deadline()
        if imported_at is not None and not self.is_ending:
            yield imported_at
        if self._together.look_at is not None and not self.is_ending:
            yield self._together.look_at
        yield from self._outage.deadlines()

    def _timers(self) -> None:
        for slot in self.slots:
            if _due(slot.wake_at, self._out.now) and self._health.permits_start(slot):
                self._start(slot)
            if _due(slot.kill_at, self._out.now):
                self._out_of_time(slot)
            elif _due(slot.press_at, self._out.now):
                self._stopping.press(slot)
            if _due(slot.stuck_at, self._out.now):
                self._stuck(slot)
            if _due(slot.stacks_at, self._out.now):
                self._hangs.overdue(slot)
            if _due(slot.look_at, self._out.now):
                self._replacing.look(slot)
            self._replacing.stops_waiting(slot)
            if slot.phase is SlotPhase.ENDED:
                self._replacing.lets_go(slot)
            if slot.phase is SlotPhase.RUNNING:
                self._hangs.ask_the_silent(slot)
                self._hangs.check_loops(slot)
                self._hangs.check_timers(slot)
        if not self.is_ending:
            self._together.check()
        self._refill_standbys()
        self._check_imports()
        self._outage.check()

    def _check_imports(self) -> None:
        if self.is_ending:
            return
        limit_s = self._import_deadline.limit_s
        if self._import_deadline.is_over(self._out.now):
            self._ending.end_job(UNREADY, words.not_imported(limit_s))
        elif self._import_deadline.is_slow(self._out.now):
            self._import_deadline.shown = True
            self._out.add(words.imports_are_slow(limit_s))

    def _out_of_time(self, slot: SlotState) -> None:
        if slot.phase is SlotPhase.RUNNING:
            rank = min(slot.failure_reports)
            self._give_up(slot, e.WorkerExited(slot.incarnation, rank, 0, 1))
            return
        slot.killed = words.out_of_grace(self._settings.grace_s)
        self._out.add(words.killed(slot.replica_id, slot.killed))
        self._stopping.report_lost(slot, slot.killed, killed=True)
        self._stopping.kill(slot)

    def _stuck(self, slot: SlotState) -> None:
        slot.stuck_at = None
        self._out.add(words.stuck(slot.replica_id, slot.alive))
        if slot.is_failing:
            self._failures.judge(slot)
        if self.is_ending:
            slot.alive.clear()
            self._group_ended(slot)


def _status(slot: SlotState, end: e.WorkerExited) -> int:
    """A script that raised has failed, even if its exit handler ends it with status 0."""
    return end.status or int(end.group_rank in slot.failure_reports)


def _is_failure(slot: SlotState, end: e.WorkerExited) -> bool:
    """Whether this end of a worker, which should have run on or left, is a bad one."""
    status = _status(slot, end)
    is_well = status == 0 or end.group_rank in slot.left or _as_asked(slot, status)
    return slot.phase is SlotPhase.RUNNING and not is_well


def _as_asked(slot: SlotState, status: int) -> bool:
    """Whether a worker has ended as it was asked to, and not by an exception or a crash."""
    return (
        slot.leaves is not None and not slot.failure_reports and status in (*range(256), -e.SIGTERM)
    )


def _due(at: float | None, now: float) -> bool:
    return at is not None and at <= now
