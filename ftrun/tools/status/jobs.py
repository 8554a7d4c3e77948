"""The jobs that run on this machine: one small file each, so that ``ftrun status`` finds them.

An agent writes ``$XDG_STATE_HOME/ftrun/jobs/<place>/<job-id>.json`` when it knows its lighthouse,
and removes it at its end. The file holds the lighthouse's address and no secret. A *place* is the
scope of a pid: one boot of one machine, and one pid namespace there. Machines and containers that
share a home directory see each other's files, but each judges and removes only those of its own
place. Not here: the request to the lighthouse (client.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ftrun.base.addresses import is_loopback, parse_address
from ftrun.base.errors import UserError
from ftrun.base.files import read_object, write_whole
from ftrun.base.linux import boot_id
from ftrun.protocol.auth import state_home
from ftrun.protocol.tls import TlsFiles

FILE_BYTES_MAX = 64 * 1024
JOBS_MAX = 10_000
PLACES_MAX = 1_000
PID_NAMESPACE = "/proc/self/ns/pid"
ZOMBIE_STATES = ("Z", "X")


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job and its agent on one machine.

    Attributes:
        http: ``host:port`` of its lighthouse's web server.
        pid: the agent's.
        log_dir, token_file, tls_*: absolute paths, or empty.
        started: date and time in UTC, in ISO 8601.
        birth: the agent's birth mark.
        host: the name of the agent's machine.
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
    host: str = ""

    @property
    def is_here(self) -> bool:
        """Whether the agent runs, or ran, in this process's place."""
        return self.birth.startswith(f"{_here()}/")

    @property
    def is_reachable(self) -> bool:
        """False if the lighthouse listens on the loopback interface of another machine.

        Here that address would be another server, which must not receive the job's token.
        """
        return self.is_here or not is_loopback(parse_address(self.http, "http")[0])

    @property
    def tls(self) -> TlsFiles:
        """The paths of the TLS files for requests to the lighthouse; paths are no secret."""
        return TlsFiles(
            *(Path(p) if p else None for p in (self.tls_cert, self.tls_key, self.tls_ca))
        )


def jobs_dir() -> Path:
    """The directory of the files of this place."""
    return _home() / _here()


def write_job(job: RunningJob, directory: Path | None = None) -> Path:
    """Write the file of ``job`` atomically.

    Raises:
        OSError: it cannot be written; the job can run without it.
    """
    path = _path(job.job_id, directory)
    try:
        _put(path, job)
    except FileNotFoundError:  # the last job of this place has just removed the directory
        _put(path, job)
    return path


def remove_job(job_id: str, directory: Path | None = None) -> None:
    """Remove the file of a job that has ended here; a missing file is no error."""
    path = _path(job_id, directory)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with contextlib.suppress(OSError):  # other jobs, or a draft, are there
        path.parent.rmdir()


def read_job(job_id: str, directory: Path | None = None) -> RunningJob | None:
    """The job with that id; None if its file is missing, unreadable or invalid.

    The file of this place is preferred, then the newest one of other places.
    """
    own = _read(_path(job_id, directory))
    if own is not None or directory is not None:
        return own
    return next((job for job in jobs_elsewhere() if job.job_id == job_id), None)


def running_jobs(directory: Path | None = None) -> list[RunningJob]:
    """The jobs whose agent lives here, newest first; files of killed agents are ignored."""
    return _newest_first(job for job in _all_of(directory or jobs_dir()) if agent_lives(job))


def stale_jobs(directory: Path | None = None) -> list[RunningJob]:
    """The jobs whose agent was killed here: their files are useless."""
    return [job for job in _all_of(directory or jobs_dir()) if agent_lives(job) is False]


def jobs_elsewhere() -> list[RunningJob]:
    """The jobs of other places that share this home directory, newest first.

    Whether their agents live cannot be known here. They belong to another machine, to a container,
    or to this machine before its last boot.
    """
    with contextlib.suppress(OSError):
        places = sorted(path for path in _home().iterdir() if path.name != _here())
        return _newest_first(
            job for path in places[:PLACES_MAX] for job in _all_of(path) if not job.is_here
        )
    return []


def job_file(job: RunningJob) -> Path:
    return _path(job.job_id, _home() / job.birth.partition("/")[0])


def agent_lives(job: RunningJob) -> bool | None:
    """Whether the process with the agent's pid is the agent, not a later process with that pid.

    None: the agent is of another place, so this cannot be known here.
    """
    return birth_mark(job.pid) == job.birth if job.is_here else None


def birth_mark(pid: int) -> str:
    """The place and the tick at which the process started; empty if it has ended.

    No other process ever has both the same pid and the same mark, on this machine or on another one
    that shares the home directory.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    state, start_ticks = fields[0], fields[19]
    return "" if state in ZOMBIE_STATES else f"{_here()}/{start_ticks}"


def _put(path: Path, job: RunningJob) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, json.dumps(asdict(job)) + "\n", mode=0o600)


def _here() -> str:
    """The name of the place in which this process runs."""
    try:
        namespace = os.stat(PID_NAMESPACE).st_ino
    except OSError:
        namespace = 0
    return f"{boot_id() or 'unknown'}.{namespace}"


def _home() -> Path:
    return state_home() / "jobs"


def _all_of(directory: Path) -> list[RunningJob]:
    found = [_read(path) for path in sorted(directory.glob("*.json"))[:JOBS_MAX]]
    return [job for job in found if job is not None]


def _newest_first(jobs: Iterable[RunningJob]) -> list[RunningJob]:
    return sorted(jobs, key=lambda job: (job.started, job.job_id), reverse=True)


def _path(job_id: str, directory: Path | None) -> Path:
    if job_id in ("", ".", "..") or "/" in job_id or "\0" in job_id:
        raise UserError(f"{job_id!r} is not a job id.")
    return (jobs_dir() if directory is None else directory) / f"{job_id}.json"


def _read(path: Path) -> RunningJob | None:
    """Read a file; None: a field is missing, or of another type."""
    found = read_object(path, FILE_BYTES_MAX) or {}
    values = {field.name: found.get(field.name, field.default) for field in fields(RunningJob)}
    kinds = {name: int if name == "pid" else str for name in values}
    is_sound = all(type(value) is kinds[name] for name, value in values.items())
    return RunningJob(**values) if is_sound else None
