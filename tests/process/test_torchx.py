"""``torchx run ftrun.train``, by TorchX's local scheduler; skipped where TorchX is not installed.

``pip install torchx`` first: it holds other packages back, so the development install lacks it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs import free_port
from tests.process.test_nodes import MODEL

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("torchx") is None, reason="needs TorchX"),
]
SCRIPT = """
import sys, ftrun
manager = ftrun.manager()
print("arguments", sys.argv[1:], flush=True)
"""
HEALS = f"""
{MODEL}
import os, signal, sys
first_life = manager.current_step() == 0 and not os.path.exists("killed")
print("arguments", sys.argv[1:], flush=True)
while manager.current_step() < 60:
    optimizer.zero_grad()
    ddp(torch.randn(2, 4)).mean().backward()
    optimizer.step()
    time.sleep(0.05)
    if first_life and manager.current_step() == 10 and os.environ["REPLICA_GROUP_ID"] == "1":
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
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


def test_a_lighthouse_by_hand_needs_a_token_and_a_role_several_nodes(tmp_path: Path) -> None:
    words = ("run", "-s", "local_cwd", "ftrun.train", "-m", "x.y", "--lighthouse")
    found = torchx(tmp_path, *words, "h:29510")
    assert found.returncode != 0
    assert "needs --token_file FILE too" in found.stdout + found.stderr
    found = torchx(tmp_path, *words, "role")
    assert found.returncode != 0
    assert "one node has a lighthouse by itself" in found.stdout + found.stderr


def test_two_nodes_with_a_lighthouse_of_their_own_heal_and_all_roles_end(tmp_path: Path) -> None:
    """Killed by the script itself, in its first life: TorchX shows no pids."""
    (tmp_path / "train.py").write_text(HEALS)
    words = ("run", "-s", "local_cwd", "ftrun.train", "--nodes", "2", "--lighthouse", "role",
             "--lighthouse_port", str(free_port()), "--options", "--device cpu",
             "--script", "train.py", "--", "it's", "$HOME")  # fmt: skip
    found = torchx(tmp_path, *words)
    text = found.stdout + found.stderr
    assert found.returncode == 0, text
    assert "the job has ended, and all its nodes have left (--once)" in text
    assert re.search(r"replica (\d) \(pid \d+\) died: SIGKILL", text)
    assert re.search(r"Replica \d healed from replica \d", text)
    for replica in (0, 1):
        assert f"[{replica}.0] arguments [\"it's\", '$HOME']" in text


def test_the_entry_points_are_those_of_the_component() -> None:
    names = {e.name: e.value for e in importlib.metadata.entry_points(group="torchx.components")}
    assert names.get("ftrun") == "ftrun.torchx"
