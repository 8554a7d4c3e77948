"""The jobs that run on this machine: one small file each, so that ``ftrun status`` finds them.

An agent writes ``$XDG_STATE_HOME/ftrun/jobs/<job-id>.json`` when it knows its lighthouse and
removes it at its end. The file holds the lighthouse's address and no secret. Not here: the request
to the lighthouse (client.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ftrun.errors import UserError
from ftrun.protocol.auth import state_home
from ftrun.protocol.tls import TlsFiles

FILE_BYTES_MAX = 64 * 1024
JOBS_MAX = 10_000
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
ZOMBIE_STATES = ("Z", "X")


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that an agent of this machine takes part in.

    ``http``: ``host:port`` of its lighthouse's web server. ``pid``: the agent's. ``log_dir``,
    ``token_file``, ``tls_*``: absolute paths, or empty. ``started``: date and time in UTC, in
    ISO 8601. ``birth``: the agent's birth mark; a file of an older ftrun has none.
    """

    job_id: str
    http: str
    pid: int
    log_dir: str
    token_file: str
    started: str
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    birth: str = ""

    @property
    def tls(self) -> TlsFiles:
        """The paths of the TLS files for requests to the lighthouse; paths are no secret."""
        return TlsFiles(
            *(Path(p) if p else None for p in (self.tls_cert, self.tls_key, self.tls_ca))
        )


def jobs_dir() -> Path:
    """The directory of the files."""
    return state_home() / "jobs"


def write_job(job: RunningJob, directory: Path | None = None) -> Path:
    """Write the file of ``job``, which appears complete or not at all.

    Raises:
        OSError: it cannot be written; the job can go on without it.
    """
    path = _path(job.job_id, directory)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.draft")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(job)) + "\n")
    os.replace(draft, path)
    return path


def remove_job(job_id: str, directory: Path | None = None) -> None:
    """Remove the file of a job that has ended; a missing file is no error."""
    with contextlib.suppress(FileNotFoundError):
        _path(job_id, directory).unlink()


def read_job(job_id: str, directory: Path | None = None) -> RunningJob | None:
    """The job with that id; None if its file is missing, unreadable or invalid."""
    return _read(_path(job_id, directory))


def running_jobs(directory: Path | None = None) -> list[RunningJob]:
    """The jobs whose agent lives, newest first; files of killed agents are ignored."""
    place = jobs_dir() if directory is None else directory
    found = [_read(path) for path in sorted(place.glob("*.json"))[:JOBS_MAX]]
    alive = [job for job in found if job is not None and agent_lives(job)]
    return sorted(alive, key=lambda job: (job.started, job.job_id), reverse=True)


def stale_jobs(directory: Path | None = None) -> list[RunningJob]:
    """The jobs whose agent was killed: their files are of no use any more."""
    place = jobs_dir() if directory is None else directory
    found = [_read(path) for path in sorted(place.glob("*.json"))[:JOBS_MAX]]
    return [job for job in found if job is not None and job.birth and not agent_lives(job)]


def agent_lives(job: RunningJob) -> bool:
    """True if the process with the agent's pid is the agent, not a later process with that pid.

    A file without a birth mark is from an older ftrun: its agent never counts as alive, and its job
    is found only by its id.
    """
    return job.birth != "" and birth_mark(job.pid) == job.birth


def birth_mark(pid: int) -> str:
    """The machine's boot id and the tick at which the process started; empty if it has ended.

    No other process ever has both the same pid and the same mark, on this machine or on another
    that shares the home directory.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    state, start_ticks = fields[0], fields[19]
    return "" if state in ZOMBIE_STATES else f"{_boot_id()}/{start_ticks}"


def _boot_id() -> str:
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _path(job_id: str, directory: Path | None) -> Path:
    if job_id in ("", ".", "..") or "/" in job_id or "\0" in job_id:
        raise UserError(f"{job_id!r} is not a job id.")
    return (jobs_dir() if directory is None else directory) / f"{job_id}.json"


def _read(path: Path) -> RunningJob | None:
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(FILE_BYTES_MAX))
        return RunningJob(**_checked(found))
    except (OSError, ValueError):
        return None


def _checked(found: Any) -> dict[str, Any]:
    """The fields of a RunningJob, complete and of the right types."""
    if not isinstance(found, dict):
        raise ValueError("no object")
    values = {field.name: found.get(field.name, field.default) for field in fields(RunningJob)}
    for name, value in values.items():
        if type(value) is not (int if name == "pid" else str):
            raise ValueError(f"{name} is missing")
    return values
