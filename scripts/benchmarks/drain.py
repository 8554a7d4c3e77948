"""A node is drained: the cost for the replicas that train on.

ftrun: SIGTERM to one agent of two. torchft has no drain: SIGTERM to the same number of groups,
which are not restarted. Measured is the survivors' longest step from then until the drained
processes are gone and the survivors have taken some more steps.
"""

from __future__ import annotations

import os
import random
import signal
import time

import psutil

from benchmarks.jobs import Job, read, run_job
from benchmarks.join import judge
from benchmarks.results import Result, Row

PEERS = ("ftrun", "torchft")
NODES = 2
TIMEOUT_S = 60.0
CALM_STEPS = 40
STEPS_AFTER = 10
GRACE_SHARE_S = 20.0  # of 30 s: a replica that has not left by then gets a SIGTERM


def measure(replicas: int, rounds: int, seed: int) -> Result:
    """``rounds`` jobs of each peer in turn; one of two nodes is drained in each."""
    rng = random.Random(seed)
    found: dict[str, list[tuple[float, float]]] = {peer: [] for peer in PEERS}
    for _ in range(rounds):
        for peer in PEERS:
            with run_job(peer, replicas, nodes=NODES) as job:
                found[peer] += _drain_one(job, rng)
                job.stop()

    def column(index: int) -> dict[str, list[float]]:
        return {peer: [1000 * times[index] for times in rows] for peer, rows in found.items()}

    return Result(
        "drain",
        f"One of {NODES} nodes with {replicas} workers is drained, {rounds} times",
        [
            Row("drain_stall_ms", "each survivor's longest step at a drain, beyond the median",
                "ms", column(0)),
            Row("step_ms", "survivors' median step", "ms", column(1)),
        ],
        notes=["torchft has no drain: its groups end at SIGTERM and stay away."],
    )  # fmt: skip


def _drain_one(job: Job, rng: random.Random) -> list[tuple[float, float]]:
    """For each survivor: its worst stall and its median step, in seconds."""
    job.await_step(job.reached() + CALM_STEPS, TIMEOUT_S)
    time.sleep(rng.random() * 0.05)
    targets, leaving = _node(job)
    survivors = set(range(job.replicas)) - leaving
    leavers = [job.pid(replica) for replica in leaving]
    job.gone |= leaving
    began = time.monotonic()
    for pid in targets:
        os.kill(pid, signal.SIGTERM)
    left = [psutil.Process(pid) for pid in leavers if psutil.pid_exists(pid)]
    psutil.wait_procs(left, TIMEOUT_S)
    gone = time.monotonic()
    if not 0 < len(survivors) < job.replicas or any(p.is_running() for p in left):
        raise RuntimeError(f"{job.peer}: replicas {sorted(leaving)} should have left")
    if gone - began > GRACE_SHARE_S and job.peer == "ftrun":
        raise RuntimeError(f"{gone - began:.1f} s: that was no leave at a boundary")
    job.await_step(job.reached() + CALM_STEPS, TIMEOUT_S, survivors)
    found = []
    for replica in sorted(survivors):
        lines = read(job.newest(replica))
        after = [line.when for line in lines if line.committed and line.when > gone]
        found.append(judge(lines, began, after[STEPS_AFTER]))
    return found


def _node(job: Job) -> tuple[list[int], set[int]]:
    """The processes that get a SIGTERM, and the replicas that leave: the last node's."""
    pids = {replica: job.pid(replica) for replica in range(job.replicas)}
    if job.peer != "ftrun":
        leaving = set(range(job.replicas - job.replicas // NODES, job.replicas))
        return [pids[replica] for replica in leaving], leaving
    agent = job.launched[-1].pid
    of_agent = {process.pid for process in psutil.Process(agent).children(recursive=True)}
    return [agent], {replica for replica, pid in pids.items() if pid in of_agent}
