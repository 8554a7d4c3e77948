"""``import torchft`` in a worker, each case in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
START = """
import sys
from ftrun.inject import torchft_names
class Here:
    replica_id, group_rank, restarts = {place!r}
torchft_names.install({mode!r}, Here)
torchft_names.install({mode!r}, Here)
"""


def run(
    script: str,
    mode: str = "auto",
    place: tuple[str, int, int] = ("0", 0, 0),
    directory: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    text = START.format(mode=mode, place=place) + script
    environment = {"PYTHONPATH": f"{directory}:{ROOT}", "PATH": ""}
    command = [sys.executable, "-W", "error", "-c", text]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, cwd=directory
    )


def test_it_is_ftrun_s_tree_under_both_names() -> None:
    done = run(
        """
import importlib.util
spec = importlib.util.find_spec("torchft")
assert spec is not None and spec.submodule_search_locations
import torchft, ftrun.torchft
assert torchft is ftrun.torchft and sys.modules["torchft"] is torchft
import torchft.optim, torchft.checkpointing.transport
from torchft.checkpointing import CheckpointTransport
assert torchft.optim is sys.modules["ftrun.torchft.optim"]
assert torchft.optim.__spec__.name == "ftrun.torchft.optim"
assert CheckpointTransport is torchft.checkpointing.transport.CheckpointTransport
try:
    import torchft.no_such_module
except ModuleNotFoundError as error:
    assert error.name == "torchft.no_such_module", error.name
else:
    raise AssertionError
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ftrun: `import torchft` gives") == 1


@pytest.mark.parametrize(
    ("mode", "place"),
    [("ftrun", ("0", 0, 0)), ("auto", ("1", 0, 0)), ("auto", ("0", 1, 0)), ("auto", ("0", 0, 1))],
    ids=["asked for", "another replica", "another rank", "a replacement"],
)
def test_one_worker_says_so_once(mode: str, place: tuple[str, int, int]) -> None:
    done = run("import torchft", mode, place)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_said_to_a_script_that_does_not_import_it() -> None:
    assert run("import json").stderr == ""


def test_the_real_one_is_had_for_the_asking(tmp_path: Path) -> None:
    (tmp_path / "torchft.py").write_text("real = True\n")
    done = run("import torchft; assert torchft.real", "real", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run("import torchft; assert not hasattr(torchft, 'real')", directory=tmp_path)
    assert done.returncode == 0, done.stderr


def test_spawned_processes_have_the_same(tmp_path: Path) -> None:
    """Also where another torchft is installed, that is, further down the path."""
    (tmp_path / "torchft.py").write_text("real = True\n")
    (tmp_path / "work.py").write_text(
        "def names():\n"
        "    import torchft, torchft.optim, ftrun.torchft\n"
        "    return torchft is ftrun.torchft and torchft.optim.__name__\n"
    )
    done = run(
        """
import multiprocessing, runpy
import work
if __name__ == "__main__":
    sys.path.append(sys.path.pop(0)) if sys.path[0] == "" else None
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(work.names)
    assert found == "ftrun.torchft.optim", found
""",
        directory=tmp_path,
    )
    assert done.returncode == 0, done.stderr
