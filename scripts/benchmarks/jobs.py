"""Jobs under test: started, watched from outside by their time stamps, and ended.

A job is a peer's launcher with N replicas of worker.py. torchft has no launcher: here a loop
restarts a dead group at once, which is faster than any launcher that its users have.

Not here: the measurements (recovery.py, join.py, goodput.py …), and the launchers that only
rivals/launchers.py has.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests import jobs
from tests.jobs import Process, free_port, wait

HERE = Path(__file__).parent
WORKER = HERE / "worker.py"
BIN = Path(sys.executable).parent
FTRUN = (str(BIN / "ftrun"),)
START_TIMEOUT_S = 90.0
END_TIMEOUT_S = 20.0
LOOK_S = 0.01
LINE_BYTES_MAX = 200


Launcher = Callable[["Job", dict[str, str], int], AbstractContextManager[None]]
"""Starts a job in an environment on a number of nodes, and ends it."""


@dataclass(frozen=True)
class Line:
    """One step of one worker process."""

    when: float
    step: int
    committed: bool
    loss: float


@dataclass
class Job:
    """A running job.

    Attributes:
        lighthouse: the process of the job's lighthouse.
        gone: drained replicas.
        launched: the launcher's processes, for ftrun an agent for each node.
        preload: a module that the script's process imports first.
    """

    peer: str
    out: Path
    replicas: int
    script: Path = WORKER
    preload: str = ""
    lighthouse: psutil.Process | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    gone: set[int] = field(default_factory=set)
    launched: list[Process] = field(default_factory=list)

    def newest(self, replica: int) -> Path:
        """The time stamps of the current process of ``replica``."""
        return self.processes(replica)[-1]

    def processes(self, replica: int) -> list[Path]:
        """The time stamps of all processes of ``replica``, in the order of their starts."""
        paths = [path for path in self.out.glob(f"steps.{replica}.*") if _started(path)]
        return sorted(paths, key=_started)

    def reached(self) -> int:
        """The highest step that was committed."""
        return max(_last_step(self.newest(replica)) for replica in range(self.replicas))

    def await_step(self, step: int, timeout_s: float, who: set[int] | None = None) -> None:
        """Wait until the newest processes of ``who`` (default: all) have committed ``step``."""

        def there() -> bool:
            replicas = range(self.replicas) if who is None else who
            return all(self.processes(r) and _last_step(self.newest(r)) >= step for r in replicas)

        wait(there, f"{self.peer} to commit step {step}", timeout_s)

    def pid(self, replica: int) -> int:
        """The current process of ``replica``."""
        return int(self.newest(replica).name.split(".")[2])

    def kill(self, replica: int) -> float:
        """Send SIGKILL; returns the time."""
        pid = self.pid(replica)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return killed

    def stop(self) -> None:
        """Let all replicas end at one step, and wait until they have."""
        jobs.write_at_once(self.out / "stop", f"{self.reached() + 10}\n")
        self.stopping.set()
        left = self.replicas - len(self.gone)
        wait(lambda: len(self.ends()) >= left, f"{self.peer} to end", END_TIMEOUT_S)

    def ends(self) -> dict[int, str]:
        """The last output of each replica: its step and a hash of its parameters."""
        ends = self.out.glob("end.*")
        return {int(path.name.split(".")[1]): text for path in ends if (text := path.read_text())}


@contextmanager
def run_job(
    peer: str,
    replicas: int,
    first_step: int = 20,
    nodes: int = 1,
    script: Path = WORKER,
    preload: str = "",
    launcher: Launcher | None = None,
    **settings: str | float,
) -> Iterator[Job]:
    """A job of ``peer`` with ``settings`` (``BENCH_…`` of worker.py, in lower case).

    The block begins when all have committed ``first_step``, and should end with ``Job.stop``.
    ``nodes``: the number of ftrun's agents; with more than one, the lighthouse is a separate
    process. ``script``: one that writes what worker.py writes, or with ``preload``, which writes
    it. ``launcher``: starts the job, if neither ftrun nor torchft does.
    """
    out = Path(tempfile.mkdtemp(prefix=f"bench-{peer}-"))
    job = Job(peer, out, replicas, script=script, preload=preload)
    environment = {
        "BENCH_PEER": peer,
        "BENCH_OUT": str(out),
        "BENCH_PRELOAD": preload,
        "OMP_NUM_THREADS": "1",
        **{f"BENCH_{name.upper()}": str(value) for name, value in settings.items()},
    }
    try:
        with (launcher or _LAUNCHERS[peer])(job, environment, nodes):
            job.await_step(first_step, START_TIMEOUT_S)
            yield job
    finally:
        shutil.rmtree(out, ignore_errors=True)


def read(path: Path) -> list[Line]:
    """The whole lines of one worker process."""
    found = []
    for text in path.read_text().split("\n")[:-1]:
        when, step, committed, loss = text.split()
        if committed != "start":
            found.append(Line(float(when), int(step), committed == "1", float(loss)))
    return found


def _started(path: Path) -> float:
    with open(path) as lines:
        return float((lines.readline().split() or ["0"])[0])


def _last_step(path: Path) -> int:
    """The progress of the process, from its last whole line: cheap enough to poll."""
    with open(path, "rb") as lines:
        lines.seek(max(path.stat().st_size - LINE_BYTES_MAX, 0))
        whole = lines.read().split(b"\n")[-2:-1]
    return int(whole[0].split()[1]) if whole else -1


# ---------------------------------------------------------------- launchers


@contextmanager
def _ftrun(job: Job, environment: dict[str, str], nodes: int) -> Iterator[None]:
    """``ftrun --replicas N worker.py``; for several nodes a lighthouse and an agent for each."""
    options = ["--replicas", str(job.replicas), "--max-restarts", "1000"]
    options += ["--device", "cpu", "--preload", job.preload] if job.preload else []
    with ExitStack() as stack:
        if nodes > 1:
            house = jobs.Lighthouse(job.out, environment=environment, fresh=True)
            stack.enter_context(house)
            options += ["--nodes", str(nodes), *house.found_by]
        agents = [
            stack.enter_context(
                jobs.Job(
                    job.out,
                    job.script,
                    *options,
                    program=FTRUN,
                    environment=environment,
                    logs=f"logs{node}",
                )
            )
            for node in range(nodes)
        ]
        job.launched += agents
        lighthouse = house.pid if nodes > 1 else agents[0].expect_process(jobs.LIGHTHOUSE)
        job.lighthouse = psutil.Process(lighthouse)
        yield
        for agent in agents:
            agent.end(30)


@contextmanager
def torchft_lighthouse(
    replicas_min: int = 1, *options: str
) -> Iterator[tuple[psutil.Process, int]]:
    """A torchft lighthouse with its README's options: the process and its port."""
    port = free_port()
    words = [str(BIN / "torchft_lighthouse"), "--min_replicas", str(replicas_min)]
    words += ["--bind", f"[::]:{port}", "--join_timeout_ms", "10000", *options]
    with Process(words, Path.cwd(), {**os.environ, "RUST_LOG": "error"}) as lighthouse:
        yield psutil.Process(lighthouse.pid), port


def start_torchft_group(
    script: Path,
    replica: int,
    replicas: int,
    lighthouse_port: int,
    environment: dict[str, str],
    directory: Path,
) -> Process:
    """One replica group of one worker, with a separate store, in ``directory``."""
    own = {
        "REPLICA_GROUP_ID": str(replica),
        "NUM_REPLICA_GROUPS": str(replicas),
        "TORCHFT_LIGHTHOUSE": f"http://localhost:{lighthouse_port}",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(free_port()),
        "RUST_LOG": "error",
    }
    words = [sys.executable, "-c", _TORCHFT_MAIN, str(script)]
    return Process(words, directory, {**os.environ, **environment, **own})


def run_alone(
    peer: str,
    script: Path,
    replicas: int,
    out: Path,
    environment: dict[str, str],
    timeout_s: float,
    *more: str,
) -> None:
    """Run ``script`` under ftrun or torchft to its end. ``more``: options of ftrun.

    Raises:
        Late: it did not end in time.
    """
    with ExitStack() as stack:
        started: list[Process]
        if peer == "torchft":
            _, port = stack.enter_context(torchft_lighthouse(1, *_TICK))
            started = [
                start_torchft_group(script, replica, replicas, port, environment, out)
                for replica in range(replicas)
            ]
        else:
            options = ("--replicas", str(replicas), "--max-restarts", "0", *more)
            started = [jobs.Job(out, script, *options, program=FTRUN, environment=environment)]
        for process in started:
            stack.enter_context(process)
        for process in started:
            process.end(timeout_s)


@contextmanager
def _torchft(job: Job, environment: dict[str, str], nodes: int) -> Iterator[None]:
    """N groups, each restarted when it is dead, without nodes."""
    with torchft_lighthouse(1, *_TICK) as (job.lighthouse, port):
        loops = [
            threading.Thread(target=_keep_running, args=(job, replica, port, environment))
            for replica in range(job.replicas)
        ]
        try:
            for loop in loops:
                loop.start()
            yield
        finally:
            job.stopping.set()
            if not (job.out / "stop").exists():
                (job.out / "stop").write_text("0")
            for loop in loops:
                loop.join(60)


def _keep_running(job: Job, replica: int, port: int, environment: dict[str, str]) -> None:
    while not job.stopping.is_set() and replica not in job.gone:
        with start_torchft_group(
            job.script, replica, job.replicas, port, environment, job.out
        ) as group:
            while group.process.poll() is None and not job.stopping.wait(LOOK_S):
                pass
            if job.stopping.is_set():
                with suppress(subprocess.TimeoutExpired):
                    group.process.wait(END_TIMEOUT_S)


_TICK = ("--quorum_tick_ms", "100")
_TORCHFT_MAIN = """
import importlib, os, runpy, sys
import torch.distributed as dist
store = dist.TCPStore("localhost", int(os.environ["MASTER_PORT"]), is_master=True, \
wait_for_workers=False)
sys.argv = sys.argv[1:]
if os.environ.get("BENCH_PRELOAD"):
    importlib.import_module(os.environ["BENCH_PRELOAD"])
runpy.run_path(sys.argv[0], run_name="__main__")
"""

_LAUNCHERS: dict[str, Launcher] = {"ftrun": _ftrun, "torchft": _torchft}
