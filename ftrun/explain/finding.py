"""Finds a job's incidents: a running job's with its lighthouse, a finished one's in its logs.

Not here: what is printed (command.py), finding a running job by itself (status/jobs.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftrun.errors import PeerError, UserError
from ftrun.protocol.auth import load_token
from ftrun.protocol.tls import PLAINTEXT, TlsFiles
from ftrun.status.client import fetch_json
from ftrun.status.jobs import RunningJob, read_job, running_jobs

INCIDENTS = "incidents"
EXIT_FILE = "exit.json"
RECORDS_MAX = 1000
RECORD_BYTES_MAX = 1024 * 1024
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Query:
    """``job_id`` None: the job that runs here or, if none does, the one that ended last.

    ``log_dir``: the directory with the logs of all jobs, as of ``ftrun run --log-dir``.
    """

    job_id: str | None
    log_dir: Path
    token_file: Path | None = None
    tls: TlsFiles = PLAINTEXT


@dataclass(frozen=True, slots=True)
class Found:
    """A job's incidents, oldest first. ``ending``: its exit.json; None: it has none yet."""

    job_id: str
    records: list[Record]
    where: str
    ending: Record | None = None


def find(query: Query) -> Found:
    """The incidents of the job that the query names.

    Raises:
        UserError: there is no such job, or several run and none was named.
    """
    job = _running(query.job_id)
    if job is not None:
        asked = _ask(job, query)
        if asked is not None:
            return asked
        return _from_logs(job.job_id, Path(job.log_dir))
    if query.job_id is not None:
        return _from_logs(query.job_id, query.log_dir / query.job_id)
    newest = _newest(query.log_dir)
    return _from_logs(newest.name, newest)


def _running(job_id: str | None) -> RunningJob | None:
    if job_id is not None:
        return read_job(job_id)  # its agent may be dead, but the lighthouse or the logs know
    found = running_jobs()
    if len(found) > 1:
        names = ", ".join(job.job_id for job in found[:20])
        raise UserError(
            f"{len(found)} jobs run on this machine and none was named. Name one of them: "
            f"ftrun explain JOB ({names})"
        )
    return found[0] if found else None


def _ask(job: RunningJob, query: Query) -> Found | None:
    """The lighthouse's own table; None: it does not answer, and the log directory has to do."""
    tls = query.tls or job.tls
    token_file = query.token_file or Path(job.token_file)
    if not token_file.exists():
        return None  # an embedded lighthouse's token ends with its agent
    try:
        tls.check_client()
        answer = fetch_json(job.http, load_token(token_file), "/incidents", "incidents", tls=tls)
    except PeerError:
        return None
    found = answer.get(INCIDENTS) if isinstance(answer, dict) else None
    records = [record for record in found or [] if isinstance(record, dict)]
    return Found(job.job_id, records, f"the lighthouse at {job.http}")


def _from_logs(job_id: str, directory: Path) -> Found:
    if not directory.is_dir():
        raise UserError(
            f"There is no job {job_id} here: none runs on this machine, and {directory} does not "
            "exist. Give the directory with its logs: ftrun explain --log-dir DIR JOB"
        )
    paths = sorted((directory / INCIDENTS).glob("[0-9]*.json"))[-RECORDS_MAX:]
    found = [record for path in paths if (record := _read(path)) is not None]
    records = sorted(found, key=_number)
    return Found(job_id, records, str(directory), _read(directory / EXIT_FILE))


def _number(record: Record) -> int:
    number = record.get("number")
    return number if isinstance(number, int) else 0


def _newest(log_dir: Path) -> Path:
    """The job's directory that was written to last."""
    jobs = [path for path in log_dir.iterdir() if path.is_dir()] if log_dir.is_dir() else []
    if not jobs:
        raise UserError(
            f"No job runs on this machine, and there are no logs of one in {log_dir}. Give the "
            "directory of a job's logs: ftrun explain --log-dir DIR [JOB]"
        )
    return max(jobs, key=_written_at)


def _written_at(directory: Path) -> float:
    """When the job ended or, without an end, when its directory was last changed."""
    ending = directory / EXIT_FILE
    return (ending if ending.exists() else directory).stat().st_mtime


def _read(path: Path) -> Record | None:
    """The JSON object in a file; None if there is no readable one."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(RECORD_BYTES_MAX))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
