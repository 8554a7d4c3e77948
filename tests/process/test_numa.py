"""``--numa-binding`` in a real job: forked workers and standbys are bound before the script."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ftrun.agent import numa
from tests.jobs import Job

BOUND = """
import os, signal, torch
cpus = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0)))
print("bound", os.environ["RANK"], cpus, torch.get_num_threads() <= len(cpus), flush=True)
signal.pause()
"""


def cores() -> int:
    topology = numa.read_topology(numa.EXCLUSIVE, os.sched_getaffinity(0))
    return min(len({topology.cores[cpu] for cpu in cpus}) for cpus in topology.nodes.values())


@pytest.mark.skipif(cores() < 2, reason="two workers need a core each")
def test_two_workers_and_a_replacement_have_cores_of_their_own(tmp_path: Path) -> None:
    options = ("-w", "2", "--numa-binding", "exclusive", "--standby", "1")
    with Job(tmp_path, BOUND, *options) as job:
        first = set(job.expect(r"bound (\d) ([\d,]+) True", 2))
        assert [rank for rank, _ in sorted(first)] == ["0", "1"]  # type: ignore[str-unpack]
        own = [set(cpus.split(",")) for _, cpus in first]  # type: ignore[str-unpack]
        assert own[0].isdisjoint(own[1])
        job.expect_process("ftrun standby-")
        os.kill(job.worker(0), signal.SIGKILL)
        assert set(job.expect(r"bound (\d) ([\d,]+) True", 4)[2:]) == first
        job.signal(signal.SIGKILL)
        assert job.left() == []
