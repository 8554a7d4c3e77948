"""``ftrun ps``: all jobs of this user on this machine, each with its lighthouse's status.

Jobs of other machines that share the home directory are listed too, with their status if they can
be reached. With ``--lighthouse``: all jobs behind a door (lighthouse/door.py).

Not here: the jobs' files (status/jobs.py), the details of one job (``ftrun status``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ftrun.base.addresses import join_address, split_address, without_scheme
from ftrun.base.errors import ExitCode, FtrunError
from ftrun.base.words import plain
from ftrun.core.lighthouse.status import Status
from ftrun.protocol.auth import load_token
from ftrun.protocol.tls import PLAINTEXT, TlsFiles
from ftrun.tools.status.client import fetch_json, fetch_status
from ftrun.tools.status.jobs import (
    RunningJob,
    job_file,
    jobs_elsewhere,
    remove_job,
    running_jobs,
    stale_jobs,
)

ANSWER_S = 3.0
ASKED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job. ``status`` None: ``why`` there is none from its lighthouse."""

    job: RunningJob
    status: Status | None
    why: str = ""


def show_jobs(out: TextIO | None = None, *, as_json: bool = False) -> int:
    """Print one line per job. Remove, and list, the files of jobs whose agents were killed."""
    jobs = [*running_jobs(), *jobs_elsewhere()]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        lines = list(pool.map(_ask, jobs))
    stale = [job.job_id for job in stale_jobs()]
    for job_id in stale:
        remove_job(job_id)
    if as_json:
        found = {"jobs": [_view(line) for line in lines], "removed": stale}
        print(json.dumps(found, indent=2), file=out)
        return ExitCode.OK
    if not any(line.job.is_here for line in lines):
        print("No job runs on this machine.", file=out)
    if lines:
        print(_table(lines), file=out)
    for job_id in stale:
        print(f"{plain(job_id)}: its agent was killed; its file is removed now.", file=out)
    return ExitCode.OK


def show_jobs_of(
    door: str,
    token: str,
    tls: TlsFiles = PLAINTEXT,
    out: TextIO | None = None,
    *,
    as_json: bool = False,
) -> int:
    """Print one line per job of a door, whose web server is at ``door``.

    Raises:
        FtrunError: it does not answer, or is no door.
    """
    houses = fetch_json(door, token, "/jobs", "jobs", tls=tls)["jobs"]
    host = split_address(without_scheme(door))[0]

    def ask(house: dict[str, Any]) -> dict[str, Any]:
        at = join_address(host, house["status_port"])
        view = {"job": house["job_id"], "lighthouse": at, "pid": house["pid"]}
        try:
            status = fetch_status(at, token, tls=tls, timeout_s=ANSWER_S)
        except FtrunError as error:
            return {**view, "error": str(error)}
        return {**view, **_figures(status)}

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        views = list(pool.map(ask, houses))
    if as_json:
        print(json.dumps({"jobs": views}, indent=2), file=out)
        return ExitCode.OK
    rows = [("JOB", "LIGHTHOUSE", "PID", "REPLICAS", "STEP", "RESTARTS")]
    for view in views:
        of = f"{view['training']} of {view['replicas']}" if "replicas" in view else "?"
        facts = (str(view.get(name, "?")) for name in ("step", "restarts"))
        rows.append((view["job"], view["lighthouse"], str(view["pid"]), of, *facts))
    print(_aligned(rows) if views else "No job is behind this door.", file=out)
    return ExitCode.OK


def _ask(job: RunningJob) -> JobLine:
    if not job.is_reachable:
        return JobLine(job, None, f"its lighthouse listens on the loopback of {job.host} only")
    try:
        token = load_token(Path(job.token_file))
        return JobLine(job, fetch_status(job.http, token, tls=job.tls, timeout_s=ANSWER_S))
    except FtrunError as error:
        return JobLine(job, None, str(error))


def _view(line: JobLine) -> dict[str, object]:
    job, status = line.job, line.status
    view: dict[str, object] = {
        "job": job.job_id,
        "host": job.host,
        "pid": job.pid,
        "started": job.started,
        "log_dir": job.log_dir,
        "lighthouse": job.http,
    }
    if status is None:
        return {**view, "error": line.why}
    return {**view, **_figures(status)}


def _figures(status: Status) -> dict[str, object]:
    return {
        "phase": status["phase"],
        "step": status["step"],
        "replicas": status["job"]["replicas"],
        "training": _training(status),
        "restarts": status["restarts"],
    }


def _training(status: Status) -> int:
    return 0 if status["quorum"] is None else len(status["quorum"]["live"])


def _table(lines: list[JobLine]) -> str:
    rows = [("JOB", "HOST", "PID", "REPLICAS", "STEP", "RESTARTS", "SINCE (UTC)", "LOGS")]
    for line in lines:
        job, status = line.job, line.status
        facts = ("?", "?", "?")
        if status is not None:
            of = f"{_training(status)} of {status['job']['replicas']}"
            facts = (of, str(status["step"]), str(status["restarts"]))
        since = job.started.partition("+")[0].replace("T", " ")
        rows.append((job.job_id, job.host, str(job.pid), *facts, since, job.log_dir))
    text = [_aligned(rows)]
    text += [_why(line) for line in lines if line.status is None]
    return "\n".join(text)


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    text = [
        "  ".join(
            plain(cell).ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
    return "\n".join(text)


def _why(line: JobLine) -> str:
    """Why a job has no figures, and what to do about the file of another machine."""
    words = f"{plain(line.job.job_id)}: {plain(line.why)}"
    if line.job.is_here:
        return words
    return (
        f"{words}. Its agent was started on {plain(line.job.host)}, or on this machine before its "
        "last boot; whether it still runs is not known here. If it does not, remove "
        f"{plain(str(job_file(line.job)))}"
    )
