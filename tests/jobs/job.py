"""A job that really runs: ftrun as a child process, its processes, its logs, and its end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from ftrun.base import clock
from tests.jobs.family import GONE_S, Family
from tests.jobs.forks import ROOT, run
from tests.jobs.process import LOOK_S, START_S, Process

ASK_S = 400.0
HOUSE, TOKEN = "lighthouse", "token"
FTRUN = (sys.executable, "-m", "ftrun")
LIGHTHOUSE = "ftrun lighthouse"
THIS_TREE = {"PYTHONPATH": str(ROOT)}


class Command(Process):
    """A command and all processes that it starts: none may be left at the end of the ``with``.

    Args:
        directory: for its files; also its working directory.
        words: the command.
        environment: variables beside those of the tests.
        family: the family of its processes; by default a new one.
        session, fresh: as for ``Process``; in a directory with modules it is always fresh.
    """

    def __init__(
        self,
        directory: Path,
        words: tuple[str, ...],
        environment: dict[str, str] | None = None,
        *,
        family: Family | None = None,
        session: bool = False,
        fresh: bool = False,
    ) -> None:
        self.directory = directory
        self.family = family or Family()
        super().__init__(
            list(words),
            directory,
            {
                **os.environ,
                "XDG_STATE_HOME": str(directory / "state"),
                "TMPDIR": str(directory),
                **(environment or {}),
                **self.family.environment,
            },
            session=session,
            fresh=fresh or _has_modules(directory, words),
        )

    def close(self) -> None:
        """Kill the command and all processes that are left of it, and close its output."""
        self.kill()
        self.family.kill_all()
        super().close()

    def pids(self) -> list[int]:
        """The pids of all running processes of the job."""
        return [row.pid for row in self.family.rows()]

    def worker(self, replica_id: int, group_rank: int = 0) -> int:
        """The pid of a running worker, by its title."""
        return self.titled(f"ftrun worker {replica_id}.{group_rank}: ")

    def spawner(self) -> int:
        """The spawner's pid."""
        return self.titled("ftrun spawner")

    def stores(self) -> int:
        """The store process's pid."""
        return self.titled("ftrun stores")

    def lighthouse(self) -> int:
        """The embedded lighthouse's pid."""
        return self.titled(LIGHTHOUSE)

    def titled(self, words: str, but: int = 0) -> int:
        """The pid of the process whose title begins with ``words``, except ``but``."""
        for pid, title in self.family.titles().items():
            if pid != but and title.startswith(words):  # killed, and perhaps not dead yet
                return pid
        raise AssertionError(f"no process {words!r} in:\n{self.output}")

    def expect_process(self, words: str, timeout_s: float = START_S, but: int = 0) -> int:
        """Wait until a process with such a title runs; returns its pid."""
        deadline = clock.now() + timeout_s
        while True:
            try:
                return self.titled(words, but)
            except AssertionError:
                if clock.now() >= deadline:
                    raise
                self.prints_more(len(self.output), LOOK_S)

    def left(self, within_s: float = GONE_S) -> list[int]:
        """The pids of the job that are still there after ``within_s``."""
        return self.family.left(within_s)


class Lighthouse(Command):
    """``ftrun lighthouse OPTIONS``, ready. ``program``: an ftrun that is not this one.

    ``stands_by``: another lighthouse leads, so this one has only an address for agents.

    ``address``, ``http``: where agents and the status reach it. ``found_by``: the options with
    these.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        bind: str = "127.0.0.1:0",
        within: tuple[str, ...] = (),
        program: tuple[str, ...] = FTRUN,
        environment: dict[str, str] | None = None,
        family: Family | None = None,
        session: bool = False,
        fresh: bool = False,
        state: str | None = None,
        stands_by: bool = False,
    ) -> None:
        where = state or str(directory / HOUSE)
        files = ("--token-file", str(directory / TOKEN), "--state", where)
        words = (*within, *program, "lighthouse", "--bind", bind, *files, *options)
        more = {**THIS_TREE, **(environment or {})}
        super().__init__(directory, words, more, family=family, session=session, fresh=fresh)
        try:
            self.expect("This one stands by" if stands_by else r"lighthouse ready: .*")
        except AssertionError:
            self.close()
            raise
        if stands_by:
            self.address = bind
            return
        said = re.search(r"agents (\S+), status https?://([^/\s]+)", self.output)
        assert said is not None, self.output
        self.address, self.http = said[1], said[2]
        self.found_by = found_at(directory, self.address)


class Job(Command):
    """``ftrun OPTIONS SCRIPT``.

    Args:
        directory: of the job, with its logs and its state.
        script: a file, or the text of one.
        options: ftrun's options.
        args: the script's arguments.
        within: a prefix command that runs the rest of the line with fewer resources.
        program: an installed ftrun; by default the one of the tests' environment.
        environment, family, session, fresh: as for ``Command``.
        logs: the name of its log directory; agents of one job each have their own.
    """

    def __init__(
        self,
        directory: Path,
        script: str | Path,
        *options: str,
        args: tuple[str, ...] = (),
        within: tuple[str, ...] = (),
        program: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        family: Family | None = None,
        session: bool = False,
        fresh: bool = False,
        logs: str = "logs",
    ) -> None:
        self.logs = directory / logs
        self.script = script if isinstance(script, Path) else directory / "script.py"
        if isinstance(script, str):
            self.script.write_text(script)
        own = ("--log-dir", str(self.logs), "--job-id", "job", "--prefix")
        words = (*within, *(program or FTRUN), *own, *options, str(self.script), *args)
        more = {**({} if program else THIS_TREE), **(environment or {})}
        super().__init__(directory, words, more, family=family, session=session, fresh=fresh)

    def log(self, replica_id: int, restart: int, group_rank: int = 0) -> str:
        """One worker's log file."""
        path = self.logs / "job" / f"replica_{replica_id}" / f"rank_{group_rank}"
        return (path / f"{restart}.log").read_text()


def _has_modules(directory: Path, words: tuple[str, ...]) -> bool:
    """Whether the working directory has files that an interpreter may import at its start."""
    return any(
        (path.suffix in (".py", ".pth") and str(path) not in words)
        or (path / "__init__.py").exists()
        for path in directory.iterdir()
    )


def found_at(directory: Path, address: str) -> tuple[str, ...]:
    """The options with which an agent finds this directory's lighthouse."""
    return ("--lighthouse", address, "--token-file", str(directory / TOKEN))


def ask(directory: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run another ftrun command to its end, for the jobs of this directory."""
    state = {"XDG_STATE_HOME": str(directory / "state"), "COLUMNS": "110"}
    return run(
        [*FTRUN, *words],
        env={**os.environ, **THIS_TREE, **state, **environment},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ASK_S,
    )


def was_late(output: str) -> bool:
    """Whether other replicas have continued before a worker was replaced in its own."""
    late = "no answer within 5 s|trained on before its replacement was ready"
    return re.search(late, output) is not None
