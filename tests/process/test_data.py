"""Each sample once per epoch (D1), on real jobs whose workers die by ``kill -9`` at any moment."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.jobs import Job
from tests.process.sampled import SCRIPT, UNMODIFIED, Lines, parameters

EPOCHS, SAMPLES = 3, 203
MOMENTS = ("draw", "forward", "backward", "committed")


def run(
    directory: Path, workers: int, kills: str, rules: dict[str, int], *options: str, ranks: int = 1
) -> Lines:
    """A job of three replicas; all come to the end, equal ranks with equal parameters."""
    directory.mkdir(exist_ok=True)
    args = (str(EPOCHS), str(SAMPLES), str(workers), kills, json.dumps(rules))
    size = ("--replicas", "3", "--workers-per-replica", str(ranks))
    with Job(directory, SCRIPT, *size, *options, args=args) as job:
        assert job.end() == 0, job.output
        ended = parameters(directory)
        assert len(ended) == 3 * ranks, job.output
        for rank in range(ranks):
            assert ended[f"0.{rank}"] == ended[f"1.{rank}"] == ended[f"2.{rank}"], job.output
        for kill in filter(None, kills.split(",")):
            assert (directory / kill).exists(), f"{kill} was not reached"
    return Lines(directory, ranks)


def exactly_once(lines: Lines) -> None:
    """D1."""
    found = lines.trained()
    assert sorted(found) == list(range(EPOCHS))
    for epoch, counted in found.items():
        wrong = {x: counted[x] for x in range(SAMPLES) if counted[x] != 1}
        assert not wrong, f"D1: in epoch {epoch}, samples and how often: {wrong}"


def kills_at(seed: int, count: int) -> str:
    """Kills of different replicas at random moments of steps that lie apart."""
    rng = random.Random(seed)
    steps = sorted(rng.sample(range(3, 17), count))
    return ",".join(f"{rng.randrange(3)}@{step}:{rng.choice(MOMENTS)}" for step in steps)


@pytest.mark.parametrize(
    "workers",
    [pytest.param(0, marks=pytest.mark.slow), 2],  # without loader workers: a global batch, below
    ids=["in the script", "two loader workers"],
)
def test_an_unmodified_script_trains_each_sample_once(tmp_path: Path, workers: int) -> None:
    options = ("--inject", "ddp", "--data", "exactly-once")
    output = unmodified(tmp_path, workers, ("1@4:draw", "0@9:between", "2@14:draw"), *options)
    # Who has not all results of its peer's last step heals it from the others, which have.
    assert re.findall(r"(\d+) of \d+ steps were not committed", output) in ([], ["1"]), output


def test_an_unmodified_script_keeps_a_global_batch(tmp_path: Path) -> None:
    """It takes the same steps on the same samples as one in which nobody dies."""
    options = ("--global-batch", "24")
    output = unmodified(tmp_path / "a", 0, ("1@4:draw", "0@9:between"), *options)
    unmodified(tmp_path / "b", 0, (), *options)
    assert "each sample once, 24 in each step of all replicas" in output
    assert f"Summary: {EPOCHS * -(-SAMPLES // 24)} steps" in output
    left, right = (parameters(tmp_path / name)["0.0"] for name in "ab")
    assert left == pytest.approx(right, abs=1e-4)


def unmodified(directory: Path, workers: int, kills: tuple[str, ...], *options: str) -> str:
    """A job of three replicas of the script; they come to the end alike. Returns its output."""
    directory.mkdir(exist_ok=True)
    args = (str(EPOCHS), str(SAMPLES), str(workers), ",".join(kills))
    with Job(directory, UNMODIFIED, "--replicas", "3", *options, args=args) as job:
        assert job.end() == 0, job.output
        ended = parameters(directory)
        assert len(ended) == 3 and ended["0.0"] == ended["1.0"] == ended["2.0"], job.output
        assert all((directory / kill).exists() for kill in kills), job.output
        output = job.output
    lines = [json.loads(x) for p in directory.glob("*.jsonl") for x in p.read_text().splitlines()]
    for epoch in range(EPOCHS):
        found, others = (
            [indices for number, trained, indices in lines if (number, trained) == (epoch, wanted)]
            for wanted in (True, False)
        )
        counted = Counter(index for indices in found for index in indices)
        twice = {index for index in counted if counted[index] > 1}
        left = set(range(SAMPLES)) - set(counted)
        # One whose peer dies right after a step may not have that step's results: it heals, and its
        # batch is in what the others have committed.
        assert not left or left in map(set, others), f"D1: left out in epoch {epoch}: {left}"
        assert not left or any(kill.endswith(":between") for kill in kills), left
        # A replica that has none left at the epoch's end has the first ones again, for nothing.
        assert not twice or twice in map(set, found), f"D1: twice in epoch {epoch}: {twice}"
    return output


def test_a_script_without_a_sampler_cannot_keep_a_global_batch(tmp_path: Path) -> None:
    script = "import ftrun\nftrun.manager().start_quorum()\n"
    with Job(tmp_path, script, "--replicas", "2", "--global-batch", "8") as job:
        assert job.end() != 0
        assert "--global-batch 8: this script has made no ftrun.ElasticSampler" in job.output
