"""``ftrun chaos --manifest``: injects a campaign's faults by step, and records what followed.

The result is a file independent of ftrun (docs/CHAOS.md). For each fault: what, when, how long
until the next step at all, how many steps were lost. At the end: whether all replicas ended alike.
The file is rewritten after each fault, so an interrupted campaign leaves a result too.

Not here: the manifest (manifest.py), which processes a fault can hit (targets.py).
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ftrun import __version__
from ftrun.base import clock, linux
from ftrun.base.chaos_trap import VARIABLE, corruption_trap
from ftrun.base.errors import ExitCode, UserError
from ftrun.base.files import read_object, write_whole
from ftrun.base.words import duration
from ftrun.core.lighthouse.status import Status
from ftrun.tools.chaos.held_agent import HeldAgent
from ftrun.tools.chaos.manifest import Fault, Manifest, read
from ftrun.tools.chaos.proxy import Proxy
from ftrun.tools.chaos.session import (
    LOOK_S,
    REPLACED_S_MAX,
    SILENT_S_MAX,
    ChaosSettings,
    JobEnded,
    Session,
    has_state_elsewhere,
    last_incident,
    members,
    mend_of,
    replica_of,
)
from ftrun.tools.chaos.targets import Target, find_targets, lighthouse_below, node_of
from ftrun.tools.status.client import fetch_status
from ftrun.tools.status.jobs import RunningJob
from ftrun.tools.status.once import find_job

RESULT_SCHEMA = "ftrun.chaos-result/1"
JOB_S_MAX = 600.0
TRAP_S_MAX = 30.0
LOG_BYTES_MAX = 1 << 20
FILE = "chaos-result.json"
ENDING = ("kill", "node", "corrupt")
"""The kinds after which a replica is replaced. A corrupted one is, unless it is only reported."""
PROGRESS_LATE_S = 1.2
"""The steps in a status may be this old: those of the last heartbeat."""


class NotDone(Exception):
    """A fault cannot be injected now; the text says why."""


@dataclass
class Record:
    """A fault and what followed. Times in seconds; None: it was not seen in time.

    Attributes:
        step: the job's step at the fault, as known then.
        found_s: until the lighthouse knew that the fault had lost a replica, or that a replica is
            corrupted and trains on.
        next_step_s: for a fault that ends a replica, by the lighthouse's clock: the others' stall
            from the loss until their next quorum, plus a usual step. For other faults: until the
            job was seen at a step that it cannot have reached before. That is up to a second too
            long, and for ``lighthouse`` it includes the time until the lighthouse is back.
        back_s: until the replica that the fault ended was seen as a member again.
        why_not: why it was not injected; "": it was.
    """

    kind: str
    at_step: int
    replica: str | None = None
    worker: int | None = None
    time_s: float | None = None
    step: int | None = None
    found_s: float | None = None
    next_step_s: float | None = None
    back_s: float | None = None
    steps_lost: int | None = None
    why_not: str = ""


def run_campaign(settings: ChaosSettings, path: Path, show: Callable[[str], None] = print) -> int:
    """Carry out a manifest. Returns 0 if each fault was injected and the replicas ended alike.

    Raises:
        UserError: the manifest is wrong, or no such job runs here.
        LighthouseUnreachable: its lighthouse did not answer the first request.
    """
    manifest = read(path)
    proxy = Proxy(manifest.to, 0, manifest.listen) if manifest.listen else None
    try:
        if proxy is not None:
            show(f"Start the job's agents with --lighthouse {proxy.address}: what they send is "
                 f"passed on to {manifest.to}.")  # fmt: skip
        job = _await_job(settings.job_id, None if proxy is None else JOB_S_MAX)
        with HeldAgent(job) as agent:
            return Campaign(settings, job, agent, show, manifest, proxy).run()
    finally:
        if proxy is not None:
            proxy.close()


def strangers(manifest: Manifest, status: Status) -> list[str]:
    """The replicas of a campaign that the job neither has nor will start."""
    known = {replica["replica_id"] for replica in status["replicas"]}
    known.update(map(str, range(status["job"]["replicas"])))
    wanted = (fault.replica for fault in manifest.faults)
    return [one for one in wanted if one is not None and one not in known]


def _await_job(job_id: str | None, within_s: float | None) -> RunningJob:
    """Wait for the job, which may start after this command if it goes through the proxy."""
    deadline = clock.now() + (within_s or 0.0)
    while True:
        try:
            return find_job(job_id, "ftrun chaos")
        except UserError:
            if clock.now() >= deadline:
                raise
            time.sleep(LOOK_S)


class Campaign(Session):
    """One campaign and its job."""

    def __init__(
        self,
        settings: ChaosSettings,
        job: RunningJob,
        agent: HeldAgent,
        show: Callable[[str], None],
        manifest: Manifest,
        proxy: Proxy | None,
    ) -> None:
        seed = manifest.seed if settings.seed is None else settings.seed
        super().__init__(replace(settings, seed=seed), job, agent, show)
        self._manifest, self._proxy = manifest, proxy
        self._records: list[Record] = []
        self._result = settings.result or Path(FILE)

    def run(self) -> int:
        """See ``run_campaign``."""
        status = fetch_status(self._job.http, self._token, tls=self._job.tls)
        self._check_alive()
        unknown = strangers(self._manifest, status)
        if unknown:
            raise UserError(f"Job {self._job.job_id} has no replica {unknown[0]}.")
        ending = ""
        try:
            for fault in self._manifest.faults:
                self._records.append(Record(fault.kind, fault.at_step))
                self._carry_out(fault, self._records[-1])
                self._write(None)
            while self._manifest.pattern:
                self._pause(1.0, None)
                self._status()
        except JobEnded as ended:
            ending = str(ended)
            self._print(f"{ended}.")
            self._agent.ends_within(SILENT_S_MAX)  # until then it writes how the job has ended
        except KeyboardInterrupt:
            ending = "Ctrl-C"
        for record in self._records:
            record.why_not = record.why_not or (ending if record.time_s is None else "")
        for fault in self._manifest.faults[len(self._records) :]:
            self._records.append(Record(fault.kind, fault.at_step, why_not=ending))
        end = self._end()
        self._write(end)
        self._print(f"The result is in {self._result}.")
        is_well = all(not one.why_not for one in self._records) and end["equal"] is not False
        return ExitCode.OK if is_well else 1

    def _pause(self, seconds: float, until: float | None) -> bool:
        """Wait. The status reports the job's end, because the held agent may be on a lost node."""
        left_s = seconds if until is None else min(seconds, until - clock.now())
        time.sleep(max(0.0, left_s))
        return until is None or clock.now() < until

    # ------------------------------------------------------------ one fault

    def _carry_out(self, fault: Fault, record: Record) -> None:
        while (status := self._status())["step"] < fault.at_step:
            self._pause(LOOK_S, None)
        before = last_incident(status)
        try:
            undo = self._strike(fault, record, status)
        except NotDone as why:
            record.why_not = str(why)
            self._line(f"{fault.kind} was not carried out: {why}")
            return
        struck_at = clock.now()
        record.time_s, record.step = struck_at - self._began, status["step"]
        whom = "" if record.replica is None else f" replica {record.replica}"
        self._line(f"{fault.kind}{whom} at step {status['step']}")
        try:
            self._follow(fault, record, status, undo)
        finally:
            undo()
        new = [one for one in self._status()["incidents"] if one["number"] > before]
        record.steps_lost = sum(one["cost_steps"] for one in new)
        later = "none was seen" if record.next_step_s is None else duration(record.next_step_s)
        self._line(f"the next step: {later}; steps lost: {record.steps_lost}")

    def _follow(
        self, fault: Fault, record: Record, before: Status, undo: Callable[[], None]
    ) -> None:
        """Watch until the job is at a later step, and a replica that was ended is back."""
        began, is_undone = clock.now(), not fault.lasts_s
        ends, usual_s, last = fault.kind in ENDING, _usual_step_s(before), last_incident(before)
        surely_later = before["step"] + 1 + int(PROGRESS_LATE_S / usual_s)
        former = replica_of(before, record.replica)["incarnation"] if ends else None
        passed_s, later_s = 0.0, None
        while passed_s < REPLACED_S_MAX + fault.lasts_s:
            status = self._status()
            passed_s = clock.now() - began
            if later_s is None and status["step"] > surely_later:
                later_s = passed_s
            if ends and fault.kind == "corrupt" and (at := _named_at(status, began)) is not None:
                record.found_s, ends = max(0.0, at - began), False  # and no replica is replaced
            mend = mend_of(status, record.replica, last) if ends else None
            if mend is not None and replica_of(status, record.replica)["incarnation"] == former:
                record.back_s = mend["cost_s"]
                record.next_step_s = mend["cost_s"] + usual_s
            elif record.next_step_s is None and ends:
                _note_stall(record, status, began, usual_s)
            elif record.next_step_s is None:
                record.next_step_s = later_s
            if ends and record.back_s is None and record.replica in members(status):
                is_new = replica_of(status, record.replica)["incarnation"] != former
                record.back_s = passed_s if is_new else None
            if not is_undone and passed_s >= fault.lasts_s:
                undo()
                is_undone = True
            if is_undone and record.next_step_s is not None and (record.back_s or not ends):
                return
            self._pause(LOOK_S, None)

    def _strike(self, fault: Fault, record: Record, status: Status) -> Callable[[], None]:
        """Inject a fault. Returns a function that ends it."""
        if fault.kind == "slow":
            assert self._proxy is not None, "the manifest has one"
            self._proxy.delay_s = fault.delay_s
            return self._proxy.behave
        targets = find_targets(status, None, fault.replica)
        if fault.kind == "lighthouse":
            pids = {self._job.pid, *(row.pid for one in targets for row in node_of(one)[:1])}
            _signal(lighthouse_below(pids), signal.SIGKILL, "no agent here has a lighthouse")
            return _nothing
        is_alone = len(members(status)) < 2 and len(targets) < 2
        targets = [one for one in targets if one.group_rank == fault.worker]
        if not targets or not has_state_elsewhere(status):
            raise NotDone("no such worker trains here now, or it is the job's last one")
        target = self._draws.victim(targets)
        record.replica, record.worker = target.replica_id, target.group_rank
        if fault.kind == "corrupt" and is_alone:
            raise NotDone("there is no other worker to compare its parameters with")
        if fault.kind == "corrupt":
            self._corrupt(target)
        elif fault.kind == "node":
            rows = node_of(target)
            if not rows or lighthouse_below({rows[0].pid}):
                raise NotDone("its agent keeps the job's lighthouse, or is not of this machine")
            _signal(rows, signal.SIGKILL, "it has ended")
        else:
            number = signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL
            _signal([target.row], number, "it has ended")
        return (lambda: _go_on(target)) if fault.kind == "stop" else _nothing

    def _corrupt(self, target: Target) -> None:
        """Write the file by which the worker corrupts a parameter, and wait until it has done
        so."""
        words = linux.process_environment(target.pid).decode(errors="replace").split("\0")
        found = dict(x.split("=", 1) for x in words if "=" in x)
        trap = corruption_trap(found, target.replica_id, target.group_rank)
        if trap is None:
            raise NotDone(f"start the job with {VARIABLE}=DIR in its environment")
        write_whole(trap, "")
        until = clock.now() + TRAP_S_MAX
        try:
            while trap.exists():
                if not self._pause(LOOK_S, until):
                    raise NotDone("it does not look for the file: only an unmodified script does")
        finally:
            trap.unlink(missing_ok=True)

    # ------------------------------------------------------------ the result

    def _end(self) -> dict[str, Any]:
        """How the job has ended, as far as known, and each replica's end by the pattern."""
        logs, pattern = Path(self._job.log_dir), self._manifest.pattern
        found = read_object(logs / "exit.json") or {}
        values = {} if not pattern else _values(logs, pattern)
        alike = set(values.values()) | ({self._manifest.undisturbed} - {""})
        return {
            "exit_code": found.get("exit_code"),
            "reason": found.get("reason"),
            "values": values,
            "equal": None if not values else len(alike) == 1 and None not in alike,
        }

    def _write(self, end: dict[str, Any] | None) -> None:
        document = {
            "schema": RESULT_SCHEMA,
            "launcher": f"ftrun {__version__}",
            "job_id": self._job.job_id,
            "manifest_sha256": self._manifest.digest,
            "seed": self._seed,
            "time": clock.wall().isoformat(timespec="seconds"),
            "faults": [asdict(record) for record in self._records],
            "end": end,
        }
        write_whole(self._result, json.dumps(document, indent=2) + "\n")


def _values(logs: Path, pattern: str) -> dict[str, str | None]:
    """By replica, the last match of the pattern in the newest log of its first worker."""
    found: dict[str, str | None] = {}
    for place in sorted(logs.glob("replica_*/rank_0")):
        newest = max(place.glob("*.log"), key=lambda x: x.stat().st_mtime_ns, default=None)
        if newest is not None:
            with open(newest, "rb") as file:
                file.seek(max(0, newest.stat().st_size - LOG_BYTES_MAX))
                text = file.read().decode(errors="replace")
            ends = [match[1] for match in re.finditer(pattern, text)]
            found[place.parent.name.removeprefix("replica_")] = ends[-1] if ends else None
    return found


def _note_stall(record: Record, status: Status, struck_at: float, usual_s: float) -> None:
    """Set the times by the first change of membership that was completed since the fault."""
    now = clock.now()
    for change in status["history"]:
        began = now - change["ago_s"]
        if began >= struck_at - LOOK_S and not change["under_way"] and change["kind"] != "grow":
            record.found_s = max(0.0, began - struck_at)
            record.next_step_s = change["duration_s"] + usual_s
            if record.kind != "corrupt":  # a corrupted replica takes steps until then
                record.next_step_s += record.found_s
            return


def _named_at(status: Status, struck_at: float) -> float | None:
    """When a replica was reported as different from the others, and trains on; None: none was."""
    now = clock.now()
    times = [now - x["ago_s"] for x in status["events"] if x["kind"] == "diverged"]
    return min((at for at in times if at >= struck_at - LOOK_S), default=None)


def _usual_step_s(status: Status) -> float:
    return max((one["step_s"] or 0.0 for one in status["replicas"]), default=0.0) or 1.0


def _signal(rows: list[linux.ProcessRow], number: signal.Signals, why_not: str) -> None:
    """Signal all of them, as close in time as possible."""
    sent = [fd for row in rows if (fd := linux.send_signal(row, number)) is not None]
    for fd in sent:
        os.close(fd)
    if not sent:
        raise NotDone(why_not)


def _go_on(target: Target) -> None:
    target.strike(signal.SIGCONT)


def _nothing() -> None:
    pass
