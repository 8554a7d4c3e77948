"""Recovery after SIGKILL: how long survivors stand still, what they lose, when the victim is back.

Timed from outside: the moment of the kill against the time stamps that each worker writes per step.
Peers run in turn in one call (A B A B). torchft has no launcher of its own: here a loop starts a
dead group again at once, which is faster than any of those that its users have.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
WORKER = HERE / "worker.py"
START_TIMEOUT_S = 90.0
RECOVERY_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Kill:
    """One SIGKILL and what came of it; seconds."""

    stall_s: float  # survivors' next commit after the kill, beyond one median step
    lost_steps: int  # steps that survivors computed in vain
    rejoin_s: float  # until the replacement's first committed step
    step_s: float  # the survivors' median step


@dataclass(frozen=True)
class Line:
    """One step of one worker process."""

    when: float
    step: int
    committed: bool


def run(peer: str, replicas: int, kills: int, rng: random.Random) -> list[Kill]:
    """Start a job of ``peer``, kill a random worker ``kills`` times, measure each."""
    out = Path(tempfile.mkdtemp(prefix=f"bench-{peer}-"))
    try:
        with _LAUNCHERS[peer](out, replicas):
            _wait(lambda: _alive_at(out, 30) >= replicas, START_TIMEOUT_S, f"{peer} to start")
            found = [_kill_one(out, replicas, rng) for _ in range(kills)]
            (out / "stop").touch()
        return found
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _kill_one(out: Path, replicas: int, rng: random.Random) -> Kill:
    before = {r: _newest(out, r) for r in range(replicas)}
    victim = rng.randrange(replicas)
    step = max(lines[-1].step for lines in map(read, before.values()))
    time.sleep(rng.random() * 0.05)  # anywhere within a step
    killed = time.monotonic()
    os.kill(int(before[victim].name.split(".")[1]), signal.SIGKILL)

    def back() -> bool:
        newest = _newest(out, victim)
        return newest != before[victim] and any(line.committed for line in read(newest))

    _wait(back, RECOVERY_TIMEOUT_S, "the replacement's first commit")
    rejoined = next(line.when for line in read(_newest(out, victim)) if line.committed)
    _wait(lambda: _alive_at(out, step + 40) >= replicas, RECOVERY_TIMEOUT_S, "all to go on")
    survivors = [read(before[r]) for r in range(replicas) if r != victim]
    return _judge(survivors, killed, rejoined)


def _judge(survivors: list[list[Line]], killed: float, rejoined: float) -> Kill:
    stalls, lost, medians = [], 0, []
    for lines in survivors:
        commits = [line for line in lines if line.committed]
        steps = [b.when - a.when for a, b in itertools.pairwise(commits)]
        medians.append(statistics.median(steps))
        following = next(line.when for line in commits if line.when > killed)
        stalls.append(following - killed - medians[-1])
        window = (line for line in lines if killed < line.when <= rejoined + 1.0)
        lost = max(lost, sum(not line.committed for line in window))
    return Kill(max(max(stalls), 0.0), lost, rejoined - killed, statistics.median(medians))


def read(path: Path) -> list[Line]:
    """The whole lines of one worker process."""
    found = []
    for text in path.read_text().split("\n")[:-1]:
        when, step, committed = text.split()
        if committed != "start":
            found.append(Line(float(when), int(step), committed == "1"))
    return found


def _newest(out: Path, replica: int) -> Path:
    return max(out.glob(f"{replica}.*"), key=_started)


def _started(path: Path) -> float:
    with open(path) as lines:
        return float((lines.readline().split() or ["0"])[0])


def _alive_at(out: Path, step: int) -> int:
    """How many replicas' newest processes have committed ``step``."""
    replicas = {path.name.split(".")[0] for path in out.glob("[0-9]*.*")}
    newest = [read(_newest(out, int(replica))) for replica in replicas]
    return sum(any(n.committed and n.step >= step for n in lines) for lines in newest)


def _wait(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.01)


# ---------------------------------------------------------------- launchers


def _environment(peer: str, out: Path) -> dict[str, str]:
    return {**os.environ, "BENCH_PEER": peer, "BENCH_OUT": str(out), "OMP_NUM_THREADS": "1"}


@contextmanager
def ftrun_job(out: Path, replicas: int) -> Iterator[None]:
    """``ftrun --replicas N worker.py``."""
    command = [
        str(Path(sys.executable).parent / "ftrun"),
        "--replicas",
        str(replicas),
        "--max-restarts",
        "1000",
        "--log-dir",
        str(out / "logs"),
        str(WORKER),
    ]
    with open(out / "ftrun.log", "wb") as log:
        process = subprocess.Popen(
            command, env=_environment("ftrun", out), stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield
            process.wait(30)
        finally:
            _end(process)


@contextmanager
def torchft_job(out: Path, replicas: int) -> Iterator[None]:
    """A torchft lighthouse with its README's options, and N groups, started again when dead."""
    bin_dir = Path(sys.executable).parent
    port = 29_512
    lighthouse = subprocess.Popen(
        [
            str(bin_dir / "torchft_lighthouse"),
            "--min_replicas",
            "1",
            "--bind",
            f"[::]:{port}",
            "--quorum_tick_ms",
            "100",
            "--join_timeout_ms",
            "10000",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "RUST_LOG": "error"},
    )
    stopping = threading.Event()
    loops = [
        threading.Thread(target=_keep_running, args=(out, r, replicas, port, stopping))
        for r in range(replicas)
    ]
    try:
        for loop in loops:
            loop.start()
        yield
    finally:
        stopping.set()
        (out / "stop").touch()
        for loop in loops:
            loop.join(60)
        _end(lighthouse)


def _keep_running(
    out: Path, replica: int, replicas: int, port: int, stopping: threading.Event
) -> None:
    env = {
        **_environment("torchft", out),
        "REPLICA_GROUP_ID": str(replica),
        "NUM_REPLICA_GROUPS": str(replicas),
        "TORCHFT_LIGHTHOUSE": f"http://localhost:{port}",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(29_600 + replica),
        "RUST_LOG": "error",
    }
    while not stopping.is_set():
        with open(out / f"torchft.{replica}.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _TORCHFT_MAIN, str(WORKER)],
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            while process.poll() is None and not stopping.wait(0.005):
                pass
            if stopping.is_set():
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    _end(process)


_TORCHFT_MAIN = """
import os, runpy, sys
import torch.distributed as dist
store = dist.TCPStore("localhost", int(os.environ["MASTER_PORT"]), is_master=True, \
wait_for_workers=False)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

_LAUNCHERS = {"ftrun": ftrun_job, "torchft": torchft_job}


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
