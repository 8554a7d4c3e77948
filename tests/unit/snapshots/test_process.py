"""The process that writes: in a directory whose modules shadow the library's, full, and killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from ftrun.base.errors import PeerError
from ftrun.snapshots import process as module
from ftrun.snapshots.memory import SharedMemory
from ftrun.snapshots.process import WriterProcess
from tests.unit.snapshots.written import newest, order_of, tree_of

TIMEOUT_S = 120.0
SERVES = """
import sys
from pathlib import Path
from ftrun.snapshots import serving
serving.main(Path(sys.argv[1]))
"""


def start(where: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SERVES, str(where)])


def test_it_writes_for_several_again_and_again_until_it_is_killed(tmp_path: Path) -> None:
    """Errors are answers; so is a tree that torch cannot save."""
    where, at = tmp_path / "s", tmp_path / "w.sock"
    memory, other = SharedMemory(), SharedMemory()
    with start(at) as served:
        process = WriterProcess(memory, at)
        beside = WriterProcess(other, at)
        try:
            (where / ".draft-step-000000000000-dead").mkdir(parents=True)
            for step, size in ((1, 10), (2, 100_000)):
                order = order_of(where, tree_of(step, a={"x": torch.rand(size)}), memory)
                answer = process.write(asdict(order), TIMEOUT_S)
                assert answer["path"] == str(newest(where).path) and answer["duration_s"] > 0
                told = [0] if step == 1 else []
                assert answer["given_up"] == told, "a dead writer's draft is told"
            bad = order_of(
                where, tree_of(3, k={"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}), memory
            )
            with pytest.raises(PeerError, match="torch cannot save it"):
                process.write(asdict(bad), TIMEOUT_S)
            (tmp_path / "file").touch()
            with pytest.raises(PeerError, match=r"File exists|Not a directory"):
                process.write({**asdict(bad), "directory": str(tmp_path / "file")}, TIMEOUT_S)
            good = order_of(where, tree_of(4, a={"x": torch.rand(3)}), other)
            beside.write(asdict(good), TIMEOUT_S)
            process.kill()
            with pytest.raises(PeerError, match="has ended"):
                process.write(asdict(good), TIMEOUT_S)
            assert not process.lives
            beside.write(asdict(good), TIMEOUT_S)
            assert beside.lives and newest(where).manifest.step == 4
            served.send_signal(signal.SIGKILL)
            with pytest.raises(PeerError, match="has ended"):
                beside.write(asdict(good), TIMEOUT_S)
        finally:
            served.kill()
            process.close()
            beside.close()
    with start(at) as served:  # its successor
        try:
            process = WriterProcess(memory, at)
            process.write(asdict(order_of(where, tree_of(5, a={}), memory)), TIMEOUT_S)
        finally:
            served.kill()
            process.close()
    memory.close()
    other.close()


def test_one_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_TIMEOUT_S", 0.01)
    memory = SharedMemory()
    with pytest.raises(PeerError, match="there is no process that writes: No such file"):
        WriterProcess(memory, tmp_path / "nobody")
    memory.close()
