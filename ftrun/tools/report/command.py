"""``ftrun report``: finds the job's events, writes the file.

Not here: the options (commands/looking.py), the page (page.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from ftrun.base import clock
from ftrun.base.errors import ExitCode, UserError
from ftrun.base.files import write_whole
from ftrun.tools.report.page import render
from ftrun.tools.report.story import read_story
from ftrun.tools.status.jobs import read_job, running_jobs

EVENTS = ("events.old.jsonl", "events.jsonl")
NAMES_MAX = 10


def report(job_id: str | None, log_dir: Path, output: Path) -> int:
    """Write the report of a job that runs here, or whose logs are in ``log_dir``.

    Raises:
        UserError: there is no such job, it has no events, or the file cannot be written.
    """
    directory, others = _find(job_id, log_dir)
    story = read_story(_lines(directory), directory.name)
    if story is None:
        raise UserError(
            f"{directory} has no events of job {directory.name}. A job of several nodes has them "
            "where its lighthouse keeps its state: ftrun report --log-dir has to name a directory "
            f"in which {directory.name}/{EVENTS[1]} is"
        )
    page = render(story, clock.wall(), version("ftrun"))
    try:
        write_whole(output, page)
    except OSError as error:
        raise UserError(f"-o {output}: {error.strerror}. Nothing was written") from None
    words = f"{output}: job {directory.name}, {len(page.encode()) // 1024} KiB, one file."
    print(words if not others else f"{words} Other jobs: {', '.join(others[:NAMES_MAX])}.")
    return ExitCode.OK


def _find(job_id: str | None, log_dir: Path) -> tuple[Path, list[str]]:
    """The job's log directory, and the names of other jobs if none was named."""
    if job_id is not None:
        job = read_job(job_id)
        directory = Path(job.log_dir) if job is not None else log_dir / job_id
        if not directory.is_dir():
            raise UserError(
                f"There is no job {job_id} here: none runs on this machine, and {directory} does "
                "not exist. Give the directory with its logs: ftrun report --log-dir DIR JOB"
            )
        return directory, []
    own = sorted(_with_events(log_dir), key=_news_at, reverse=True)
    if not own:
        own = [Path(job.log_dir) for job in running_jobs()]
    if not own:
        raise UserError(
            f"No job runs on this machine, and none in {log_dir} has events. Give the directory of "
            "a job's logs: ftrun report --log-dir DIR [JOB]"
        )
    return own[0], [directory.name for directory in own[1:]]


def _with_events(log_dir: Path) -> Iterator[Path]:
    paths = log_dir.iterdir() if log_dir.is_dir() else ()
    return (path for path in paths if (path / EVENTS[1]).is_file())


def _news_at(directory: Path) -> float:
    return (directory / EVENTS[1]).stat().st_mtime


def _lines(directory: Path) -> Iterator[str]:
    for name in EVENTS:
        path = directory / name
        if path.is_file():
            with path.open(encoding="utf-8", errors="replace") as file:
                yield from file
