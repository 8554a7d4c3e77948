"""Forty chaos runs by seed: each fault at least once, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.run import draw

REPOSITORY = Path(__file__).parents[2]
RUNS, RUNS_AT_A_TIME = 40, 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, RUNS, RUNS_AT_A_TIME))
def test_jobs_survive_their_seeds(first: int) -> None:
    command = [sys.executable, "scripts/chaos.py", "--seed", str(first)]
    command += ["--runs", str(RUNS_AT_A_TIME), "--jobs", "2"]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "CHAOS_PATIENCE": "6"},
        capture_output=True,
        text=True,
        timeout=3500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Small disks and network namespaces need root; nothing else may be skipped.
    skipped = [line for line in done.stdout.splitlines() if "  skipped " in line]
    assert all(" disk: " in line or " nodes: " in line for line in skipped), done.stdout


def test_a_seed_is_a_plan_and_forty_of_them_are_every_fault() -> None:
    assert [draw(seed) for seed in range(100)] == [draw(seed) for seed in range(100)]
    named = {name for seed in range(RUNS) for name in draw(seed).faults}
    assert named == set(FAULTS)
    for seed in range(1000):
        plan = draw(seed)
        assert all(plan.stage in FAULTS[name].stages for name in plan.faults)
        assert not any(FAULTS[name].ends for name in plan.faults[:-1])
