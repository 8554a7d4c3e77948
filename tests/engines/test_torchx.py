"""``torchx run -s slurm ftrun.train``: each node is a part of a heterogeneous job.

Skipped where TorchX is not installed: it holds other packages back (tests/process/test_torchx.py).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.job import AGENT, TRAIN, SlurmJob
from tests.engines.slurm import ASK_S, Slurm
from tests.jobs.forks import ROOT

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchx") is None, reason="needs TorchX")
WORDS = (
    "run", "-s", "slurm", "-cfg", "partition=all", "ftrun.train", "--nodes", "3",
    "--replicas", "3", "--cpu", "1", "--memMB", "900", "--name", "torchx-train",
    "--options", "--device cpu", "--script", TRAIN,
)  # fmt: skip


class TorchxJob(SlurmJob):
    """What TorchX has submitted; each node's output is in files of its own."""

    def __init__(self, slurm: Slurm, directory: Path, steps: int) -> None:
        self.slurm, self.directory = slurm, directory
        torchx = Path(sys.executable).with_name("torchx")
        variables = {"PYTHONPATH": str(ROOT), "STEPS": str(steps),
                     "XDG_STATE_HOME": str(directory / "state")}  # fmt: skip
        line = f"cd {directory} && {torchx} {shlex.join(WORDS)}"
        done = subprocess.run(
            slurm.command("sh", "-c", line), env={**os.environ, **variables},
            capture_output=True, text=True, timeout=2 * ASK_S, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        listed = slurm.ask("squeue", "-h", "-o", "%i").split()  # TorchX fails to read a queued one
        assert listed, said
        self.id = min(re.findall(r"^(\d+)", "\n".join(listed), re.MULTILINE), key=int)

    @property
    def output(self) -> str:
        """What all nodes have printed."""
        files = sorted(self.directory.glob("slurm-*"))
        return "\n".join(path.read_text() for path in files)


def test_nodes_of_torchx_find_each_other_and_a_killed_agent_ends_nothing(
    slurm: Slurm, tmp_path: Path
) -> None:
    with TorchxJob(slurm, tmp_path, 250) as job:
        hosts = job.expect(r"begins on n(\d)", 3)
        assert len(set(hosts)) == 3
        job.expect(r"step 10 of 3", 3)
        killed = next(int(host) for host in hosts if host != "0")
        os.kill(job.process(killed, AGENT), signal.SIGKILL)
        job.expect(rf"The agent on n{killed} \(pid \d+\) died: SIGKILL. It restarts")
        job.expect("joined at step")
        assert len(job.expect(r"done at 250", 3)) == 3
        assert job.end() == ("COMPLETED", "0:0")
        assert job.left() == ""
