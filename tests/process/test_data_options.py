"""``--data exactly-once`` and ``--global-batch`` are honoured or refused by every script."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import Job

pytestmark = pytest.mark.timeout(300)
PLAIN = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(5):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
print("trained", flush=True)
"""
EXPLICIT = """
import ftrun, torch
model, manager = torch.nn.Linear(4, 1), ftrun.manager()
ddp = ftrun.DistributedDataParallel(manager, model)
optimizer = ftrun.Optimizer(manager, torch.optim.SGD(model.parameters(), 0.1))
manager.register_state_dict_fn("model", model.load_state_dict, model.state_dict)
for _ in range(5):
    optimizer.zero_grad()
    ddp(torch.ones(1, 4)).sum().backward()
    optimizer.step()
print("trained", flush=True)
"""
WORLD = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.new_group([0])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(5):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
print("trained", flush=True)
"""
REPLICAS = ("--replicas", "2")
ONE = ("--nproc-per-node", "2")


@pytest.mark.parametrize(
    ("source", "shape", "option"),
    [
        (PLAIN, REPLICAS, "--data exactly-once"),
        pytest.param(PLAIN, REPLICAS, "--global-batch 8", marks=pytest.mark.slow),
        (PLAIN, ONE, "--data exactly-once"),
        pytest.param(EXPLICIT, REPLICAS, "--data exactly-once", marks=pytest.mark.slow),
        (EXPLICIT, REPLICAS, "--global-batch 8"),
        (WORLD, REPLICAS, "--data exactly-once"),
    ],
)
def test_a_script_that_chooses_its_samples_is_refused(
    source: str, shape: tuple[str, ...], option: str, tmp_path: Path
) -> None:
    with Job(tmp_path, source, "--device", "cpu", *shape, *option.split()) as job:
        assert job.end() in (1, 2), job.output  # by the script's first steps, or at the start
    assert option in job.output and "ftrun.ElasticSampler" in job.output
    assert "] trained" not in job.output


def test_a_script_that_trains_nothing_is_told(tmp_path: Path) -> None:
    options = ("--device", "cpu", *REPLICAS, "--data", "exactly-once")
    with Job(tmp_path, "print('done')", *options) as job:
        assert job.end() == 0, job.output
    assert "--data exactly-once had no effect: nothing trained" in job.output
