"""A donor that cannot give its state to a newcomer: it trains on, and the newcomer alone ends.

One donor: of two, the one whose reduction the newcomer's end breaks after the other's is complete
would have to heal as well, and could not either.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.jobs import Job

TRAIN = """
import os, pathlib, signal, sys, threading, time
import torch, ftrun
here = pathlib.Path(sys.argv[1])
me = os.environ["REPLICA_GROUP_ID"]
weight = torch.zeros(3)
state = {"weight": weight, "best": None}


def load(given):
    weight.copy_(given["weight"])
    state["best"] = given["best"]


manager = ftrun.manager(load, lambda: state)
while True:
    manager.start_quorum()
    mean, stop = torch.ones(3), torch.tensor([float((here / "stop").exists())])
    for reduced in (manager.allreduce(mean), manager.allreduce(stop)):
        reduced.wait()
    if manager.should_commit():
        weight += mean
        if stop.item():  # all end at one step
            break
    if (here / "mended").exists():
        state["best"] = pathlib.Path("best")
    elif manager.current_step() >= 3:
        state["best"] = threading.Lock()
    if me == "1" and manager.current_step() >= 5 and not (here / "died").exists():
        (here / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    print("trains", manager.num_participants(), flush=True)
    time.sleep(0.05)
print("END", manager.current_step() == int(weight[0]), state["best"], flush=True)
"""


def test_the_newcomer_ends_alone_and_heals_once_the_state_can_be_carried(tmp_path: Path) -> None:
    with Job(tmp_path, TRAIN, "--replicas", "2", args=(str(tmp_path),)) as job:
        words = "Replica 0 cannot give its state to others: state_dict key 'user.default.best'"
        job.expect(rf"{words} holds a _thread.lock.*It trains on")
        job.expect("Replica 1 is given up: .*this replica cannot heal, and ends; the others train")
        job.expect(r"\] trains 1")
        (tmp_path / "mended").touch()
        root = str(Path(__file__).parents[2])
        state = str(job.directory / "state")
        environment = {**os.environ, "XDG_STATE_HOME": state, "PYTHONPATH": root}
        command = [sys.executable, "-m", "ftrun", "restart", "job", "1"]
        subprocess.run(command, env=environment, timeout=60, check=True)
        job.expect(r"Replica 1 healed from replica 0(?s:.*)\] trains 2")
        (tmp_path / "stop").touch()
        assert job.end() == 0
        assert job.output.count("END True best") == 2
        assert "Training restarts" not in job.output
        assert job.left() == []
