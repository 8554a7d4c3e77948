"""Recovery after SIGKILL: survivors' stall, lost steps, time until the replacement is back.

Timed from outside: the moment of the kill against the time stamps that each worker writes per step.
The kernel frees a dead worker's memory before it closes its sockets, so workers hold more memory in
some of the jobs. At the end of each job its lighthouse is stopped (SIGSTOP) for a while: a job that
needs it in every step hangs then.
"""

from __future__ import annotations

import itertools
import random
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from benchmarks.jobs import Job, Line, read, run_job
from benchmarks.results import Result, Row

PEERS = ("ftrun", "torchft")
GB = 1e9
SPARE_GB = 2.0
"""What the job needs beside its workers' memory."""
RECOVERY_TIMEOUT_S = 60.0
STEPS_BETWEEN_KILLS = 40
STEPS_AFTER_KILL = 3
FROZEN_S = 2.0
TRACE_BEFORE_S, TRACE_AFTER_S = 1.0, 7.0

Kills = dict[str, list["Kill"]]
"""By peer."""
Trace = list[list[tuple[float, int]]]
"""Per worker process: seconds since the kill, step."""


@dataclass(frozen=True)
class Kill:
    """One SIGKILL and its effects; seconds."""

    stall_s: float  # survivors' longest step from the kill on, beyond their median step
    lost_steps: int  # steps that a survivor computed and must repeat
    rejoin_s: float  # until the replacement's first committed step
    step_s: float  # the survivors' median step


def measure(
    replicas: int,
    kills: int,
    rounds: int,
    seed: int,
    sizes: Sequence[float],
    peers: Sequence[str] = PEERS,
) -> Result:
    """``rounds`` jobs of each peer and size in turn, ``kills`` kills in each.

    ``sizes``: GB that a worker holds, the usual size first.

    Raises:
        MemoryError: the machine has too little memory for the largest.
    """
    wanted, there = replicas * max(sizes) + SPARE_GB, psutil.virtual_memory().available / GB
    if wanted > there:
        raise MemoryError(f"the workers need {wanted:.0f} GB, and {there:.0f} GB are available")
    rng = random.Random(seed)
    found: dict[float, Kills] = {size: {peer: [] for peer in peers} for size in sizes}
    frozen: dict[str, list[float]] = {peer: [] for peer in peers}
    traces: dict[str, Trace] = {}
    for _ in range(rounds):
        for size in sizes:
            for peer in peers:
                with run_job(peer, replicas, held_bytes=int(size * GB)) as job:
                    for _ in range(kills):
                        found[size][peer].append(kill_one(job, rng, traces))
                    if size == sizes[0]:
                        frozen[peer].append(_without_lighthouse(job))
                    job.stop()
    more = [_stall_row(size, found[size], f"stall_ms_{size:g}") for size in sizes[1:]]
    return Result(
        "recovery",
        f"SIGKILL of one of {replicas} workers, {kills * rounds} times at each size",
        [
            _stall_row(sizes[0], found[sizes[0]]),
            *more,
            *_rows(found[sizes[0]]),
            _frozen_row(frozen),
        ],
        notes=[
            "The stall is the longest of the three steps of any survivor from the kill on, beyond "
            "the median step.",
            "torchft's groups are started again by a loop, at once; torchft itself starts nothing.",
        ],
        traces=traces,
    )


def _stall_row(size: float, found: Kills, key: str = "stall_ms") -> Row:
    samples = {peer: [kill.stall_s * 1000 for kill in kills] for peer, kills in found.items()}
    return Row(key, f"survivors' stall beyond one step, {size:g} GB a worker", "ms", samples)


def _rows(found: Kills) -> list[Row]:
    def of(name: str, factor: float = 1000.0) -> dict[str, list[float]]:
        return {peer: [getattr(k, name) * factor for k in kills] for peer, kills in found.items()}

    return [
        Row("lost_steps", "steps lost by survivors", "steps", of("lost_steps", 1.0)),
        Row("rejoin_ms", "kill → replacement's first committed step", "ms", of("rejoin_s")),
        Row("step_ms", "survivors' median step", "ms", of("step_s")),
    ]


def _frozen_row(frozen: dict[str, list[float]]) -> Row:
    what = f"steps committed while the lighthouse is stopped for {FROZEN_S:g} s, of the usual"
    return Row("frozen_lighthouse_percent", what, "%", frozen, higher_is_better=True)


def kill_one(
    job: Job, rng: random.Random, traces: dict[str, Trace], steps_after: int = STEPS_BETWEEN_KILLS
) -> Kill:
    """Kill a random replica, and wait until it is back and ``steps_after`` steps have followed."""
    processes = {replica: job.newest(replica) for replica in range(job.replicas)}
    victim = rng.randrange(job.replicas)
    step = job.reached()
    time.sleep(rng.random() * 0.05)  # anywhere within a step
    killed = job.kill(victim)
    _await_replacement(job, victim, processes[victim].name)
    newcomer = read(job.newest(victim))
    rejoined = next(line.when for line in newcomer if line.committed)
    job.await_step(step + steps_after, RECOVERY_TIMEOUT_S)
    survivors = [read(path) for replica, path in processes.items() if replica != victim]
    if job.peer not in traces:
        everybody = [*survivors, read(processes[victim]), read(job.newest(victim))]
        traces[job.peer] = [_trace(lines, killed) for lines in everybody]
    return judge(survivors, killed, rejoined)


def _await_replacement(job: Job, victim: int, before: str) -> None:
    deadline = time.monotonic() + RECOVERY_TIMEOUT_S
    while job.newest(victim).name == before:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{job.peer} started no replacement in {RECOVERY_TIMEOUT_S:g} s")
        time.sleep(0.01)
    job.await_step(1, RECOVERY_TIMEOUT_S, {victim})


def judge(survivors: Sequence[Sequence[Line]], killed: float, rejoined: float) -> Kill:
    """The effects of a kill on the survivors."""
    stalls, lost, medians = [], 0, []
    for lines in survivors:
        commits = [line.when for line in lines if line.committed]
        steps = list(itertools.pairwise(commits))
        medians.append(statistics.median(after - before for before, after in steps))
        following = [after - before for before, after in steps if after > killed]
        stalls.append(max(following[:STEPS_AFTER_KILL]) - medians[-1])
        window = [line for line in lines if killed < line.when <= rejoined + 1.0]
        lost = max(lost, sum(map(_is_in_vain, window, [*window[1:], None])))
    return Kill(max(*stalls, 0.0), lost, rejoined - killed, statistics.median(medians))


def _is_in_vain(line: Line, following: Line | None) -> bool:
    """Whether a step must be repeated.

    A step that the others had completed, with the gradients of this survivor, is not repeated: the
    survivor heals, and continues after it.
    """
    is_taken = following is not None and following.committed and following.step > line.step + 1
    return not (line.committed or is_taken)


def _trace(lines: Sequence[Line], killed: float) -> list[tuple[float, int]]:
    commits = ((line.when - killed, line.step) for line in lines if line.committed)
    return [(t, step) for t, step in commits if -TRACE_BEFORE_S <= t <= TRACE_AFTER_S]


def _without_lighthouse(job: Job) -> float:
    """Steps while the lighthouse is stopped, in percent of the steps in the same time before."""
    assert job.lighthouse is not None
    before = job.reached()
    time.sleep(FROZEN_S)
    stopped_at = job.reached()
    job.lighthouse.send_signal(signal.SIGSTOP)
    try:
        time.sleep(FROZEN_S)
        after = job.reached()
    finally:
        job.lighthouse.send_signal(signal.SIGCONT)
    job.await_step(after + 5, RECOVERY_TIMEOUT_S)
    return 100.0 * (after - stopped_at) / max(stopped_at - before, 1)
