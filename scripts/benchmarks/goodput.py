"""Goodput: the share of steps left to a job in which a random worker is killed periodically.

Goodput is the number of steps of the job, divided by the number of steps of the same script in the
same time without kills; both are measured in the same run. A step counts once for the job, however
many replicas take part. During each job a fixed loop is timed twice a second, because a shared
machine may be slower in one job's minutes than in another's.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.jobs import Job, Line, read, run_job
from benchmarks.results import Result, Row, Samples
from tests.jobs import Late

PEERS = ("ftrun", "torchft")
TRACE_POINTS = 200
LOSS_EVERY_STEPS = 10
PACE_EVERY_S = 0.5
PACE_ROUNDS = 10_000


@dataclass(frozen=True)
class Run:
    """The progress of a job while it was watched."""

    period_s: float  # between kills; 0: no kills
    kills: int
    steps: int
    seconds: float
    attempts: int
    lost_attempts: int
    worker_steps: int
    hashes: list[str]
    progress: list[tuple[float, int]] = field(default_factory=list)
    loss: list[tuple[int, float]] = field(default_factory=list)
    paces_ms: list[float] = field(default_factory=list)


def measure(replicas: int, seconds: float, periods: Sequence[float], seed: int) -> Result:
    """One undisturbed job and one for each period between kills, of each peer in turn."""
    rng = random.Random(seed)
    runs: dict[str, list[Run]] = {peer: [] for peer in PEERS}
    for period_s in (0.0, *periods):
        for peer in PEERS:
            runs[peer].append(_run(peer, replicas, seconds, period_s, rng))
    rows = [row for index in range(len(periods)) for row in _rows(runs, index + 1)]
    rates = {peer: [found[0].steps / found[0].seconds] for peer, found in runs.items()}
    calm = {peer: found[0].paces_ms for peer, found in runs.items()}
    return Result(
        "goodput",
        f"{replicas} replicas, a random one killed every so often for {seconds:g} s",
        [
            *rows,
            Row("rate", "undisturbed", "steps/s", rates, True),
            Row("pace_0", "… a fixed loop meanwhile", "ms", calm, digits=2),
        ],
        notes=[
            "Goodput: steps the job got on by, over those of an undisturbed job in the same time.",
            "Work: the same with the steps of all workers added up, so that absence counts too.",
            "A fixed loop of Python, twice a second: how fast the machine was in these minutes.",
            *_hash_notes(runs),
        ],
        traces={
            peer: [_trace(run) for run in found] for peer, found in runs.items()
        },
    )  # fmt: skip


def _rows(runs: dict[str, list[Run]], index: int) -> list[Row]:
    period = f"{runs['ftrun'][index].period_s:g}"
    goodput: Samples = {}
    work: Samples = {}
    lost: Samples = {}
    paces = {peer: found[index].paces_ms for peer, found in runs.items()}
    for peer, found in runs.items():
        calm, run = found[0], found[index]
        time_ratio = calm.seconds / run.seconds
        goodput[peer] = [100 * run.steps * time_ratio / max(calm.steps, 1)]
        work[peer] = [100 * run.worker_steps * time_ratio / max(calm.worker_steps, 1)]
        lost[peer] = [100 * run.lost_attempts / max(run.attempts, 1)]
    return [
        Row(f"goodput_{period}", f"goodput, a kill every {period} s", "%", goodput, True),
        Row(f"work_{period}", f"… work, a kill every {period} s", "%", work, True),
        Row(f"lost_{period}", "… attempts in vain, of all", "%", lost, digits=2),
        Row(f"pace_{period}", "… a fixed loop meanwhile", "ms", paces, digits=2),
    ]


def _hash_notes(runs: dict[str, list[Run]]) -> list[str]:
    return [
        f"{peer}, kills and final parameters: "
        + "; ".join(f"{run.kills} kills, {_verdict(run.hashes)}" for run in found)
        + "."
        for peer, found in runs.items()
    ]


def _verdict(hashes: Sequence[str]) -> str:
    if not hashes:
        return "did not end when told"
    return "equal on all" if len(set(hashes)) == 1 else "unequal"


def _trace(run: Run) -> dict[str, Any]:
    return {"period_s": run.period_s, "progress": run.progress, "loss": run.loss}


def _run(peer: str, replicas: int, seconds: float, period_s: float, rng: random.Random) -> Run:
    with run_job(peer, replicas) as job, _timed() as paces_ms:
        began, first = time.monotonic(), job.reached()
        kills = _disturb(job, began + seconds, period_s, rng)
        ended, last = time.monotonic(), job.reached()
        hashes = _end(job)
        processes = [read(path) for r in range(replicas) for path in job.processes(r)]
    lines = [line for process in processes for line in process]
    within = [line for line in lines if began <= line.when <= ended]
    committed = sorted((line for line in within if line.committed), key=lambda line: line.when)
    return Run(
        period_s,
        kills,
        max(last - first, 0),
        ended - began,
        len(within),
        len(within) - len(committed),
        len(committed),
        hashes,
        _progress(committed, began, first),
        # A process heals in its first step, so the loss of that step does not count.
        _loss([line for process in processes for line in process[1:] if line.committed]),
        paces_ms,
    )


@contextmanager
def _timed() -> Iterator[list[float]]:
    """The milliseconds of a fixed loop, measured repeatedly until the end."""
    paces_ms: list[float] = []
    over = threading.Event()

    def measure_on() -> None:
        while not paces_ms or not over.wait(PACE_EVERY_S):
            began = time.perf_counter()
            sum(number * number for number in range(PACE_ROUNDS))
            paces_ms.append(1e3 * (time.perf_counter() - began))

    thread = threading.Thread(target=measure_on, name="pace", daemon=True)
    thread.start()
    try:
        yield paces_ms
    finally:
        over.set()
        thread.join(10.0)


def _disturb(job: Job, until: float, period_s: float, rng: random.Random) -> int:
    """Kill a random worker every ``period_s``, starting after half of it. Returns the number of
    kills."""
    kills = 0
    if period_s:
        kill_at = time.monotonic() + period_s / 2
        while kill_at < until:
            time.sleep(max(kill_at - time.monotonic(), 0))
            kills += _kill_any(job, rng)
            kill_at += period_s
    time.sleep(max(until - time.monotonic(), 0))
    return kills


def _kill_any(job: Job, rng: random.Random) -> bool:
    for replica in rng.sample(range(job.replicas), job.replicas):
        try:
            job.kill(replica)
            return True
        except ProcessLookupError:
            continue  # it is dead already and not yet replaced
    return False


def _end(job: Job) -> list[str]:
    """The last output of each replica; nothing if they do not end."""
    try:
        job.stop()
    except Late:
        return []
    return list(job.ends().values())


def _progress(committed: Sequence[Line], began: float, first: int) -> list[tuple[float, int]]:
    every = max(len(committed) // TRACE_POINTS, 1)
    return [(line.when - began, line.step - first) for line in committed[::every]]


def _loss(committed: Sequence[Line]) -> list[tuple[int, float]]:
    """The mean losses of blocks of steps."""
    by_step: dict[int, list[float]] = {}
    for line in committed:
        by_step.setdefault(line.step // LOSS_EVERY_STEPS * LOSS_EVERY_STEPS, []).append(line.loss)
    return [(step, statistics.fmean(losses)) for step, losses in sorted(by_step.items())]
