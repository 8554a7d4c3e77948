"""Jobs under test: started, watched from outside by their time stamps, and ended.

A job is a peer's launcher with N replicas of worker.py. torchft has no launcher of its own: here a
loop starts a dead group again at once, which is faster than any launcher that its users have.

Not here: the measurements (recovery.py, join.py, goodput.py …).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

HERE = Path(__file__).parent
WORKER = HERE / "worker.py"
BIN = Path(sys.executable).parent
START_TIMEOUT_S = 90.0
END_TIMEOUT_S = 20.0
LOOK_S = 0.01
PORTS = range(10_240, 29_000)
LINE_BYTES_MAX = 200


@dataclass(frozen=True)
class Line:
    """One step of one worker process."""

    when: float
    step: int
    committed: bool
    loss: float


@dataclass
class Job:
    """A running job. ``lighthouse`` is the process that it asks; ``gone`` are drained replicas.

    ``agents``: ftrun's pids, if it runs on several nodes. ``preload``: a module that the script's
    process imports before it.
    """

    peer: str
    out: Path
    replicas: int
    script: Path = WORKER
    preload: str = ""
    lighthouse: psutil.Process | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    gone: set[int] = field(default_factory=set)
    agents: list[int] = field(default_factory=list)

    def newest(self, replica: int) -> Path:
        """The time stamps of the process that runs as ``replica`` now."""
        return max(self.processes(replica), key=_started)

    def processes(self, replica: int) -> list[Path]:
        """The time stamps of all processes that ran as ``replica``."""
        return [path for path in self.out.glob(f"steps.{replica}.*") if _started(path)]

    def reached(self) -> int:
        """The highest step that was committed."""
        return max(_last_step(self.newest(replica)) for replica in range(self.replicas))

    def await_step(self, step: int, timeout_s: float, who: set[int] | None = None) -> None:
        """Wait until the newest processes of ``who`` (default: all) have committed ``step``."""

        def there() -> bool:
            replicas = range(self.replicas) if who is None else who
            return all(self.processes(r) and _last_step(self.newest(r)) >= step for r in replicas)

        wait(there, timeout_s, f"{self.peer} to commit step {step}")

    def pid(self, replica: int) -> int:
        """The process that runs as ``replica`` now."""
        return int(self.newest(replica).name.split(".")[2])

    def kill(self, replica: int) -> float:
        """Send SIGKILL; returns the time."""
        pid = self.pid(replica)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return killed

    def stop(self) -> None:
        """Let all replicas end at one step, and wait until they have."""
        (self.out / "stop.draft").write_text(f"{self.reached() + 10}\n")
        (self.out / "stop.draft").rename(self.out / "stop")
        self.stopping.set()
        left = self.replicas - len(self.gone)
        wait(lambda: len(self.ends()) >= left, END_TIMEOUT_S, f"{self.peer} to end")

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
    **settings: str | float,
) -> Iterator[Job]:
    """A job of ``peer`` with ``settings`` (``BENCH_…`` of worker.py, in lower case).

    The block begins when all have committed ``first_step``, and should end with ``Job.stop``.
    ``nodes``: the number of ftrun's agents; with more than one, the lighthouse is a process apart.
    ``script``: one that ``preload`` lets write what worker.py writes.
    """
    out = Path(tempfile.mkdtemp(prefix=f"bench-{peer}-"))
    job = Job(peer, out, replicas, script=script, preload=preload)
    environment = {
        **os.environ,
        "BENCH_PEER": peer,
        "BENCH_OUT": str(out),
        "BENCH_PRELOAD": preload,
        "OMP_NUM_THREADS": "1",
        **{f"BENCH_{name.upper()}": str(value) for name, value in settings.items()},
    }
    try:
        with _LAUNCHERS[peer](job, environment, nodes):
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


def wait(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll until ``condition`` is true.

    Raises:
        TimeoutError: it was not within ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(LOOK_S)


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port for a server that cannot bind to 0; outside the range of outgoing connections."""
    for port in random.sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError(f"all ports of {PORTS} are taken")


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
    """``ftrun --replicas N worker.py``."""
    command: list[str | Path] = [BIN / "ftrun", "--replicas", str(job.replicas)]
    command += ["--max-restarts", "1000"]
    command += ["--device", "cpu", "--preload", job.preload] if job.preload else []
    if nodes > 1:
        with _ftrun_nodes(job, [*command, "--nodes", str(nodes)], environment, nodes):
            yield
        return
    command += ["--log-dir", job.out / "logs", job.script]
    with open(job.out / "ftrun.log", "wb") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=job.out, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            wait(lambda: _lighthouse_of(process) is not None, START_TIMEOUT_S, "the lighthouse")
            job.lighthouse = _lighthouse_of(process)
            yield
            process.wait(30)
        finally:
            end(process)


@contextmanager
def _ftrun_nodes(
    job: Job, command: list[str | Path], environment: dict[str, str], nodes: int
) -> Iterator[None]:
    """``ftrun lighthouse`` and an agent for each node."""
    port, token = free_port(), job.out / "token"
    own = ["--token-file", token]
    service = [BIN / "ftrun", "lighthouse", "--bind", f"127.0.0.1:{port}", "--http", "127.0.0.1:0"]
    service += [*own, "--state-dir", job.out / "lighthouse"]
    lines = [service]
    for node in range(nodes):
        agent = [*command, "--lighthouse", f"127.0.0.1:{port}", *own]
        lines.append([*agent, "--log-dir", job.out / f"logs{node}", job.script])
    with ExitStack() as stack:
        log = stack.enter_context(open(job.out / "ftrun.log", "wb"))
        started = []
        for line in lines:
            process = subprocess.Popen(line, env=environment, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(end, process)
            started.append(process)
            wait(token.exists, START_TIMEOUT_S, "the lighthouse's token")
        job.lighthouse = psutil.Process(started[0].pid)
        job.agents = [process.pid for process in started[1:]]
        yield
        for process in started[1:]:
            process.wait(30)


def _lighthouse_of(process: subprocess.Popen[bytes]) -> psutil.Process | None:
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "ftrun.lighthouse" in child.cmdline():
                return child
        except psutil.Error:
            continue
    return None


@contextmanager
def torchft_lighthouse() -> Iterator[tuple[psutil.Process, int]]:
    """A torchft lighthouse with its README's options: the process and its port."""
    port = free_port()
    options = ["--min_replicas", "1", "--bind", f"[::]:{port}"]
    options += ["--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]
    lighthouse = subprocess.Popen(
        [BIN / "torchft_lighthouse", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "RUST_LOG": "error"},
    )
    try:
        yield psutil.Process(lighthouse.pid), port
    finally:
        end(lighthouse)


def start_torchft_group(
    script: Path,
    replica: int,
    replicas: int,
    lighthouse_port: int,
    environment: dict[str, str],
    log: IO[bytes],
    directory: Path | None = None,
) -> subprocess.Popen[bytes]:
    """One replica group of one worker, with a store of its own, in ``directory``."""
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
    command = [sys.executable, "-c", _TORCHFT_MAIN, script]
    both = {**environment, **own}
    return subprocess.Popen(command, env=both, cwd=directory, stdout=log, stderr=log)


def run_alone(
    peer: str,
    script: Path,
    replicas: int,
    out: Path,
    environment: dict[str, str],
    timeout_s: float,
    *more: str,
) -> None:
    """Run ``script`` under ftrun or torchft to its end; the log is ``out/log``.

    ``more``: options of ftrun's.
    """
    with open(out / "log", "wb") as log, ExitStack() as stack:
        if peer == "torchft":
            _, port = stack.enter_context(torchft_lighthouse())
            processes = [
                start_torchft_group(script, replica, replicas, port, environment, log)
                for replica in range(replicas)
            ]
        else:
            options = ["--replicas", str(replicas), "--max-restarts", "0", *more]
            command = [BIN / "ftrun", *options, "--log-dir", out / "logs", script]
            processes = [subprocess.Popen(command, env=environment, stdout=log, stderr=log)]
        for process in processes:
            stack.callback(end, process)
        for process in processes:
            process.wait(timeout_s)


@contextmanager
def _torchft(job: Job, environment: dict[str, str], nodes: int) -> Iterator[None]:
    """N groups, each started again when it is dead, without nodes."""
    with torchft_lighthouse() as (job.lighthouse, port):
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
        with open(job.out / f"torchft.{replica}.log", "ab") as log:
            process = start_torchft_group(
                job.script, replica, job.replicas, port, environment, log, job.out
            )
            while process.poll() is None and not job.stopping.wait(LOOK_S):
                pass
            try:
                process.wait(END_TIMEOUT_S if job.stopping.is_set() else None)
            except subprocess.TimeoutExpired:
                end(process)


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

_LAUNCHERS = {"ftrun": _ftrun, "torchft": _torchft}
