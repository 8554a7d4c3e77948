"""A slot's failures: the loss is reported; then comes a restart, or the job's end.

The loss is reported at once, because peers wait. The verdict and the evidence follow when all of
the group's workers have ended, because the first cause is known only then. Not here: the budget and
its verdicts (restarts.py), the first cause (evidence.py), when the restart begins (supervisor.py).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ftrun.base.errors import ExitCode, assert_never
from ftrun.core import failure_kinds as kinds
from ftrun.core.agent import words
from ftrun.core.agent.ending import Ending
from ftrun.core.agent.events import SIGKILL, SendEvidence, WorkerExited
from ftrun.core.agent.evidence import Ends, failed_workers
from ftrun.core.agent.failures import Failure, exit_code_of
from ftrun.core.agent.part import Part
from ftrun.core.agent.restarts import (
    BudgetSpent,
    CrashLoop,
    NotWanted,
    Restart,
    Verdict,
    WillNotHelp,
)
from ftrun.core.agent.slot_state import Outcome, Replaced, SlotState
from ftrun.core.agent.stopping import Stopping
from ftrun.core.messages import FailureEvidence, JobFailed, Raised, ReplicaGivenUp, StartFailure


@dataclass(eq=False, repr=False)
class FailedSlots(Part):
    """Judges failures; it keeps no state."""

    _stopping: Stopping
    _ending: Ending

    def report(self, slot: SlotState, failure: Failure) -> None:
        """Report the loss once. The lighthouse compares the failures of all replicas."""
        start_failure = None if self._as_torchrun else _start_failure(slot, failure)
        raised = None if self._as_torchrun else _raised(slot, failure)
        known = slot.replaced.get(failure.group_rank)
        self._stopping.report_lost(
            slot,
            failure.cause(),
            start_failure=start_failure,
            kind=failure.kind,
            raised=raised,
            follows="" if known is None else known.incident,
        )

    def judge(self, slot: SlotState) -> None:
        """All workers of a failed group have ended: choose the first cause and the verdict (P5).

        If the job is ending already, nothing is restarted.
        """
        slot.is_failing = False
        failure = slot.ends.first()
        slot.status = failure.status
        slot.failures.append(failure)
        slot.outcome_ahead = Outcome.FAILED
        slot.has_failed = True
        if self._ending.has_begun:
            self.show(failure)
            self.ended(slot)
            return
        at_start = slot.is_at_start and failure.signature() is not None
        has_position = slot.has_position(failure)
        verdict = slot.verdict or slot.budget.failed(
            failure, at_start=at_start, has_position=has_position
        )
        self._carry_out(slot, failure, verdict, at_start)

    def unhealthy(self, slot: SlotState, failure: Failure) -> None:
        """The node's health check has failed: a group that waits for its restart waits longer, or
        is given up.
        """
        slot.ends.of_node.append((self._out.now, failure))
        slot.failures.append(failure)
        slot.restart_in_s = None
        self._carry_out(slot, failure, slot.budget.failed(failure), at_start=False)
        if slot.restart_in_s is not None:
            slot.wake_at = self._out.now + slot.restart_in_s
        elif slot.given_up is not None and slot.outcome_ahead is not None:
            slot.end(slot.outcome_ahead, self._out.now)

    def _carry_out(
        self, slot: SlotState, failure: Failure, verdict: Verdict, at_start: bool
    ) -> None:
        budget = self._settings.restarts.max_restarts
        match verdict:
            case Restart(delay_s, number):
                slot.restart_in_s = delay_s
                then = slot.fall + words.restart(failure, delay_s, number, budget, at_start)
                self.show(failure, then)
                self._send_evidence(slot, kinds.RESTARTED, then)
            case WillNotHelp(step):
                slot.outcome_ahead = Outcome.WILL_NOT_HELP
                reason = words.will_not_help(failure, step)
                self._give_up(slot, failure, kinds.WILL_NOT_HELP, reason)
            case CrashLoop(strikes):
                slot.outcome_ahead = Outcome.CRASH_LOOP
                self._give_up(slot, failure, kinds.CRASH_LOOP, words.crash_loop(failure, strikes))
            case BudgetSpent():
                slot.outcome_ahead = Outcome.BUDGET_SPENT
                if not failure.is_of_script:
                    slot.fall = slot.fall or self._settings.advice
                reason = words.budget_spent(failure, budget)
                self._give_up(slot, verdict.first, kinds.BUDGET_SPENT, reason)
            case NotWanted():
                who = f"worker {failure.replica_id}.{failure.group_rank}"
                reason = f"{who} {failure.cause()}; --on-corruption stop"
                self._give_up(slot, failure, kinds.ENDED, reason)
            case _:
                assert_never(verdict)

    def was_replaced(
        self,
        slot: SlotState,
        all_ends: Ends,
        known: Replaced,
        then: str,
        steps: int,
        stood_s: float,
    ) -> None:
        """One worker was replaced inside its group: this is an incident, which is over.

        It is reported again if its group did not continue and all workers were replaced.
        """
        failure = known.failure
        own = {failure.group_rank: all_ends.failures[failure.group_rank]}
        ends = Ends(own, all_ends.stacks)
        evidence = FailureEvidence(
            replica_id=slot.replica_id,
            incarnation=known.incident,
            restarts=failure.restarts,
            workers=failed_workers(ends, self._out.now),
            has_step=known.step >= 0,
            step=max(known.step, 0),
            verdict=kinds.RESTARTED,
            words=then,
            steps_again=steps,
            stood_s=stood_s,
        )
        self._unconfirmed.sent(evidence, self._out.now)
        self._out.add(SendEvidence(evidence))

    def ended(self, slot: SlotState) -> None:
        """The job ends, so no restart follows."""
        self._send_evidence(slot, kinds.ENDED, "the job was ending")

    def show(self, failure: Failure, then: str = "") -> None:
        """Show people the failure; ``then``: the text about the consequences."""
        self._out.add(words.lost(failure, self._settings.workers_per_replica, then))

    @property
    def _as_torchrun(self) -> bool:
        """True if the job must not end: torchrun restarts a script that fails at its start."""
        return self._settings.restarts.as_torchrun

    @property
    def _may_go_on(self) -> bool:
        """Whether there may be other replicas or nodes, and a lighthouse that knows them."""
        is_only = self._settings.alone and self._settings.replicas == 1
        return self._lease.is_connected and not (is_only or self._as_torchrun)

    def _give_up(self, slot: SlotState, cause: Failure, verdict: str, reason: str) -> None:
        """Let the lighthouse decide whether the job continues without the replica, or end the job.

        ``cause``: the failure whose exit code the job gets, unless ftrun has a code for the
        verdict.
        """
        exit_code, kind = self._exit(verdict, cause)
        self.show(slot.failures[-1], f"{slot.fall}It is not restarted.")
        self._send_evidence(slot, verdict, reason)
        if self._may_go_on:
            may_restart = self._settings.restarts.max_restarts > 0
            elsewhere = may_restart and verdict != kinds.WILL_NOT_HELP
            slot.given_up = ReplicaGivenUp(
                slot.replica_id,
                slot.incarnation,
                exit_code,
                reason,
                kind,
                elsewhere,
                slot.has_committed,
            )
            self._out.send(slot.given_up)
            return
        self._out.add(words.job_ends(cause.replica_id, reason))
        self._out.send(JobFailed(exit_code, reason, kind))
        self._ending.end_job(exit_code, reason, kind)

    def _exit(self, verdict: str, cause: Failure) -> tuple[int, str]:
        """The exit code and its kind."""
        if verdict == kinds.WILL_NOT_HELP:
            return int(ExitCode.WILL_NOT_HELP), ""
        if cause.kind == kinds.CORRUPTION:
            return int(ExitCode.CORRUPTED), ""
        if verdict == kinds.CRASH_LOOP and cause.report is not None:
            return int(ExitCode.CRASH_LOOP), ""  # its own code, 1, would explain nothing
        return exit_code_of(cause.status) or 1, kinds.BY_SCRIPT

    def _send_evidence(self, slot: SlotState, verdict: str, text: str) -> None:
        named = slot.failures[-1].step
        step = slot.budget.step if named is None else named
        evidence = FailureEvidence(
            replica_id=slot.replica_id,
            incarnation=slot.incarnation,
            restarts=slot.started - 1,
            workers=failed_workers(slot.ends, self._out.now),
            has_step=step is not None,
            step=step or 0,
            verdict=verdict,
            words=text,
            restart_in_s=slot.restart_in_s or 0.0,
        )
        self._unconfirmed.sent(evidence, self._out.now)
        self._out.add(SendEvidence(evidence))


def failure_of(slot: SlotState, event: WorkerExited) -> Failure:
    """A worker's end as a failure, with the exception that it reported or else recorded."""
    timed_out = slot.script_timers.cause(event.group_rank, event.status)
    rank, cause = slot.corrupted or (None, "")
    corrupted = cause if rank == event.group_rank else ""
    return Failure(
        replica_id=slot.replica_id,
        group_rank=event.group_rank,
        pid=event.pid,
        restarts=slot.lives[event.group_rank],
        status=event.status,
        report=slot.failure_reports.get(event.group_rank, event.recorded),
        reason=event.reason or corrupted or timed_out,
        memory=event.memory,
        hangs=slot.hung is event or bool(timed_out),
        on_request=event.status == -SIGKILL and event.group_rank in slot.killed_on_request,
        unjoined=event.status == 0 and not event.reason,
    )


def _start_failure(slot: SlotState, failure: Failure) -> StartFailure | None:
    """The failure in the form that replicas compare; None if the slot trained or died by chance."""
    signature = failure.signature()
    if signature is None or not slot.is_at_start:
        return None
    return StartFailure(_digest(signature), exit_code_of(failure.status), failure.words())


def _raised(slot: SlotState, failure: Failure) -> Raised | None:
    """The script's own exception in the form that replicas which trained together compare."""
    step, at = failure.step, failure.raised_at
    is_own = failure.kind == kinds.EXCEPTION and not failure.heals and not slot.is_at_start
    if not is_own or step is None or at is None or at.is_of_ftrun:
        return None
    signature = failure.signature()
    assert signature is not None, "an exception has one"
    return Raised(
        _digest(signature), step, exit_code_of(failure.status), f"{failure.words()} ({at})"
    )


def _digest(signature: str) -> str:
    return hashlib.blake2b(signature.encode(), digest_size=16).hexdigest()
