"""The first node of a step is lost, with the lighthouse that leads: another one takes over."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

from tests.engines.job import FTRUN, LIGHTHOUSE, TRAIN, SlurmJob
from tests.engines.slurm import Slurm
from tests.jobs.process import END_S, LOOK_S

OPTIONS = ("--nodes=4", "--ntasks-per-node=1", "--job-name=train", "--no-kill")
WORKER = r"^ftrun worker"
FTRUN_OWN = r" -m ftrun |^ftrun "


class Spread(SlurmJob):
    """Each node writes a file of its own, because srun is on the node that is lost."""

    @property
    def output(self) -> str:
        """Of all nodes, one after the other."""
        return "".join(self.of(node) for node in range(4))

    def of(self, node: int) -> str:
        """What one node has printed."""
        path = self.directory / f"out.n{node}"
        return path.read_text() if path.exists() else ""


def test_the_first_node_is_lost_and_membership_changes_again(slurm: Slurm, tmp_path: Path) -> None:
    line = f"srun --no-kill --output={tmp_path}/out.%N {FTRUN} --replicas 4 {TRAIN}"
    job = Spread(slurm, tmp_path, OPTIONS, line, {"STEPS": "160"})
    with job:
        job.expect(r"step 10 of 4", 4)
        os.kill(job.process(2, LIGHTHOUSE), signal.SIGKILL)  # of one that stands by
        job.expect("The lighthouse on n2 died: SIGKILL. It restarts; training continues")
        job.expect(r"step 30 of 4", 4)

        off = time.monotonic()
        slurm.power_off(0)
        job.expect(r"The lighthouse is now at \S+ \(epoch \d+\)\. It was at 10\.", 3)
        other_s = time.monotonic() - off
        job.expect(r"Replicas \d, \d and \d train in quorum")
        print(f"another lighthouse {other_s:.1f} s, a quorum {time.monotonic() - off:.1f} s after")

        os.kill(job.process(1, WORKER), signal.SIGKILL)
        killed = time.monotonic()
        (mine,) = set(re.findall(r"\[(\d)\.0\] begins on n1", job.of(1)))
        job.expect(rf"Replica {mine} joined")
        print(f"a killed worker's replica joined after {time.monotonic() - killed:.1f} s")
        job.expect("done at 160", 4)  # the lost node's replica too, on another one
        # srun was lost with the batch script, and Slurm would keep the job until its time limit.
        await_state(job, "CANCELLED", "COMPLETING")
        await_the_end_on(slurm, 1, 2, 3)
        assert list(tmp_path.glob("ftrun-logs/*/lighthouse-*")) == []
        for node in (2, 3):
            first = re.findall(r"\[(\d)\.0\] begins on", job.of(node))[0]
            steps = re.findall(rf"\[{first}\.0\] step (\d+) of", job.of(node))
            assert steps == [str(step) for step in range(10, 161, 10)], f"node {node}"
        slurm.power_on(0)
        slurm.await_nodes(len(slurm.machines.nodes))


def await_state(job: SlurmJob, *states: str) -> None:
    end = time.monotonic() + END_S
    while (state := job.state()) not in states:
        assert time.monotonic() < end, f"{state}:\n{job.output}"
        time.sleep(10 * LOOK_S)


def await_the_end_on(slurm: Slurm, *nodes: int) -> None:
    """Wait until nothing of ftrun runs there."""
    end = time.monotonic() + END_S
    while left := [
        line
        for node in nodes
        for line in slurm.machines.nodes[node].processes().values()
        if re.search(FTRUN_OWN, line)
    ]:
        assert time.monotonic() < end, left
        time.sleep(LOOK_S)
