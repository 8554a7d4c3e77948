"""Finds a job's incidents: from its lighthouse while it runs, from its logs when it has ended.

Not here: what is printed (command.py), how a running job is found (status/jobs.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftrun.base.errors import PeerError, UserError
from ftrun.base.files import read_object
from ftrun.core.failure_kinds import NOT_KNOWN
from ftrun.protocol.auth import load_token
from ftrun.protocol.tls import PLAINTEXT, TlsFiles
from ftrun.tools.status.client import fetch_json
from ftrun.tools.status.jobs import RunningJob, agent_lives, read_job, running_jobs

INCIDENTS = "incidents"
EXIT_FILE = "exit.json"
RECORDS_MAX = 1000
NAMES_MAX = 10
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Query:
    """The job to explain. ``job_id`` None: the job in ``log_dir`` with the latest news.

    ``log_dir``: the directory with the logs of all jobs, as of ``ftrun run --log-dir``. News are a
    job's end and its incidents. If the directory has no job, a job that runs on this machine is
    taken.
    """

    job_id: str | None
    log_dir: Path
    token_file: Path | None = None
    tls: TlsFiles = PLAINTEXT


@dataclass(frozen=True, slots=True)
class Found:
    """A job's incidents, oldest first. ``ending``: its exit.json; None: it has none yet.

    ``choice``: why this job was chosen, if none was named.
    """

    job_id: str
    records: list[Record]
    where: str
    ending: Record | None = None
    choice: str = ""


def find(query: Query) -> Found:
    """The incidents of the job that the query names.

    Raises:
        UserError: there is no such job, or several run and none was named.
    """
    if query.job_id is not None:
        return _named(query.job_id, query)
    own = _by_news(query.log_dir)
    if own:
        found = _named(own[0], query)
        return replace(found, choice=_choice(own, query.log_dir))
    jobs = running_jobs()
    if len(jobs) == 1:
        found = _named(jobs[0].job_id, query)
        choice = f"Job {found.job_id}: the only one that runs here; {query.log_dir} has no other."
        return replace(found, choice=choice)
    if jobs:
        names = ", ".join(job.job_id for job in jobs[:NAMES_MAX])
        raise UserError(
            f"{len(jobs)} jobs run on this machine and none was named. Name one of them: "
            f"ftrun explain JOB ({names})"
        )
    raise UserError(
        f"No job runs on this machine, and there are no logs of one in {query.log_dir}. Give the "
        "directory of a job's logs: ftrun explain --log-dir DIR [JOB]"
    )


def _named(job_id: str, query: Query) -> Found:
    """The job with this id: records from its lighthouse or, if that does not answer, from its
    logs."""
    job = read_job(job_id)  # its agent may be dead, but the lighthouse or the logs have the records
    own = query.log_dir / job_id
    if job is None:
        return _from_logs(job_id, own)
    asked = _ask(job, query)
    if asked is not None:
        return asked
    return _from_logs(job_id, Path(job.log_dir), may_go_on=agent_lives(job) is not False)


def _by_news(log_dir: Path) -> list[str]:
    """The jobs with logs in this directory, the one with the latest news first."""
    jobs = [path for path in log_dir.iterdir() if path.is_dir()] if log_dir.is_dir() else []
    return [path.name for path in sorted(jobs, key=_news_at, reverse=True)]


def _news_at(directory: Path) -> float:
    """When the job ended, or its last record was written; without either, when it began."""
    news = [directory / EXIT_FILE, *(directory / INCIDENTS).glob("[0-9]*.json")]
    times = [path.stat().st_mtime for path in news if path.exists()]
    return max(times, default=0.0) or directory.stat().st_mtime


def _choice(own: list[str], log_dir: Path) -> str:
    """One line for people: which job was chosen, and how to choose another."""
    chosen, *others = own
    if not others:
        return f"Job {chosen}: the only one of {log_dir}."
    names = ", ".join(others[:NAMES_MAX]) + (", …" if len(others) > NAMES_MAX else "")
    return (
        f"Job {chosen}: of the {len(own)} jobs of {log_dir} it has the latest news. Another one: "
        f"ftrun explain JOB ({names})."
    )


def _ask(job: RunningJob, query: Query) -> Found | None:
    """The lighthouse's own table; None: it does not answer, so use the log directory."""
    tls = query.tls or job.tls
    token_file = query.token_file or Path(job.token_file)
    if not (job.is_reachable and token_file.exists()):
        return None  # an embedded lighthouse's token ends with its agent
    try:
        tls.check_client()
        answer = fetch_json(job.http, load_token(token_file), "/incidents", "incidents", tls=tls)
    except PeerError:
        return None
    found = answer.get(INCIDENTS) if isinstance(answer, dict) else None
    records = [record for record in found or [] if isinstance(record, dict)]
    own = [record for record in records if record.get("job_id") == job.job_id]
    if records and not own:
        return None  # the lighthouse now has another job
    return Found(job.job_id, own, f"the lighthouse at {job.http}")


def _from_logs(job_id: str, directory: Path, *, may_go_on: bool = False) -> Found:
    """The records on disk. ``may_go_on``: the agent lives, so an open incident is not over yet."""
    if not directory.is_dir():
        raise UserError(
            f"There is no job {job_id} here: none runs on this machine, and {directory} does not "
            "exist. Give the directory with its logs: ftrun explain --log-dir DIR JOB"
        )
    paths = sorted((directory / INCIDENTS).glob("[0-9]*.json"))[-RECORDS_MAX:]
    found = [record for path in paths if (record := read_object(path)) is not None]
    records = [x if may_go_on else _left_open(x) for x in sorted(found, key=_number)]
    return Found(job_id, records, str(directory), read_object(directory / EXIT_FILE))


def _left_open(record: Record) -> Record:
    """Mark a record that will not be closed any more."""
    if not record.get("is_open"):
        return record
    words = "the job does not run on this machine any more, and no later record has come"
    return {**record, "is_open": False, "verdict": NOT_KNOWN, "verdict_words": words}


def _number(record: Record) -> int:
    number = record.get("number")
    return number if isinstance(number, int) else 0
