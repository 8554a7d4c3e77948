"""A script that makes its world in another process than the worker: it runs, and a line says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.core.agent.words import ELSEWHERE
from tests.jobs import Job

SCRIPT = """
import os, pathlib, signal, subprocess, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

HERE, WAY, DIES = pathlib.Path(__file__).parent, sys.argv[1], sys.argv[2:]

def train():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.full((2, 4), rank + 1.0)).sum().backward()
        optimizer.step()
        if DIES and (rank, step) == (1, 2) and not (HERE / "died").exists():
            (HERE / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    print(f"END {rank} of {dist.get_world_size()} {type(dist.group.WORLD).__name__}", flush=True)
    del model, optimizer  # torch deadlocks if a Reducer is the last that has the group
    dist.destroy_process_group()
    os._exit(0)  # at an interpreter's end torch has aborted now and then, as without ftrun

if __name__ == "__main__":
    is_again = "IS_AGAIN" in os.environ
    os.environ["IS_AGAIN"] = "1"
    if is_again:
        train()
    elif WAY == "exec":
        os.execv(sys.executable, [sys.executable, *sys.argv])
    elif WAY == "subprocess":
        sys.exit(subprocess.run([sys.executable, *sys.argv]).returncode)
    elif WAY == "spawn":
        child = mp.get_context("spawn").Process(target=train)
        child.start()
        child.join()
        sys.exit(child.exitcode)
    else:
        pid = os.fork()
        if pid == 0:
            train()
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize("way", ["subprocess", "spawn", "fork"])
def test_it_runs_as_one_world_and_is_said_not_to_heal(way: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with Job(tmp_path, script, "--replicas", "2", args=(way,)) as job:
        code, output = job.end(), job.output
    assert code == 0, output
    assert {"END 0 of 2 ProcessGroup", "END 1 of 2 ProcessGroup"} <= {
        line.partition("] ")[2] for line in output.splitlines()
    }, output
    assert output.count(ELSEWHERE[1:]) == 1, output
    assert "Manager" not in output and "ran apart" not in output, output


def test_when_one_dies_the_job_begins_again_as_one_world(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with Job(tmp_path, script, "--replicas", "2", args=("exec", "dies")) as job:
        code, output = job.end(), job.output
    assert code == 0, output
    assert ELSEWHERE[1:] in output, output
    assert output.count("ftrun restarts the job as torchrun would") == 1, output
    assert "END 0 of 2" in output and "END 1 of 2" in output, output
