"""``ftrun ps``: all jobs of this user on this machine, each with its lighthouse's status.

Not here: the jobs' files (status/jobs.py), the details of one job (``ftrun status``).
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ftrun.core.lighthouse.status import Status
from ftrun.errors import ExitCode, FtrunError
from ftrun.protocol.auth import load_token
from ftrun.status.client import fetch_status
from ftrun.status.jobs import RunningJob, remove_job, running_jobs, stale_jobs
from ftrun.status.words import plain

ANSWER_S = 3.0
ASKED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job; ``status`` None: ``why`` its lighthouse could not be asked."""

    job: RunningJob
    status: Status | None
    why: str = ""


def show_jobs(out: TextIO | None = None, *, as_json: bool = False) -> int:
    """Print one line per job; remove, and name, the files of jobs whose agents were killed."""
    jobs = running_jobs()
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        lines = list(pool.map(_ask, jobs))
    stale = [job.job_id for job in stale_jobs()]
    for job_id in stale:
        remove_job(job_id)
    if as_json:
        found = {"jobs": [_view(line) for line in lines], "removed": stale}
        print(json.dumps(found, indent=2), file=out)
        return ExitCode.OK
    print(_table(lines) if lines else "No job runs on this machine.", file=out)
    for job_id in stale:
        print(f"{plain(job_id)}: its agent was killed; its file is removed now.", file=out)
    return ExitCode.OK


def _ask(job: RunningJob) -> JobLine:
    try:
        token = load_token(Path(job.token_file))
        return JobLine(job, fetch_status(job.http, token, tls=job.tls, timeout_s=ANSWER_S))
    except FtrunError as error:
        return JobLine(job, None, str(error))


def _view(line: JobLine) -> dict[str, object]:
    job, status = line.job, line.status
    view: dict[str, object] = {
        "job": job.job_id,
        "pid": job.pid,
        "started": job.started,
        "log_dir": job.log_dir,
        "lighthouse": job.http,
    }
    if status is None:
        return {**view, "error": line.why}
    return {
        **view,
        "phase": status["phase"],
        "step": status["step"],
        "replicas": status["job"]["replicas"],
        "training": _training(status),
        "restarts": status["restarts"],
    }


def _training(status: Status) -> int:
    return 0 if status["quorum"] is None else len(status["quorum"]["live"])


def _table(lines: list[JobLine]) -> str:
    rows = [("JOB", "PID", "REPLICAS", "STEP", "RESTARTS", "SINCE (UTC)", "LOGS")]
    for line in lines:
        job, status = line.job, line.status
        facts = ("?", "?", "?")
        if status is not None:
            of = f"{_training(status)} of {status['job']['replicas']}"
            facts = (of, str(status["step"]), str(status["restarts"]))
        since = job.started.partition("+")[0].replace("T", " ")
        rows.append((job.job_id, str(job.pid), *facts, since, job.log_dir))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    text = [
        "  ".join(
            plain(cell).ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
    text += [f"{plain(x.job.job_id)}: {plain(x.why)}" for x in lines if x.status is None]
    return "\n".join(text)
