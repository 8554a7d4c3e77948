"""A slot's failures: its loss is reported; then comes a restart, or the job's end.

Not here: the budget and the crash loop (restarts.py), when the restart begins (supervisor.py).
"""

from __future__ import annotations

import hashlib

from ftrun.core.agent import words
from ftrun.core.agent.ending import Ending
from ftrun.core.agent.events import WorkerExited
from ftrun.core.agent.failures import Failure, exit_code_of
from ftrun.core.agent.outbox import Outbox
from ftrun.core.agent.restarts import BudgetSpent, CrashLoop, Restart
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.slot_state import Outcome, SlotState
from ftrun.core.agent.stopping import Stopping
from ftrun.core.messages import JobFailed, StartFailure
from ftrun.errors import assert_never


class FailedSlots:
    """Judges failures; it keeps no state of its own."""

    def __init__(
        self, settings: SupervisorSettings, stopping: Stopping, ending: Ending, out: Outbox
    ) -> None:
        self._settings = settings
        self._stopping = stopping
        self._ending = ending
        self._out = out

    def report(self, slot: SlotState, failure: Failure) -> None:
        """Report the loss to the lighthouse, once; it compares failures before the first step."""
        start_failure = _start_failure(slot, failure)
        self._stopping.report_lost(slot, failure.cause(), start_failure=start_failure)

    def judge(self, slot: SlotState, failure: Failure) -> None:
        """Restart once all its workers have ended, or end the job and give the reason (P5)."""
        budget = self._settings.restarts.max_restarts
        at_start = slot.is_at_start and failure.signature() is not None
        verdict = slot.budget.failed(failure, at_start=at_start)
        match verdict:
            case Restart(delay_s, number):
                slot.restart_in_s = delay_s
                self.show(failure, words.restart(failure, delay_s, number, budget, at_start))
            case CrashLoop(strikes):
                slot.outcome_ahead = Outcome.CRASH_LOOP
                status = self._settings.crash_code if failure.report else failure.status
                self._give_up(failure, status, words.crash_loop(failure, strikes))
            case BudgetSpent(first):
                slot.outcome_ahead = Outcome.BUDGET_SPENT
                self._give_up(failure, first.status, words.budget_spent(failure, budget))
            case _:
                assert_never(verdict)

    def show(self, failure: Failure, then: str = "") -> None:
        """Show people the failure; ``then``: what follows."""
        self._out.add(words.lost(failure, self._settings.workers_per_replica, then))

    def _give_up(self, failure: Failure, status: int, reason: str) -> None:
        exit_code = exit_code_of(status)
        self.show(failure, "It is not restarted.")
        self._out.add(words.job_ends(failure.replica_id, reason))
        self._out.send(JobFailed(exit_code, reason))
        self._ending.end_job(exit_code, reason)


def failure_of(slot: SlotState, event: WorkerExited) -> Failure:
    """A worker's end as a failure, with its exception if it reported one."""
    return Failure(
        replica_id=slot.replica_id,
        group_rank=event.group_rank,
        pid=event.pid,
        restarts=slot.started - 1,
        status=event.status,
        report=slot.failure_reports.get(event.group_rank),
        reason=event.reason,
    )


def _start_failure(slot: SlotState, failure: Failure) -> StartFailure | None:
    """What is compared between replicas; None: the slot has trained, or died by chance."""
    signature = failure.signature()
    if signature is None or not slot.is_at_start:
        return None
    digest = hashlib.blake2b(signature.encode(), digest_size=16).hexdigest()
    return StartFailure(digest, exit_code_of(failure.status), failure.words())
