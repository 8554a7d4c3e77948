"""``torchx run ftrun.train``, by TorchX's local scheduler; skipped where TorchX is not installed.

``pip install torchx`` first: it holds other packages back, so the development install lacks it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("torchx") is None, reason="needs TorchX"),
]
SCRIPT = """
import sys, ftrun
manager = ftrun.manager()
print("arguments", sys.argv[1:], flush=True)
"""


def torchx(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``torchx WORDS``."""
    bin_directory = str(Path(sys.executable).parent)
    return subprocess.run(
        [str(Path(bin_directory) / "torchx"), *words],
        cwd=directory,
        env={**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_job_of_two_replicas(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("run", "-s", "local_cwd", "ftrun.train", "--replicas", "2", "--options",
             "--device cpu", "--script", "train.py", "--", "--lr", "0.1")  # fmt: skip
    found = torchx(tmp_path, *words)
    assert found.returncode == 0, found.stdout + found.stderr
    for replica in (0, 1):
        assert f"[{replica}.0] arguments ['--lr', '0.1']" in found.stderr + found.stdout


def test_torchx_still_offers_its_own_components(tmp_path: Path) -> None:
    found = torchx(tmp_path, "builtins")
    assert "ftrun.train" in found.stdout and "dist.ddp" in found.stdout, found.stderr


def test_nodes_without_a_lighthouse_are_refused(tmp_path: Path) -> None:
    found = torchx(tmp_path, "run", "-s", "local_cwd", "ftrun.train", "--nodes", "2", "-m", "x.y")
    assert found.returncode != 0
    assert "a job of 2 nodes needs --lighthouse HOST:PORT" in found.stdout + found.stderr


def test_the_entry_points_are_those_of_the_component() -> None:
    names = {e.name: e.value for e in importlib.metadata.entry_points(group="torchx.components")}
    assert names.get("ftrun") == "ftrun.torchx"
