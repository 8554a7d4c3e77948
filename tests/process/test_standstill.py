"""Loops that stand still in real jobs: found, shown with their place, replaced; pauses are not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs import THIS_TREE
from tests.jobs import run as run_command

TIMEOUT_S = 240
MANAGED = """
import os, threading, time, torch, ftrun
manager = ftrun.manager()
model = torch.nn.Linear(2, 1)
ddp = ftrun.DistributedDataParallel(manager, model)
optimizer = ftrun.Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.1))
manager.register_state_dict_fn("m", model.load_state_dict, model.state_dict)

def never_comes():
    threading.Event().wait()

while manager.current_step() < 60:
    optimizer.zero_grad()
    is_late = os.environ["REPLICA_GROUP_ID"] == "1" and not os.path.exists("once")
    if is_late and manager.current_step() == 10:
        with ftrun.paused("eval"):
            time.sleep(6)
    if is_late and manager.current_step() == 40:
        open("once", "w").close()
        never_comes()
    ddp(torch.ones(1, 2)).sum().backward()
    time.sleep(0.1)
    optimizer.step()
"""
FIRST_STEPS = """
import os, threading, torch, ftrun
manager = ftrun.manager(init_sync=False)
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
ddp = ftrun.DistributedDataParallel(manager, model)
optimizer = ftrun.Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.1))
manager.register_state_dict_fn("m", model.load_state_dict, model.state_dict)

def never_comes():
    threading.Event().wait()

while manager.current_step() < 5:
    optimizer.zero_grad()
    is_at = manager.current_step() == int(os.environ["AT"])
    if is_at and os.environ["REPLICA_GROUP_ID"] == "1" and not os.path.exists("once"):
        open("once", "w").close()
        never_comes()
    ddp(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""
ALONE = """
import os, threading, time, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    time.sleep(0.01 if os.path.exists("once") else 1.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if step == 6 and not os.path.exists("once"):
        open("once", "w").close()
        threading.Event().wait()
"""


def run(directory: Path, script: str, *options: str, **environment: str) -> str:
    """What a job prints; it must end well."""
    (directory / "train.py").write_text(script)
    done = run_command(
        [sys.executable, "-m", "ftrun", *options, "train.py"],
        cwd=directory,
        env={**os.environ, **THIS_TREE, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.timeout(TIMEOUT_S + 10)
def test_peers_wait_so_the_one_that_stands_still_is_shown_and_replaced(tmp_path: Path) -> None:
    """An announced pause before is longer than the limit, and is waited for."""
    text = run(tmp_path, MANAGED, "--replicas", "3", "--hang-timeout", "4")
    assert "(it is in an announced pause: eval)" in text
    assert "replica 1 hangs: worker 0 in wait (threading.py:" in text
    assert "< never_comes (train.py:" in text
    assert "replica 1 was given up: stands still in step 40: the others have waited for it" in text
    assert text.count("Restart 1 of 10") == 1
    (log,) = tmp_path.glob("ftrun-logs/*/replica_1/rank_0/0.log")
    assert "in never_comes" in log.read_text()


@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize("step", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_one_that_stands_still_in_its_first_steps_is_found_too(tmp_path: Path, step: int) -> None:
    text = run(tmp_path, FIRST_STEPS, "--replicas", "3", "--hang-timeout", "1", AT=str(step))
    assert "< never_comes (train.py:" in text
    found = re.search(
        rf"replica 1 was given up: stands still in step {step}: the others have waited for it "
        r"for (\d+) s, and (it has made no step yet|a step usually takes)",
        text,
    )
    assert found is not None, text
    assert int(found[1]) >= 10  # ten times --hang-timeout, and no operation's timeout has passed
    assert "attempts without progress" not in text
    assert text.count("Restart 1 of 10") == 1


@pytest.mark.timeout(TIMEOUT_S + 10)
def test_a_script_without_a_manager_is_judged_by_its_own_steps(tmp_path: Path) -> None:
    text = run(tmp_path, ALONE, "--hang-factor", "3")
    assert "replica 0 hangs: its loop has stood still for" in text
    assert "< <module> (train.py:" in text
