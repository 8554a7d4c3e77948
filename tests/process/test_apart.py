"""Several groups without a Manager: reported when certain, with the remedy, and in the summary."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.jobs import Job
from tests.process.test_operators import command

TRAINS_APART = """
import torch, signal
weight = torch.nn.Parameter(torch.ones(1))
weight.grad = torch.ones(1)
optimizer = torch.optim.SGD([weight], lr=1.0)
for _ in range(5):
    optimizer.step()
print("trained", flush=True)
signal.pause()
"""
REMEDY = (
    "For replicas that train together and heal, give the script a Manager (docs/MANAGER.md); for "
    "one training of N workers, use --workers-per-replica N."
)
LIBRARY = """
import ftrun, torch

def fit():
    model = torch.nn.Linear(2, 1)
    manager = ftrun.manager(model.load_state_dict, model.state_dict)
    optimizer = ftrun.Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.01))
    ddp = ftrun.DistributedDataParallel(manager, model)
    while manager.current_step() < 5:
        optimizer.zero_grad()
        ddp(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    print("trained", flush=True)
"""


def test_groups_that_train_apart_are_said_to_while_they_do(tmp_path: Path) -> None:
    with Job(tmp_path, TRAINS_APART, "--replicas", "2") as job:
        job.expect("trained", 2)
        job.expect(
            r"script\.py trains without a Manager, so its 2 replica groups are only supervised"
        )

        def uses() -> list[str]:
            code, text = command(tmp_path, "status", "job", "--json")
            return [x["use"] for x in json.loads(text)["replicas"]] if code == 0 else []

        job.until(lambda: uses() == ["running", "running"], "in the account")
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        assert_said_once_and_in_the_summary(job)


@pytest.mark.parametrize("is_module", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_groups_that_have_ended_apart_are_said_to(tmp_path: Path, is_module: bool) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "tool.py").write_text("print('trained')")
    target = ("-m", "package.tool") if is_module else ()
    with Job(tmp_path, "print('trained')", "--replicas", "2", *target) as job:
        assert job.end() == 0
        name = "package.tool" if is_module else "script.py"
        assert (
            f"{name} has ended without a Manager, so its 2 replica groups are only supervised"
            in job.output
        )
        assert_said_once_and_in_the_summary(job)


def assert_said_once_and_in_the_summary(job: Job) -> None:
    said, summary = re.findall(rf"^(.*) {re.escape(REMEDY)}$", job.output, re.MULTILINE)
    assert "each" in said and said.endswith("by itself.")
    assert summary.endswith("The replica groups ran apart.")


@pytest.mark.parametrize("is_module", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_manager_that_a_library_makes_is_one(tmp_path: Path, is_module: bool) -> None:
    """The script's text is not searched for one."""
    (tmp_path / "library.py").write_text(LIBRARY)
    (tmp_path / "tool.py").write_text("import library\nlibrary.fit()\n")
    target = ("-m", "tool") if is_module else ()
    with Job(tmp_path, "import library\nlibrary.fit()\n", "--replicas", "2", *target) as job:
        assert job.end() == 0
        assert job.output.count("trained") == 2
        assert "without a Manager" not in job.output
        assert "apart" not in job.output
