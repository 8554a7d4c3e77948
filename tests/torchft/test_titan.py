"""torchtitan's ``experiments/torchft`` on ftrun's torchft; skipped where it is not installed.

``pip install torchtitan==0.3.0 triton`` first, in an environment of its own: it brings many
packages. torchtitan imports triton, which PyTorch's CPU build does not bring.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest

from tests.jobs import Job

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        None in map(importlib.util.find_spec, ("torchtitan", "triton")),
        reason="needs torchtitan and triton",
    ),
]
SCRIPT = Path(__file__).with_name("titan.py").read_text()


@pytest.mark.parametrize(("form", "steps", "kills"), [("plain", 160, (20, 70))])
def test_torchtitan_trains_through_kills(
    form: str, steps: int, kills: tuple[int, ...], tmp_path: Path
) -> None:
    options = ("--replicas", "2", "--device", "cpu")
    with Job(tmp_path, SCRIPT, *options, args=(form, str(steps))) as job:
        for number, step in enumerate(kills):
            victim = (number + 1) % 2
            job.expect(rf"^\[{1 - victim}\.0\] step {step}$")
            os.kill(job.worker(victim), signal.SIGKILL)
            job.expect(rf"^ftrun: Replica {victim} healed from replica {1 - victim}: ")
        assert job.end() == 0, job.output[-4000:]
        ends = job.expect(rf"^\[[01]\.0\] end {steps} (\S+)$", 2)
        assert ends[0] == ends[1]
        assert job.left() == []
