"""Each sample once per epoch (D1), on real jobs whose workers die by ``kill -9`` at any moment."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.process.job import Job
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


@pytest.mark.parametrize("workers", [0, 2], ids=["in the script", "two loader workers"])
def test_each_sample_once_whatever_dies(tmp_path: Path, workers: int) -> None:
    kills = "1@4:backward,0@9:draw,2@13:committed"
    exactly_once(run(tmp_path, workers, kills, {"batch_size": 4}))


def test_each_sample_once_with_two_workers_in_each_replica(tmp_path: Path) -> None:
    exactly_once(run(tmp_path, 0, "1@3:backward,0@8:draw", {"batch_size": 3}, ranks=2))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_each_sample_once_at_random_moments(tmp_path: Path, seed: int) -> None:
    exactly_once(run(tmp_path, seed % 3, kills_at(seed, 2), {"batch_size": 4}))


def test_a_global_batch(tmp_path: Path) -> None:
    """The same samples in each step: equal losses and parameters but for the order of additions."""
    rules = {"batch_size": 4}
    options = ("--global-batch", "16")
    calm = run(tmp_path / "a", 0, "", rules, *options)
    lines = run(tmp_path / "b", 2, "1@4:backward,0@9:draw,1@15:forward", rules, *options)
    for each in (calm, lines):
        exactly_once(each)
        assert each.sizes() == ([16] * 12 + [11]) * EPOCHS
    assert lines.losses() == pytest.approx(calm.losses(), rel=1e-7)
    left, right = parameters(tmp_path / "a"), parameters(tmp_path / "b")
    assert left["0.0"] == pytest.approx(right["0.0"], abs=1e-8)


@pytest.mark.parametrize("workers", [0, 2], ids=["in the script", "two loader workers"])
def test_an_unmodified_script_trains_each_sample_once(tmp_path: Path, workers: int) -> None:
    kills = ("1@4:draw", "0@9:between", "2@14:draw")
    args = (str(EPOCHS), str(SAMPLES), str(workers), ",".join(kills))
    options = ("--replicas", "3", "--inject", "ddp", "--data", "exactly-once")
    with Job(tmp_path, UNMODIFIED, *options, args=args) as job:
        assert job.end() == 0, job.output
        ended = parameters(tmp_path)
        assert len(ended) == 3 and ended["0.0"] == ended["1.0"] == ended["2.0"], job.output
        assert all((tmp_path / kill).exists() for kill in kills), job.output
        assert "not committed" not in job.output
    batches = [json.loads(x) for p in tmp_path.glob("*.jsonl") for x in p.read_text().splitlines()]
    for epoch in range(EPOCHS):
        found = [indices for number, indices in batches if number == epoch]
        counted = Counter(index for indices in found for index in indices)
        twice = {index for index in counted if counted[index] > 1}
        assert set(counted) == set(range(SAMPLES)), f"D1: left out in epoch {epoch}"
        # A replica that has none left at the epoch's end has the first ones again, for nothing.
        assert not twice or twice in map(set, found), f"D1: twice in epoch {epoch}: {twice}"


def test_a_script_without_a_sampler_cannot_keep_a_global_batch(tmp_path: Path) -> None:
    script = "import ftrun\nftrun.manager().start_quorum()\n"
    with Job(tmp_path, script, "--replicas", "2", "--global-batch", "8") as job:
        assert job.end() != 0
        assert "--global-batch 8: this script has made no ftrun.ElasticSampler" in job.output
