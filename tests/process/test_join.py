"""Uneven data in real jobs of three replicas (J1): who has none left follows, whoever dies."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.jobs import Job

SCRIPT = """
import json, os, pathlib, sys, time
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

def batches():
    # Slot 2 has data until the test says "enough", if its count is -1.
    number = 0
    while number < COUNTS[slot] or COUNTS[slot] < 0 and not (HERE / "enough").exists():
        if COUNTS[slot] < 0:
            time.sleep(0.02)
        yield number
        number += 1

given = open(HERE / f"{slot}.given", "a")
lines = open(HERE / f"{slot}-{os.environ['FTRUN_INCARNATION']}.jsonl", "a")

try:
    while place["epoch"] < EPOCHS:
        with joined():
            for number in batches():
                inputs, targets = batch(place["epoch"], number)
                step = manager.current_step()
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(network(inputs), targets).backward()
                counts = manager.is_participating()
                if counts:
                    print(json.dumps([step, slot, place["epoch"], number]), file=given, flush=True)
                if MODE == "clip":
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                print("step", manager.current_step(), "of", slot, optimizer.committed, flush=True)
                if optimizer.committed and counts:
                    led = [manager.current_step() - 1, slot, place["epoch"], number]
                    print(json.dumps(led), file=lines, flush=True)
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


Led = list[tuple[int, int, int]]
"""Slot, epoch and number of each batch of a step."""


def planned(counts: list[int], epochs: int) -> list[Led]:
    """The batches of each step if nobody dies."""
    return [
        [(slot, epoch, number) for slot, count in enumerate(counts) if count > number]
        for epoch in range(epochs)
        for number in range(max(counts))
    ]


def led(directory: Path) -> list[Led]:
    """The batches of each step, as the replicas that had data have written them down."""
    found: dict[int, Led] = {}
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            step, slot, epoch, number = json.loads(line)
            found.setdefault(step, []).append((slot, epoch, number))
    return [sorted(found[step]) for step in sorted(found)]


def contributed(directory: Path) -> list[Led]:
    """The batches that were in the average of each step: of a step that a replica has begun twice
    the later one."""
    found: dict[int, dict[int, tuple[int, int, int]]] = {}
    for path in sorted(directory.glob("*.given")):
        for line in path.read_text().splitlines():
            step, slot, epoch, number = json.loads(line)
            found.setdefault(step, {})[slot] = (slot, epoch, number)
    return [sorted(found[step].values()) for step in sorted(found)]


def oracle(steps: list[Led], mode: str = "") -> list[float]:
    """The parameters that one process comes to with all batches of each step."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    ).double()
    adam = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(adam, 0.9)
    for those in steps:
        adam.zero_grad()
        for slot, epoch, number in those:
            seed = torch.Generator().manual_seed(10000 * epoch + 100 * slot + number)
            inputs = torch.rand(5, 4, generator=seed).double()
            targets = torch.rand(5, 1, generator=seed).double()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            (loss / (3 if mode == "by all" else len(those))).backward()
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


@pytest.mark.parametrize(
    "mode",
    [
        "plain",
        "ddp.join",
        pytest.param("by all", marks=pytest.mark.slow),  # the divisors: tests/unit
        "schedule",
        "clip",
    ],
)
def test_uneven_batches_train_what_one_process_does(tmp_path: Path, mode: str) -> None:
    counts = [6, 3, 9]
    steps, is_whole = planned(counts, 2), True
    with start(tmp_path, counts, 2, mode) as job:
        assert job.end() == 0, job.output
        found = ends(tmp_path)
        assert len(found) == 3, job.output
        known = led(tmp_path)
        if mode == "clip":
            # Who forgoes a step interrupts all. A leader that has not got its results by then heals
            # to a step with its own batch in it, is told that it did not commit, and does not count
            # in the step in which it heals: of the last one with data no batch is in that step.
            batches = [one for mine in known for one in mine]
            assert len(set(batches)) == len(batches), job.output
            assert set(batches) <= {one for those in steps for one in those}, job.output
            assert all(len({one[1:] for one in mine}) == 1 for mine in known), job.output
            is_whole = len(contributed(tmp_path)) == len(steps)
            steps = contributed(tmp_path)
        else:
            assert known == steps and sum(map(len, steps)) == 2 * sum(counts), job.output
        expected = oracle(steps, mode) if is_whole else found[0]["parameters"]
        for facts in found.values():
            assert facts["parameters"] == pytest.approx(expected, abs=1e-9)
            assert facts["batches"] == sum(map(len, steps)), job.output
        if mode != "clip":  # after followers that heal in each step, a Join ends a step later
            assert {facts["steps"] for facts in found.values()} == {2 * (9 + 1)}, job.output
        if mode != "ddp.join":
            assert [found[slot]["lasts"] for slot in range(3)] == [[False] * 2] * 2 + [[True] * 2]
        is_told = "It takes their state in each step instead" in job.output
        assert is_told == (mode == "clip"), job.output


def test_all_raise_when_the_first_one_has_no_data(tmp_path: Path) -> None:
    with start(tmp_path, [2, 3, 4], 1, "throw") as job:
        assert job.end() == 0, job.output
        assert "raised in 0 Replica 0 exhausted all inputs." in job.output
        for slot in (1, 2):
            assert f"raised in {slot} Detected at least one replica that exh" in job.output
        found = ends(tmp_path)
        assert [found[slot]["steps"] for slot in range(3)] == [2, 2, 2], job.output
        expected = oracle([[(slot, 0, number) for slot in range(3)] for number in range(2)])
        for facts in found.values():
            assert facts["parameters"] == pytest.approx(expected, abs=1e-9)


def test_the_only_one_with_data_dies_and_nobody_hangs(tmp_path: Path) -> None:
    options = ("--max-restarts", "0", "--min-replicas", "1")
    with start(tmp_path, [3, 2, -1], 1, "plain", *options) as job:
        job.expect(r"step (?:6|7) of 2 True")
        os.kill(job.worker(2), signal.SIGKILL)
        job.expect(r"ended (?:0|1)", 2)
        job.end()
        found = ends(tmp_path)
        assert sorted(found) == [0, 1], job.output
        assert found[0]["steps"] == found[1]["steps"] > 6, job.output
        assert found[0]["parameters"] == found[1]["parameters"]
        assert sorted(found[slot]["lasts"] for slot in (0, 1)) == [[False], [True]], job.output
        # A step whose leader died before it wrote its line may be committed by the others.
        steps = led(tmp_path)
        longer = [*steps, [(2, 0, len(steps))]]
        assert found[0]["parameters"] in (
            pytest.approx(oracle(steps), abs=1e-9),
            pytest.approx(oracle(longer), abs=1e-9),
        ), job.output


def test_a_follower_dies_and_comes_again_and_no_step_is_lost(tmp_path: Path) -> None:
    with start(tmp_path, [3, 2, -1], 1, "plain") as job:
        job.expect(r"step (?:6|7) of 2 True")
        os.kill(job.worker(1), signal.SIGKILL)
        job.expect(r"Replica 1 healed from")
        seen = len(job.expect(r"step \d+ of 2 True"))
        job.expect(r"step \d+ of 2 True", seen + 8)  # the newcomer has led, and follows
        (tmp_path / "enough").write_text("")
        assert job.end() == 0, job.output
        found = ends(tmp_path)
        steps = led(tmp_path)
        assert len(found) == 3 and "of 2 False" not in job.output, job.output
        for facts in found.values():
            assert facts["parameters"] == pytest.approx(oracle(steps), abs=1e-9)
            assert facts["steps"] - 1 == len(steps), job.output
        assert [found[slot]["lasts"] for slot in range(3)] == [[False], [False], [True]]
