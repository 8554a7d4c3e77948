"""The lighthouse of a large job: forming, one death, a join, the steady state; and torchft's.

A real ``ftrun lighthouse`` process, and real streams of simulated agents (agents.py) in this one:
the times include their work, on the same cores. A death is timed from ``ReplicaLost`` to the
lighthouse's message that the next quorum is in force. By then every survivor was interrupted, has
reported, has received the next quorum and has reported that it trains in it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil

from benchmarks.agents import Agents
from benchmarks.results import Result, Row, Samples
from ftrun.core.messages import JobSpec
from tests.jobs import TOKEN, Lighthouse

TIMEOUT_S = 120.0
HEARTBEAT_TIMEOUT_S = 30.0
START_TIMEOUT_S = 30.0
SETTLE_S = 2.0
GC_THRESHOLD = 20_000
"""As in the lighthouse."""
TORCHFT_ROUNDS = 8


def measure(groups: int, agents: int, deaths: int, steady_s: float, torchft: list[int]) -> Result:
    """One job of ``groups`` replica groups on ``agents`` nodes; torchft with these numbers of
    replicas."""
    load = _load()
    found = asyncio.run(samples(groups, agents, deaths, steady_s))
    rounds = {count: _torchft_rounds_ms(count) for count in torchft}
    rows = [
        Row(key, what, unit, {"ftrun": found[key]}, digits=digits)
        for key, (what, unit, digits) in ROWS.items()
    ]
    rows += [
        Row(
            f"torchft_{count}_ms",
            f"one quorum round, as every step has it, {count} replicas",
            "ms",
            {"torchft": times_ms},
            digits=0,
        )
        for count, times_ms in rounds.items()
    ]
    title = f"{groups:,} replica groups of {agents:,} simulated agents, {deaths} deaths"
    note = (
        f"Load (processes that ran or waited to, mean of a minute): {load} before, {_load()} after."
    )
    name = "lighthouse" if groups <= 1000 else f"lighthouse_{groups}"
    return Result(name, title, rows, [note])


ROWS = {
    "form_s": ("first stream → slots shared out → first quorum stands", "s", 2),
    "form_assigned_s": ("slots shared out → first quorum stands", "s", 2),
    "interrupt_ms": ("one death told → every survivor interrupted", "ms", 0),
    "reports_ms": ("… → all have reported, the first gets the next quorum", "ms", 0),
    "told_ms": ("… → all have got the next quorum", "ms", 0),
    "stands_ms": ("… → all have answered, the first agent hears that it stands", "ms", 0),
    "death_ms": ("… → every agent has heard that the quorum stands", "ms", 0),
    "death_lighthouse_cpu_ms": ("processor time of the lighthouse, per death", "ms", 0),
    "death_agents_cpu_ms": ("processor time of all simulated agents, per death", "ms", 0),
    "death_messages": ("gRPC messages, per death", "", 0),
    "death_kib": ("bytes in them, per death", "KiB", 0),
    "join_ms": ("one newcomer reports → all train with it (a switch)", "ms", 0),
    "join_lighthouse_cpu_ms": ("processor time of the lighthouse, per join", "ms", 0),
    "join_agents_cpu_ms": ("processor time of all simulated agents, per join", "ms", 0),
    "join_messages": ("gRPC messages, per join", "", 0),
    "join_kib": ("bytes in them, per join", "KiB", 0),
    "steady_percent": (
        "processor of the lighthouse at a heartbeat a second each",
        "% of a core",
        1,
    ),
    "steady_agents_percent": (
        "processor of all simulated agents meanwhile",
        "% of a core",
        1,
    ),
    "rss_mib": ("resident memory of the lighthouse", "MiB", 0),
}


@dataclass
class _Meter:
    """CPU time of both sides and the traffic, since its creation."""

    lighthouse: psutil.Process
    agents: Agents

    def __post_init__(self) -> None:
        self._began = self._now()

    def since(self) -> tuple[float, float, float, float]:
        """Milliseconds of the lighthouse and of the agents, messages, KiB."""
        a, b = self._began, self._now()
        return (b[0] - a[0]) * 1e3, (b[1] - a[1]) * 1e3, b[2] - a[2], (b[3] - a[3]) / 1024

    def _now(self) -> tuple[float, float, float, float]:
        messages, nbytes = self.agents.traffic()
        return _cpu_s(self.lighthouse), _cpu_s(psutil.Process()), messages, nbytes


async def samples(groups: int, agents: int, deaths: int, steady_s: float) -> Samples:
    """All rows of one job, except torchft's."""
    found: Samples = {key: [] for key in ROWS}
    with _running_lighthouse() as (lighthouse, address, token):
        spec = JobSpec("bench", groups, 1, 1, TIMEOUT_S, HEARTBEAT_TIMEOUT_S, TIMEOUT_S, agents)
        crowd = Agents(spec, address, token)
        began = time.perf_counter()
        try:
            await crowd.start()
            formed = await crowd.until("notice formed", agents, TIMEOUT_S)
            # The memory of 125 agents is in one process. Each of them alone would have next to
            # none.
            gc.freeze()
            gc.set_threshold(GC_THRESHOLD)
            found["form_s"].append(formed - began)
            found["form_assigned_s"].append(formed - crowd.marks.first["AssignSlots"])
            for index in range(deaths):
                await _one_death(crowd, lighthouse, str(index * 7919 % groups), found)
            await asyncio.sleep(SETTLE_S)  # so that the last join is over
            meter, began = _Meter(lighthouse, crowd), time.perf_counter()
            await asyncio.sleep(steady_s)
            cpu_ms, own_cpu_ms, _, _ = meter.since()
            elapsed_ms = (time.perf_counter() - began) * 1e3
            found["steady_percent"].append(100 * cpu_ms / elapsed_ms)
            found["steady_agents_percent"].append(100 * own_cpu_ms / elapsed_ms)
            found["rss_mib"].append(lighthouse.memory_info().rss / 2**20)
        finally:
            await crowd.close()
    return found


async def _one_death(
    crowd: Agents, lighthouse: psutil.Process, replica_id: str, found: Samples
) -> None:
    """One replica dies; when the rest trains again, its replacement joins."""
    marks, agents = crowd.marks, len(crowd.all)
    await asyncio.sleep(1.0)
    agent = crowd.agent_of(replica_id)
    marks.clear()
    meter, began = _Meter(lighthouse, crowd), time.perf_counter()
    agent.kill(replica_id)
    told = await crowd.until("notice formed", agents, TIMEOUT_S)
    cpu, own_cpu, messages, kib = meter.since()
    stages = {
        "interrupt_ms": marks.last["Interrupt"],
        "reports_ms": marks.first["NewQuorum"],
        "told_ms": marks.last["NewQuorum"],
        "stands_ms": marks.first["notice formed"],
        "death_ms": told,
    }
    for key, when in stages.items():
        found[key].append((when - began) * 1e3)
    found["death_lighthouse_cpu_ms"].append(cpu)
    found["death_agents_cpu_ms"].append(own_cpu)
    found["death_messages"].append(messages)
    found["death_kib"].append(kib)
    await asyncio.sleep(1.0)
    marks.clear()
    meter, began = _Meter(lighthouse, crowd), time.perf_counter()
    agent.start(replica_id, 1)
    joined = await crowd.until("notice switched", agents, TIMEOUT_S)
    cpu, own_cpu, messages, kib = meter.since()
    found["join_ms"].append((joined - began) * 1e3)
    found["join_lighthouse_cpu_ms"].append(cpu)
    found["join_agents_cpu_ms"].append(own_cpu)
    found["join_messages"].append(messages)
    found["join_kib"].append(kib)


@contextmanager
def _running_lighthouse() -> Iterator[tuple[psutil.Process, str, str]]:
    """``ftrun lighthouse`` on a fresh directory: the process, its address, the token."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-lighthouse-") as name,
        Lighthouse(Path(name), "--http", "127.0.0.1:0", fresh=True) as found,
    ):
        token = (found.directory / TOKEN).read_text().strip()
        yield psutil.Process(found.pid), found.address, token


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def _cpu_s(process: psutil.Process) -> float:
    """The CPU time of all threads, from the scheduler.

    ``cpu_times`` counts ticks: a thread that a timer has woken runs when the tick comes, and seems
    to run for the whole tick.
    """
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


# ---------------------------------------------------------------- torchft


def _torchft_rounds_ms(replicas: int) -> list[float]:
    """Every replica requests its quorum at once, as at each step; until the last one has it.

    torchft's clients are Rust: their threads run beside Python's in this process.
    """
    from benchmarks.jobs import torchft_lighthouse

    barrier = threading.Barrier(replicas + 1)
    samples = []
    with torchft_lighthouse(replicas) as (_, port):
        threads = [
            threading.Thread(target=_torchft_replica, args=(i, port, barrier), daemon=True)
            for i in range(replicas)
        ]
        for thread in threads:
            thread.start()
        for _ in range(TORCHFT_ROUNDS):
            barrier.wait(TIMEOUT_S)
            began = time.perf_counter()
            barrier.wait(TIMEOUT_S)
            samples.append((time.perf_counter() - began) * 1e3)
        for thread in threads:
            thread.join(TIMEOUT_S)
    return samples[1:]  # the first round differs: all replicas are new


def _torchft_replica(index: int, port: int, barrier: threading.Barrier) -> None:
    from torchft.coordination import LighthouseClient

    wait_for = timedelta(seconds=TIMEOUT_S)
    client = LighthouseClient(f"http://localhost:{port}", wait_for)
    for step in range(TORCHFT_ROUNDS):
        barrier.wait(TIMEOUT_S)
        client.quorum(f"{index:05d}:x", wait_for, address="http://10.0.0.1:29500",
                      store_address="10.0.0.1:29400", step=step, world_size=1)  # fmt: skip
        barrier.wait(TIMEOUT_S)
