"""The writer's process: in a directory whose modules shadow the library's, full, and killed."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
import torch

from ftrun.base.errors import PeerError
from ftrun.snapshots import forked
from ftrun.snapshots.memory import SharedMemory
from ftrun.snapshots.process import WriterProcess
from tests.unit.snapshots.written import newest, order_of, tree_of

TIMEOUT_S = 120.0


def test_it_writes_again_and_again_until_it_is_killed(tmp_path: Path) -> None:
    """Errors are answers; so is a tree that torch cannot save."""
    before = Path.cwd()
    try:
        writes_again_and_again(tmp_path, is_fork=False)
    finally:
        os.chdir(before)


def test_so_does_a_fork_of_its_worker(tmp_path: Path) -> None:
    """From a process of its own: a fork is made where there is one thread, before the script."""
    alone = multiprocessing.get_context("spawn").Process(
        target=writes_again_and_again, args=(tmp_path,), kwargs={"is_fork": True}
    )
    alone.start()
    alone.join(2 * TIMEOUT_S)
    assert alone.exitcode == 0


def writes_again_and_again(tmp_path: Path, *, is_fork: bool) -> None:
    for name in ("json", "queue", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(1)\n")
    os.chdir(tmp_path)
    where, memory = tmp_path / "s", SharedMemory()
    if is_fork:
        forked.have_one()
    process = WriterProcess(memory)
    try:
        children = psutil.Process().children()
        assert is_fork == any(child.name() == forked.TITLE[:15] for child in children), children
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


def test_a_fork_that_was_killed_is_replaced_by_an_interpreter() -> None:
    forked.have_one()
    reserve = forked._Process.reserve
    assert reserve is not None and reserve.poll() is None
    reserve.kill()
    reserve.wait(TIMEOUT_S)
    assert reserve.poll() == 0
    memory = SharedMemory()
    process = WriterProcess(memory)
    try:
        assert process.lives and psutil.Process(process._process.pid).name() != forked.TITLE
    finally:
        process.close()
        memory.close()
