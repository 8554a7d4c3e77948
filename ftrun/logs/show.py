"""``ftrun logs``: shows the logs of a running or finished job, and follows them.

Lines of several workers are merged by the times at which ftrun read them. Not here: the choice of
the job (commands/), how a log is read (reading.py).
"""

from __future__ import annotations

import heapq
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ftrun.base.errors import UserError
from ftrun.logs.index import ERR, OUT
from ftrun.logs.layout import MARKER
from ftrun.logs.marker import is_held, read_marker
from ftrun.logs.reading import Line, LogReader, Worker, find_workers

POLL_S = 0.2
JOBS_SHOWN_MAX = 20
LINES_MAX = 1_000_000
STREAM_NAMES = {"out": OUT, "stdout": OUT, "err": ERR, "stderr": ERR}
_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


@dataclass(frozen=True, slots=True)
class LogQuery:
    """The selected lines.

    Attributes:
        target: ``REPLICA`` or ``REPLICA/RANK``; None: all workers.
        attempt: a number, ``all``, or None: the newest of each worker.
        last: the number of lines; None: all.
        since_s: seconds since 1970.
    """

    target: str | None = None
    follow: bool = False
    pattern: str | None = None
    since_s: float | None = None
    attempt: str | None = None
    last: int | None = None
    stream: str | None = None
    times: bool = False


def find_log_dir(log_dir: Path, job_id: str | None) -> Path:
    """The directory of a job's logs below ``log_dir``: of ``job_id``, or of the newest job.

    Raises:
        UserError: there is none.
    """
    if job_id is not None and (log_dir / job_id).is_dir():
        return log_dir / job_id
    found = sorted(_job_dirs(log_dir), reverse=True)
    if job_id is not None:
        names = [path.name for _, path in found[:JOBS_SHOWN_MAX]]
        there = f"There are logs of {', '.join(names)}." if names else "There are no logs."
        raise UserError(
            f"No job {job_id} runs on this machine, and it has no logs in {log_dir}. {there} "
            "For another place: --log-dir DIR"
        )
    if not found:
        raise UserError(
            f"No job runs on this machine, and {log_dir} has no logs. For another place: "
            "--log-dir DIR; for a job on another machine, call ftrun logs there."
        )
    return found[0][1]


def show_logs(directory: Path, query: LogQuery) -> int:
    """Print the lines; if they are followed, until the job has ended. Returns the exit code.

    Raises:
        UserError: the query names logs that do not exist, or is wrong.
    """
    try:
        _Show(directory, query).run()
    except BrokenPipeError:  # the reader has closed the pipe, as in ``ftrun logs | head``
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
    return 0


class _Show:
    def __init__(self, directory: Path, query: LogQuery) -> None:
        self._directory = directory
        self._query = query
        self._out = sys.stdout.buffer
        self._is_tty = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._pattern = _compiled(query.pattern)
        self._stream = _stream(query.stream)
        self._attempt = _attempt(query.attempt)
        self._replica, self._rank = _target(query.target)
        self._readers: dict[tuple[Worker, int], LogReader] = {}
        self._names_workers = True

    def run(self) -> None:
        """Print the existing lines, then new ones if requested."""
        lives = is_held(self._directory)  # first: a job that ends later is seen next time
        found = self._wanted(find_workers(self._directory))
        if not found and not (self._query.follow and lives):
            raise UserError(self._nothing())
        is_one = len(found) == 1 and (self._rank is not None or not self._query.follow)
        self._names_workers = not is_one
        self._add(found, is_first=True)
        self._print(self._limited(heapq.merge(*self._all(ends=not lives), key=_when)))
        if self._query.follow:
            self._follow(lives)

    def _follow(self, lives: bool) -> None:
        """Look for new lines until the job has ended, and then once more."""
        pause = threading.Event()
        while lives:
            pause.wait(POLL_S)
            lives = is_held(self._directory)
            self._add(self._wanted(find_workers(self._directory)), is_first=False)
            lines = [line for source in self._all(ends=not lives) for line in source]
            self._print(self._chosen(sorted(lines, key=_when)))
        self._say(f"The job has ended. Its logs are in {self._directory}")

    def _wanted(self, found: dict[Worker, list[int]]) -> dict[Worker, list[int]]:
        wanted = {
            worker: attempts
            for worker, attempts in found.items()
            if self._replica in (None, worker.replica_id)
            and self._rank in (None, worker.group_rank)
        }
        if isinstance(self._attempt, int):
            of = {
                worker: [self._attempt] for worker, all_ in wanted.items() if self._attempt in all_
            }
            return of
        return wanted

    def _add(self, found: dict[Worker, list[int]], *, is_first: bool) -> None:
        """Open readers of new attempts."""
        for worker, attempts in found.items():
            newest_only = is_first and self._attempt is None
            for attempt in attempts[-1:] if newest_only else attempts:
                known = [number for who, number in self._readers if who == worker]
                if (worker, attempt) in self._readers or attempt < max(known, default=-1):
                    continue
                reader = LogReader(self._directory, worker, attempt)
                self._readers[worker, attempt] = reader
                if not is_first:
                    self._say(
                        f"Replica {worker.replica_id}, rank {worker.group_rank}: start {attempt}."
                    )
                if is_first:
                    self._skip(reader)

    def _skip(self, reader: LogReader) -> None:
        query = self._query
        if query.since_s is not None:
            reader.skip_before(query.since_s)
            if not reader.has_index:
                self._say(f"{reader.path} has no index, so its lines have no times of their own.")
        elif query.last is not None and self._pattern is None and self._stream is None:
            reader.skip_to_last(query.last)

    def _all(self, *, ends: bool) -> Iterator[Iterable[Line]]:
        """For each worker the available lines, one start after another."""
        for worker in dict.fromkeys(worker for worker, _ in self._readers):
            yield self._of_worker(worker, ends=ends)

    def _of_worker(self, worker: Worker, *, ends: bool) -> Iterator[Line]:
        for (who, attempt), reader in list(self._readers.items()):
            if who != worker:
                continue
            yield from reader.lines()
            if ends or (who, attempt + 1) in self._readers:
                yield from reader.rest()
            if ends:
                reader.close()

    def _limited(self, lines: Iterable[Line]) -> Iterable[Line]:
        chosen = self._chosen(lines)
        if self._query.last is None:
            return chosen
        return deque(chosen, maxlen=self._query.last)

    def _chosen(self, lines: Iterable[Line]) -> Iterator[Line]:
        since_s = self._query.since_s
        for line in lines:
            if since_s is not None and line.time_s < since_s:
                continue
            if self._stream is not None and line.stream != self._stream:
                continue
            if self._pattern is None or self._pattern.search(line.text):
                yield line

    def _print(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._out.write(self._start(line) + line.text + b"\n")
        self._out.flush()

    def _start(self, line: Line) -> bytes:
        start = ""
        if self._query.times:
            moment = datetime.fromtimestamp(line.time_s, timezone.utc)
            start = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z") + " "
        if self._names_workers:
            label = f"[{line.worker}]"
            if self._is_tty:
                colour = _COLOURS[sum(line.worker.replica_id.encode()) % len(_COLOURS)]
                label = f"\x1b[{colour}m{label}\x1b[0m"
            start += f"{label} "
        return start.encode()

    def _say(self, text: str) -> None:
        self._out.flush()
        print(f"ftrun: {text}", file=sys.stderr, flush=True)

    def _nothing(self) -> str:
        found = find_workers(self._directory)
        if not found:
            return f"{self._directory} has no logs of workers: none has been started yet."
        shown = ", ".join(str(worker) for worker in list(found)[:JOBS_SHOWN_MAX])
        more = " …" if len(found) > JOBS_SHOWN_MAX else ""
        what = self._query.target or "its workers"
        if isinstance(self._attempt, int):
            numbers = sorted({number for numbers in found.values() for number in numbers})
            what += f" from start {self._attempt} (there are {', '.join(map(str, numbers[:50]))})"
        return f"{self._directory} has no logs of {what}. It has those of {shown}{more}."


def _when(line: Line) -> float:
    return line.time_s


def _job_dirs(log_dir: Path) -> Iterator[tuple[float, Path]]:
    """Directories of jobs below ``log_dir`` with their start times, as far as known."""
    if not log_dir.is_dir():
        return
    for entry in log_dir.iterdir():
        if not entry.is_dir() or not (read_marker(entry) or find_workers(entry)):
            continue
        marker = entry / MARKER
        yield (marker if marker.exists() else entry).stat().st_mtime, entry


def _compiled(pattern: str | None) -> re.Pattern[bytes] | None:
    if pattern is None:
        return None
    try:
        return re.compile(os.fsencode(pattern))
    except re.error as error:
        raise UserError(f"--grep {pattern!r} is no regular expression: {error}.") from None


def _stream(name: str | None) -> str | None:
    if name is None:
        return None
    if name not in STREAM_NAMES:
        raise UserError(f"--stream {name!r}: give out or err.")
    return STREAM_NAMES[name]


def _attempt(text: str | None) -> int | str | None:
    if text is None or text == "all":
        return text
    if not text.isdecimal():
        raise UserError(f"--attempt {text!r}: give a number from 0 on, or all.")
    return int(text)


def _target(target: str | None) -> tuple[str | None, int | None]:
    """Parse ``0``, ``0/1`` or, as in the prefix on the terminal, ``0.1``."""
    if target is None:
        return None, None
    found = re.fullmatch(r"\[?(?P<replica>[^/.\]]+)(?:[/.](?P<rank>\d+))?\]?", target)
    if found is None:
        raise UserError(f"{target!r}: give REPLICA or REPLICA/RANK, for example 0 or 0/1.")
    return found["replica"], None if found["rank"] is None else int(found["rank"])
