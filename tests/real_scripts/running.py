"""Runs a row's script under torchrun and under ftrun, and kills workers where events say so.

Not here: what the outcome is called (verdicts.py).
"""

from __future__ import annotations

import compileall
import contextlib
import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftrun.base.errors import PeerError, UserError
from ftrun.tools.status.once import StatusQuery, find_status
from tests.jobs import free_port
from tests.real_scripts import ends, making
from tests.real_scripts.rows import Row, change_files
from tests.real_scripts.verdicts import BEGINS_AGAIN, LABEL, Run, check_verdict, matches

LOOK_S, STOP_S, ENDS_S, OUTPUT_MAX = 0.25, 30.0, 120.0, 20_000_000
PACE_FILE = Path(__file__).with_name("pace.py")
NO_WAIT, AWAY_WAITS_S, STEADY_WAITS_S, CHECK_WAITS_S = 0.0, 6.0, 0.05, 0.7
"""After each step: undisturbed; from a kill until the replica is back; else; in a check."""
NEAR_STEPS, NEAR_WAITS_S = 8, 0.5
"""So near to a kill at a step each step waits so long, else the kill comes some steps later: one
that is meant for the middle of an epoch would strike at its end."""


@dataclass
class Place:
    """Where a row is run: the environment's programs, the cache, and the deadline of each run."""

    programs: Path
    cache: Path
    timeout_s: float

    def prepare(self, row: Row, source: Path, label: str) -> Path:
        """A fresh directory with the changed script and its data.

        Raises:
            ValueError: a change finds nothing.
            ChildFailed: a generator fails.
        """
        runs = self.cache / "runs" / row.name
        ready, top = runs / f"ready-{row.mark}", runs / label
        if not ready.exists():
            shutil.rmtree(runs, ignore_errors=True)
            draft = runs / "draft"
            shutil.copytree(source, draft, symlinks=True)
            change_files(row, draft)
            for line in row.make:
                in_child(making.main, shlex.split(line), draft / row.directory, {})
            compileall.compile_dir(draft, quiet=2)  # else each copy is compiled again
            draft.rename(ready)
        shutil.rmtree(top, ignore_errors=True)
        shutil.copytree(ready, top, symlinks=True)
        return top / row.directory

    def environment(self, row: Row) -> dict[str, str]:
        """Of the script: no GPU, no network, one thread, and caches of its own."""
        caches = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "MPLCONFIGDIR", "YOLO_CONFIG_DIR")
        settled = {
            **{name: str(self.cache / "home" / name.lower()) for name in caches},
            **{"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            **{"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "disabled"},
            **{"TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0", "NO_COLOR": "1"},
            **{"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore", "MPLBACKEND": "Agg"},
            "PATH": f"{self.programs}:{os.environ['PATH']}",
        }
        own = dict(line.split("=", 1) for line in row.environment)
        rest = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        return {**rest, **settled, **own}

    def torchrun(self, row: Row, directory: Path) -> Run:
        """Run it as it is meant."""
        words = ["torchrun", "--nproc-per-node", str(row.replicas * row.workers)]
        words += ["--master-port", str(free_port())]
        # Only so each line of a rank's output stays whole.
        words += ["--tee", "3", "--log-dir", str(self._beside(row, directory, "torchrun"))]
        return self._run(row, directory, words, Waits(self._beside(row, directory, "waits")))

    def ftrun(self, row: Row, directory: Path, kills: Sequence[str] = ()) -> Run:
        """Run it in replicas, and kill them as ``kills`` say."""
        job = f"real-{os.getpid()}-{time.monotonic_ns() % 10**9}"
        logs = self._beside(row, directory, "logs") / job
        words = ["ftrun", *form(row), "--job-id", job, "--log-dir", str(logs)]
        waits = Waits(self._beside(row, directory, "waits"), STEADY_WAITS_S if kills else NO_WAIT)
        notes = self._beside(row, directory, "notes")
        shutil.rmtree(notes, ignore_errors=True)
        notes.mkdir()
        victims = [str(number) for number in range(row.replicas)]
        if row.is_mended:
            victims = [f"{x}.{rank}" for rank in range(row.workers) for x in victims]
        killer = Killer(job, kills, victims, waits, notes) if kills else None
        run = self._run(row, directory, [*words, "--prefix"], waits, killer)
        for path in logs.glob("*/events.jsonl"):
            _read_events(path, run)
        run.unequal += unlike_replicas(notes, row.workers)
        return run

    def check(self, row: Row, directory: Path) -> str:
        """The verdict of ``ftrun check``."""
        words = ["ftrun", "check", *form(row), "--device", "cpu"]
        words += ["--steps", str(row.check_steps), "--timeout", str(int(self.timeout_s))]
        waits = Waits(self._beside(row, directory, "waits"), CHECK_WAITS_S)
        run = self._run(row, directory, words, waits)
        return "hangs" if run.is_late else check_verdict(run.exit_code, run.output)

    def _run(
        self,
        row: Row,
        directory: Path,
        words: Sequence[str],
        waits: Waits,
        killer: Killer | None = None,
    ) -> Run:
        began = time.monotonic()
        words = [str(self.programs / words[0]), *words[1:]]
        command = [*words, *shlex.split(row.script), *shlex.split(row.args)]
        environment = {**self.environment(row), "STEP_WAITS": str(waits.path)}
        environment |= {
            "STEP_PACE": str(PACE_FILE),
            "STEP_NOTES": str(killer.notes) if killer else "",
        }
        job = Watched(command, directory, environment, self.timeout_s + STOP_S)
        if killer is not None:
            killer.watch(job)
        run = Run(job.wait(), job.is_late, job.text(), seconds=time.monotonic() - began)
        if killer is not None:
            run.killed, run.joined = killer.killed, killer.joined
            if killer.joined != killer.killed and says_back(run.output, killer.killed[-1]):
                run.joined = list(killer.killed)
        self._beside(row, directory, "output").write_text(run.output)
        run.end = self._end(row, directory, run.output)
        return run

    def _beside(self, row: Row, directory: Path, what: str) -> Path:
        """A place of this run that is not in the script's directory."""
        top = self.cache / "runs" / row.name
        return top / f"{directory.relative_to(top).parts[0]}-{what}"

    def _end(self, row: Row, directory: Path, output: str) -> dict[str, Any]:
        try:
            found = in_child(ends.end_of, list(row.files), directory, self.environment(row))
        except ChildFailed as error:
            return {"output": [[str(error)]]}
        top = self._beside(row, directory, "").parent
        label = directory.relative_to(top).parts[0]
        found = json.loads(json.dumps(found).replace(str(top / label), "TOP"))
        if row.ignore:
            found = {
                re.sub(row.ignore, "", file): {
                    re.sub(row.ignore, "", key): re.sub(row.ignore, "", value)
                    if isinstance(value, str)
                    else value
                    for key, value in values.items()
                    if not re.fullmatch(row.ignore, key)
                }
                for file, values in found.items()
            }
        return {**found, "output": matches(output, row.lines)}


def form(row: Row) -> list[str]:
    """ftrun's options for the row's replicas and workers."""
    words = ["--replicas", str(row.replicas)] if row.replicas > 1 else []
    if row.workers > 1:
        words += ["--workers-per-replica", str(row.workers)]
    return [*words, "--memory-snapshots", "auto"] if row.in_place else words


class ChildFailed(Exception):
    """A child's exception, as text."""


def in_child(
    function: Callable[[list[str]], Any],
    words: list[str],
    directory: Path,
    environment: dict[str, str],
) -> Any:
    """What a function returns in a fork, which has torch loaded and works in ``directory``.

    Raises:
        ChildFailed: it raises, or takes too long.
    """
    here, there = multiprocessing.Pipe()

    def work() -> None:
        os.chdir(directory)
        os.environ.update(environment)
        extra = os.environ.get("PYTHONPATH", "").split(":")
        sys.path[:0] = [str(directory), *(str(directory / path) for path in extra if path)]
        try:
            there.send((function(words), ""))
        except Exception as error:  # noqa: BLE001  # the script's own classes are loaded
            there.send((None, f"{type(error).__name__}: {error}"))

    child = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    child.start()
    try:
        if not here.poll(ENDS_S):
            raise ChildFailed(f"no answer within {ENDS_S:g} s")
        found, why = here.recv()
    finally:
        child.kill()
        child.join(STOP_S)
    if why:
        raise ChildFailed(why)
    return found


def _read_events(path: Path, run: Run) -> None:
    for line in path.read_text().splitlines():
        event = json.loads(line)
        run.steps = max(run.steps, event.get("step") or 0)
        if event.get("event") == "notice" and event.get("kind") == "diverged":
            run.unequal.append(str(event["text"]).rstrip("."))


def unlike_replicas(notes: Path, workers: int) -> list[str]:
    """Whether workers of replicas ended with unlike parameters; each has noted its own last."""
    found = {int(path.name[5:]): path.read_text() for path in notes.glob("rank-*")}
    odd = [rank for rank, digest in found.items() if found.get(rank % workers, digest) != digest]
    return [f"at the end the parameters of rank {min(odd)} are not its peer's"] if odd else []


def says_back(output: str, victim: str) -> bool:
    """Whether a replica has joined, or a worker (``0.1``, or any of a replica) was replaced."""
    worker = re.escape(victim) if "." in victim else rf"{victim}\.\d+"
    joined = rf"worker {worker} .* All continued after .* no step was lost"
    if "." not in victim:
        joined = rf"(?:[Rr]eplica {victim} (?:joined|healed)|{joined})"
    return bool(re.search(f"ftrun: {joined}", output))


class Watched:
    """A process whose output is read by a thread as it comes, with a deadline."""

    def __init__(
        self, command: Sequence[str], directory: Path, environment: dict[str, str], limit_s: float
    ) -> None:
        self.is_late = False
        self._lines: list[str] = []
        self._characters = 0
        self._process = subprocess.Popen(
            command, cwd=directory, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip
        self._deadline = time.monotonic() + limit_s
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if self._characters < OUTPUT_MAX:
                self._lines.append(line)
                self._characters += len(line)

    @property
    def is_running(self) -> bool:
        """Whether it runs; one that is past its deadline is stopped."""
        if self._process.poll() is not None:
            return False
        if time.monotonic() > self._deadline:
            self.is_late = True
            self._stop()
        return not self.is_late

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit code."""
        while self.is_running:
            time.sleep(LOOK_S)
        self._reader.join(STOP_S)
        return self._process.wait(STOP_S)

    def text(self, beginning: int = 0) -> str:
        """The output from a line on."""
        return "".join(self._lines[beginning:])

    @property
    def count(self) -> int:
        """Of lines."""
        return len(self._lines)


class Waits:
    """The file in which each step of a script that is paced finds how long it waits."""

    def __init__(self, path: Path, seconds: float = NO_WAIT) -> None:
        self.path = path
        self.set(seconds)

    def set(self, seconds: float) -> None:
        """From the next step on."""
        draft = self.path.with_suffix(".draft")
        draft.write_text(str(seconds))
        draft.replace(self.path)


@dataclass
class Killer:
    """Kills the victims in turn, each when its moment has come.

    ``moments``: ``N`` is a step of the job, ``N: REGEX`` the N-th line that matches since the
    one before. The next moment is looked for when the dead one trains again. ``victims``: replicas,
    of which the last worker is killed, or workers (``0.1``). ``notes``: where ranks note what their
    models are; those of a dead replica are removed.
    """

    job: str
    moments: Sequence[str]
    victims: Sequence[str]
    waits: Waits
    notes: Path
    killed: list[str] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)

    def watch(self, job: Watched) -> None:
        """Kill, until all moments have come or the job has ended."""
        for number, moment in enumerate(self.moments):
            victim, begun = self.victims[number % len(self.victims)], job.count
            for status in self._statuses(job):
                if self._has_come(moment, status, job.text(begun)) and _kill(status, victim):
                    self.killed.append(victim)
                    if "." not in victim:  # the others train on
                        self.waits.set(AWAY_WAITS_S)
                        self._forget(victim, len(_of(status, victim)["workers"]))
                    break
                self._slow_down(moment, status)
            back = job.count
            for status in self._statuses(job):
                if victim in self.killed and (
                    _trains(status, victim) and says_back(job.text(back), victim)
                ):
                    self.waits.set(STEADY_WAITS_S)
                    self.joined.append(victim)
                    break
        self.waits.set(NO_WAIT)

    def _forget(self, replica: str, workers: int) -> None:
        for worker in range(workers):
            rank = int(replica) * workers + worker
            (self.notes / f"rank-{rank}").unlink(missing_ok=True)

    def _statuses(self, job: Watched) -> Iterator[dict[str, Any]]:
        while job.is_running and not BEGINS_AGAIN.search(job.text()):
            # A job that has not begun, or has ended, has none.
            with contextlib.suppress(UserError, PeerError, OSError):
                yield dict(find_status(StatusQuery(job_id=self.job)))
            time.sleep(LOOK_S)

    def _slow_down(self, moment: str, status: dict[str, Any]) -> None:
        if moment.isdigit() and status["step"] + NEAR_STEPS >= int(moment):
            self.waits.set(NEAR_WAITS_S)

    def _has_come(self, moment: str, status: dict[str, Any], output: str) -> bool:
        count, _, expression = moment.partition(": ")
        if not expression:
            return bool(status["step"] >= int(count))
        return len(re.findall(expression, LABEL.sub("", output), re.MULTILINE)) >= int(count)


def _of(status: dict[str, Any], replica: str) -> dict[str, Any]:
    return next((x for x in status["replicas"] if x["replica_id"] == replica), {})


def _kill(status: dict[str, Any], victim: str) -> bool:
    replica, _, rank = victim.partition(".")
    workers = _of(status, replica).get("workers") or []
    pids = [worker["pid"] for worker in workers if rank in ("", str(worker["group_rank"]))]
    if not pids:
        return False
    try:
        os.kill(pids[-1], signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _trains(status: dict[str, Any], victim: str) -> bool:
    return "." in victim or bool(_of(status, victim).get("use") == "training")
