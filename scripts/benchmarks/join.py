"""A join, separate from the death before it: the cost for the replicas that train already.

A worker is killed. Its replacement starts, imports everything, and waits in its script until the
survivors have trained on for long; only then it joins. Measured is the survivors' longest step from
then until the newcomer has committed a few steps.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Sequence

from benchmarks.jobs import Job, Line, read, run_job
from benchmarks.results import Result, Row
from tests.jobs import wait

PEERS = ("ftrun", "torchft")
TIMEOUT_S = 60.0
CALM_STEPS = 40
STEPS_TOGETHER = 5


def measure(replicas: int, joins: int, rounds: int, seed: int) -> Result:
    """``rounds`` jobs of each peer in turn, ``joins`` late replacements in each."""
    rng = random.Random(seed)
    found: dict[str, list[tuple[float, float, float]]] = {peer: [] for peer in PEERS}
    for _ in range(rounds):
        for peer in PEERS:
            with run_job(peer, replicas, awaits_go=1) as job:
                found[peer] += [join_one(job, rng) for _ in range(joins)]
                job.stop()

    def column(index: int) -> dict[str, list[float]]:
        return {peer: [1000 * times[index] for times in rows] for peer, rows in found.items()}

    return Result(
        "join",
        f"A replacement joins {replicas - 1} workers that train, {joins * rounds} times",
        [
            Row("join_stall_ms", "survivors' longest step at a join, beyond the median", "ms",
                column(0)),
            Row("joined_ms", "the newcomer's Manager begins → its first committed step", "ms",
                column(1)),
            Row("step_ms", "survivors' median step", "ms", column(2)),
        ],
        notes=["The death before it is over by then: the newcomer waits until they have gone on."],
    )  # fmt: skip


def join_one(
    job: Job, rng: random.Random, calm_steps: int = CALM_STEPS
) -> tuple[float, float, float]:
    """A survivor's worst stall, the newcomer's time to its first commit, the median step; seconds.

    Between the death and the join, and after it, all take ``calm_steps`` steps.
    """
    victim = rng.randrange(job.replicas)
    go = job.out / "go"
    go.unlink(missing_ok=True)
    before = job.newest(victim).name
    survivors = set(range(job.replicas)) - {victim}
    killed_at = job.reached()
    job.kill(victim)
    job.await_step(killed_at + calm_steps, TIMEOUT_S, survivors)
    time.sleep(rng.random() * 0.05)
    began = time.monotonic()
    go.touch()
    wait(lambda: job.newest(victim).name != before, "the newcomer", TIMEOUT_S)
    job.await_step(1, TIMEOUT_S, {victim})
    job.await_step(job.reached() + calm_steps, TIMEOUT_S)
    commits = [line.when for line in read(job.newest(victim)) if line.committed]
    ended = commits[min(STEPS_TOGETHER, len(commits) - 1)]
    each = [judge(read(job.newest(replica)), began, ended) for replica in survivors]
    stall, step = max(each)
    return stall, commits[0] - began, step


def judge(lines: Sequence[Line], began: float, ended: float) -> tuple[float, float]:
    """The longest step that overlaps ``began`` to ``ended``, beyond the median; the median."""
    commits = [line.when for line in lines if line.committed]
    steps = list(itertools.pairwise(commits))
    median = statistics.median(after - before for before, after in steps)
    longest = max(after - before for before, after in steps if after > began and before < ended)
    return longest - median, median
