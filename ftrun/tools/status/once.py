"""``ftrun status`` and ``--json``: find the lighthouse, fetch its status once, show it.

Not here: the options (commands/).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ftrun.base.errors import ExitCode, UserError
from ftrun.base.words import plain
from ftrun.core.lighthouse.status import Status
from ftrun.protocol.auth import default_token_path, load_token, take_token
from ftrun.protocol.tls import PLAINTEXT, TlsFiles
from ftrun.tools.status.client import fetch_status
from ftrun.tools.status.jobs import RunningJob, jobs_dir, jobs_elsewhere, read_job, running_jobs

JOBS_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class StatusQuery:
    """Names a job by its lighthouse's HTTP address, by its id, or as the only one here."""

    lighthouse: str | None = None
    job_id: str | None = None
    token_file: Path | None = None
    tls: TlsFiles = PLAINTEXT


def show_json(query: StatusQuery, out: TextIO | None = None) -> int:
    """Print the status as one JSON document. Returns the exit code.

    Raises:
        UserError: there is no such job, or the token is another job's.
        LighthouseUnreachable: no lighthouse answers.
    """
    print(json.dumps(find_status(query), indent=2), file=out)
    return ExitCode.OK


def find_status(query: StatusQuery) -> Status:
    """Fetch the status of the job that the query names. Raises as ``show_json``."""
    address, token, tls = find_lighthouse(query)
    return fetch_status(address, token, tls=tls)


def find_lighthouse(query: StatusQuery, command: str = "ftrun status") -> tuple[str, str, TlsFiles]:
    """The address of the lighthouse that the query names, the token, and the TLS files.

    Raises:
        UserError: there is no such job or token, or ``command`` got no id and there are several.
    """
    token = ""
    if query.lighthouse is not None:
        token = take_token(os.environ) if query.token_file is None else ""
        address, token_file, tls = query.lighthouse, default_token_path(), query.tls
    else:
        job = find_job(query.job_id, command)
        address, token_file, tls = job.http, Path(job.token_file), query.tls or job.tls
    token = token or load_token(query.token_file or token_file)
    tls.check_client()
    return address, token, tls


def find_job(job_id: str | None, command: str = "ftrun status") -> RunningJob:
    """The job of that id, preferably of this machine, or the only one that runs here.

    Raises:
        UserError: there is no such job, it is reachable only on its own machine, or ``command`` got
            no id and there are several.
    """
    if job_id is not None:
        job = read_job(job_id)
        if job is None:
            raise UserError(
                f"No job {job_id} runs on this machine (looked in {jobs_dir()}). For one that "
                "runs elsewhere, give its lighthouse's HTTP address: --lighthouse HOST:PORT"
            )
        if not job.is_reachable:
            raise UserError(
                f"Job {job_id} was started on {job.host}, and its lighthouse can be reached from "
                f"there only. Run `{command} {job_id}` on {job.host}."
            )
        return job
    found = running_jobs()
    if not found:
        others = ", ".join(
            f"{job.job_id} on {job.host}" for job in jobs_elsewhere()[:JOBS_SHOWN_MAX]
        )
        raise UserError(
            f"No job runs on this machine (looked in {jobs_dir()}). For one that runs elsewhere, "
            "give its lighthouse's HTTP address: --lighthouse HOST:PORT"
            + (f", or its id, if it is one of these: {others}" if others else "")
        )
    if len(found) > 1:
        raise UserError(_which_one(found, command))
    return found[0]


def find_log_place(job_id: str | None) -> Path | None:
    """Where the logs of a job that runs here are; None: no such job runs.

    Raises:
        UserError: no job was named, and several run.
    """
    if job_id is not None:
        job = read_job(job_id)
        return Path(job.log_dir) if job is not None and job.log_dir else None
    found = running_jobs()
    if len(found) > 1:
        raise UserError(_which_one(found, "ftrun logs --job"))
    return Path(found[0].log_dir) if found else None


def _which_one(found: list[RunningJob], command: str) -> str:
    """A list of the jobs with their details, so that the user can name the right one."""
    lines = [
        f"{len(found)} jobs run on this machine and none was named. Nothing was done. "
        f"Name one of them: {command} JOB"
    ]
    for job in found[:JOBS_SHOWN_MAX]:
        facts = f"  {job.job_id}  started {job.started}, pid {job.pid}, logs in {job.log_dir}"
        lines.append(plain(facts))
    if len(found) > JOBS_SHOWN_MAX:
        lines.append(f"  … and {len(found) - JOBS_SHOWN_MAX} older ones")
    return "\n".join(lines)
