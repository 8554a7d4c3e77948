"""The last lines of a run: each replica's outcome, and the first cause of a failure.

Not here: a failure's cause as text (core/agent/failures.py).
"""

from __future__ import annotations

from pathlib import Path

from ftrun.agent.incidents import IncidentRecords
from ftrun.base.errors import OF_ONE_NODE, ExitCode
from ftrun.base.words import counted
from ftrun.core.agent.ending import ALL_FINISHED
from ftrun.core.agent.events import EndAgent
from ftrun.core.agent.failures import Failure
from ftrun.core.agent.slot_state import Outcome, SlotSummary
from ftrun.core.incident_words import block
from ftrun.core.messages import JobAccount

TRACEBACK_LINES = 12
LEAST_SHOWN_S = 0.05


def summary_lines(
    slots: tuple[SlotSummary, ...],
    ending: EndAgent,
    elapsed_s: float,
    log_dir: Path,
    incidents: IncidentRecords | None = None,
    account: JobAccount | None = None,
    *,
    is_told: bool = False,
    is_part: bool = False,
) -> list[str]:
    """The report, line by line.

    ``is_told``: another node has written the job's report to the same output. ``is_part``: there
    are other nodes, which may continue to train when this one leaves. ``account``: the lighthouse's
    account. Without it, or if there never was a quorum, the lost time is the time that this agent
    has counted itself.
    """
    lines = []
    if ending.exit_code != 0:
        lines += _what_failed(slots, log_dir, incidents)
    if not is_told:
        lines.append(f"{_verdict(ending, is_part)} after {elapsed_s:.1f} s. Logs: {log_dir}")
    lost = {slot.replica_id: slot.lost_s for slot in slots}
    if account is not None and account.goodput is not None:
        lost |= {x.replica_id: x.lost_s for x in account.slots}
        if not is_told:
            lines.append(_account_line(account, account.goodput))
    lines += [_slot_line(slot, lost[slot.replica_id]) for slot in slots]
    return lines


def _account_line(account: JobAccount, goodput: float) -> str:
    """The use of the time of all replicas, on all nodes."""
    plural = "" if account.steps == 1 else "s"
    lost = f", {counted(account.steps_lost, 'step')} lost" if account.steps_lost else ""
    return (
        f"Summary: {account.steps} step{plural} in {account.wall_s:.1f} s{lost}, goodput "
        f"{100 * goodput:.1f} %, {account.lost_s:.1f} replica-seconds lost."
    )


def _verdict(ending: EndAgent, is_part: bool) -> str:
    if ending.exit_code == ExitCode.DEGRADED and not ending.kind:
        return (
            f"The job has finished degraded, with exit code {ending.exit_code} ({ending.reason}; "
            "if fewer replicas are enough, give --min-replicas)"
        )
    if ending.exit_code == 0:
        how = "" if ending.reason == ALL_FINISHED else f": {ending.reason},"
        return f"The job has finished{how}"
    who = "This node" if is_part and ending.exit_code in OF_ONE_NODE else "The job"
    return f"{who} has ended with exit code {ending.exit_code} ({ending.reason})"


def _slot_line(slot: SlotSummary, lost_s: float) -> str:
    status = "" if slot.status is None else f", last exit status {slot.status}"
    lost = f", {lost_s:.1f} s lost" if lost_s >= LEAST_SHOWN_S else ""
    became = slot.phase.value if slot.outcome is None else slot.outcome.value
    if slot.left_early is not None:
        became = f"left early at step {slot.left_early}"
    plural = "" if slot.restarts == 1 else "s"
    how = f": it {slot.killed}" if slot.killed else ""
    return (
        f"  replica {slot.replica_id}: {became}, {slot.steps} steps, "
        f"{slot.restarts} restart{plural}{lost}{status}{how}"
    )


def _what_failed(
    slots: tuple[SlotSummary, ...], log_dir: Path, incidents: IncidentRecords | None
) -> list[str]:
    """The last incident or, without a record of the lighthouse, the facts that this agent has."""
    lines = _first_cause(slots, log_dir)
    if incidents is None or incidents.last is None or not lines:
        return lines
    more = f" of {incidents.count}" if incidents.count > 1 else ""
    where = f"ftrun explain --log-dir {log_dir.parent} {log_dir.name}"
    log = lines[0].rpartition(" Log: ")[2]
    return [
        *block(incidents.last),
        f"  log: {log}",
        f"That was the last incident{more}. To see each in full: {where}",
    ]


def _first_cause(slots: tuple[SlotSummary, ...], log_dir: Path) -> list[str]:
    """The first failure of the slot that has ended the job, with the end of its traceback."""
    for outcome in (
        Outcome.WILL_NOT_HELP,
        Outcome.CRASH_LOOP,
        Outcome.BUDGET_SPENT,
        Outcome.FAILED,
    ):
        for slot in slots:
            if slot.outcome is outcome and slot.failures:
                return _cause_lines(slot.failures[-1], log_dir)
    return []


def _cause_lines(failure: Failure, log_dir: Path) -> list[str]:
    log = log_dir / f"replica_{failure.replica_id}" / f"rank_{failure.group_rank}"
    pid = f" (pid {failure.pid})" if failure.pid else ""
    lines = [
        f"The cause: replica {failure.replica_id}, worker {failure.group_rank}{pid} "
        f"{failure.cause()}. Log: {log / f'{failure.restarts}.log'}"
    ]
    if failure.report is not None:
        traceback = failure.report.traceback.rstrip().splitlines()
        lines += [f"  | {line}" for line in traceback[-TRACEBACK_LINES:]]
    return lines
