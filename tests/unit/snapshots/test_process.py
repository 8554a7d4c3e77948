"""The writer's process: in a directory whose modules shadow the library's, full, and killed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from ftrun.errors import PeerError
from ftrun.snapshots.memory import SharedMemory
from ftrun.snapshots.process import WriterProcess
from tests.unit.snapshots.written import newest, order_of, tree_of

TIMEOUT_S = 120.0


def test_it_writes_again_and_again_until_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors are answers; so is a tree that torch cannot save."""
    for name in ("json", "queue", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    where, memory = tmp_path / "s", SharedMemory()
    process = WriterProcess(memory)
    try:
        (where / ".draft-step-000000000000-dead").mkdir(parents=True)
        for step, size in ((1, 10), (2, 100_000)):
            order = order_of(where, tree_of(step, a={"x": torch.rand(size)}), memory)
            answer = process.write(asdict(order), TIMEOUT_S)
            assert answer["path"] == str(newest(where).path) and answer["duration_s"] > 0
            assert answer["given_up"] == ([0] if step == 1 else []), "a dead writer's draft is told"
        bad = order_of(
            where, tree_of(3, k={"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}), memory
        )
        with pytest.raises(PeerError, match="torch cannot save it"):
            process.write(asdict(bad), TIMEOUT_S)
        (tmp_path / "file").touch()
        with pytest.raises(PeerError, match=r"File exists|Not a directory"):
            process.write({**asdict(bad), "directory": str(tmp_path / "file")}, TIMEOUT_S)
        good = order_of(where, tree_of(4, a={"x": torch.rand(3)}), memory)
        process.write(asdict(good), TIMEOUT_S)
        assert process.lives and newest(where).manifest.step == 4
        process.kill()
        with pytest.raises(PeerError, match="has ended"):
            process.write(asdict(good), TIMEOUT_S)
    finally:
        process.close()
        memory.close()
    assert not process.lives
