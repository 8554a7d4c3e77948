"""Uneven data in real jobs of three replicas (J1): who has none left follows, whoever dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.process.job import Job

SCRIPT = """
import json, os, pathlib, sys
import torch
import ftrun

COUNTS, EPOCHS, MODE = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
HERE = pathlib.Path(__file__).parent
slot = int(os.environ["REPLICA_GROUP_ID"])

torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
adam = torch.optim.AdamW(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.ExponentialLR(adam, 0.9)
place = {"epoch": 0}

def load(state):
    model.load_state_dict(state["model"])
    adam.load_state_dict(state["adam"])
    schedule.load_state_dict(state["schedule"])
    place.update(state["place"])

manager = ftrun.manager(
    load_state_dict=load,
    state_dict=lambda: {"model": model.state_dict(), "adam": adam.state_dict(),
                        "schedule": schedule.state_dict(), "place": dict(place)},
)
optimizer = ftrun.Optimizer(manager, adam)
network = ftrun.DistributedDataParallel(manager, model)
lasts = []

class Hook(ftrun.JoinHook):
    def post_hook(self, is_last_joiner):
        lasts.append(is_last_joiner)

class Noted:
    def join_hook(self, **kwargs):
        return Hook()

def batch(epoch, number):
    generator = torch.Generator().manual_seed(10000 * epoch + 100 * slot + number)
    return torch.rand(5, 4, generator=generator).double(), \\
        torch.rand(5, 1, generator=generator).double()

def joined():
    if MODE == "ddp.join":
        return network.join()
    parts = [network, Noted()] + ([schedule] if MODE == "schedule" else [])
    by_all = {"divide_by_initial_world_size": True} if MODE == "by all" else {}
    return ftrun.Join(parts, throw_on_early_termination=MODE == "throw", **by_all)

def held(number):
    # At a step of its own each replica waits until the test says "go on".
    at = HERE / f"hold-{slot}-{number}"
    if at.exists():
        (HERE / f"at-{slot}").write_text(str(os.getpid()))
        while at.exists():
            ftrun.heartbeat()
            pathlib.os.sched_yield()

try:
    while place["epoch"] < EPOCHS:
        with joined():
            for number in range(COUNTS[slot]):
                held(number)
                inputs, targets = batch(place["epoch"], number)
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(network(inputs), targets).backward()
                if MODE == "clip":
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                print("step", manager.current_step(), "of", slot, optimizer.committed, flush=True)
                if MODE == "schedule":
                    schedule.step()
        place["epoch"] += 1
except RuntimeError as error:
    print("raised in", slot, error, flush=True)
print("ended", slot, flush=True)
facts = {"steps": manager.current_step(), "lasts": lasts, "batches": manager.batches_committed(),
         "parameters": [x for p in model.parameters() for x in p.flatten().tolist()]}
(HERE / f"end-{slot}.json").write_text(json.dumps(facts))
manager.linger()
"""


def oracle(counts: list[int], epochs: int, mode: str = "") -> list[float]:
    """The parameters that one process comes to with all batches of a step."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    ).double()
    adam = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(adam, 0.9)
    for epoch in range(epochs):
        for number in range(max(counts)):
            adam.zero_grad()
            those = [slot for slot, count in enumerate(counts) if count > number]
            for slot in those:
                seed = torch.Generator().manual_seed(10000 * epoch + 100 * slot + number)
                inputs = torch.rand(5, 4, generator=seed).double()
                targets = torch.rand(5, 1, generator=seed).double()
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                (loss / (len(counts) if mode == "by all" else len(those))).backward()
            if mode == "clip":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            adam.step()
            if mode == "schedule":
                schedule.step()
    return [x for p in model.parameters() for x in p.flatten().tolist()]


def ends(directory: Path) -> dict[int, dict[str, Any]]:
    """The facts of each replica at its end."""
    found = {slot: directory / f"end-{slot}.json" for slot in range(3)}
    return {s: json.loads(path.read_text()) for s, path in found.items() if path.exists()}


def start(directory: Path, counts: list[int], epochs: int, mode: str, *options: str) -> Job:
    args = (json.dumps(counts), str(epochs), mode)
    return Job(directory, SCRIPT, "--replicas", "3", "--device", "cpu", *options, args=args)


@pytest.mark.parametrize("mode", ["plain", "ddp.join", "by all", "schedule", "clip"])
def test_uneven_batches_train_what_one_process_does(tmp_path: Path, mode: str) -> None:
    counts = [6, 3, 9]
    with start(tmp_path, counts, 2, mode) as job:
        assert job.end() == 0, job.output
        found = ends(tmp_path)
        assert len(found) == 3, job.output
        for facts in found.values():
            assert facts["parameters"] == pytest.approx(oracle(counts, 2, mode), abs=1e-9)
            assert facts["batches"] == 2 * sum(counts)
        if mode != "clip":  # where a follower heals in each step, there may be more empty ones
            assert {facts["steps"] for facts in found.values()} == {2 * (9 + 1)}, job.output
            assert "not committed" not in job.output
        if mode != "ddp.join":
            assert [found[slot]["lasts"] for slot in range(3)] == [[False] * 2] * 2 + [[True] * 2]
        told = job.output.count("takes their state in each step instead") or job.output.count(
            "cannot step like the others"
        )
        assert bool(told) == (mode == "clip"), job.output
