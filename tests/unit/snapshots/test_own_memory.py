from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from ftrun.checkpoint.format import pack
from ftrun.snapshots import own_memory
from ftrun.snapshots.area import AreaFull
from ftrun.snapshots.own_memory import OwnMemory, area_here

ROOM = 8 << 20


@pytest.fixture
def launcher() -> Iterator[OwnMemory]:
    made = OwnMemory(lambda: ROOM)
    yield made
    made.close()


def test_it_outlives_its_worker(launcher: OwnMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
import os, torch
from ftrun.checkpoint.format import pack
from ftrun.snapshots.own_memory import area_here
area = area_here()
for number in range(3):
    tree = {"mean": torch.full((1000,), float(number))}
    assert area.write(number, b"head", pack(tree).leaves, 10 + number, {}, {})
os.kill(os.getpid(), 9)
"""
    place = launcher.place("0", 1)
    environment = {**os.environ, own_memory.VARIABLE: place}
    subprocess.run([sys.executable, "-c", script], env=environment, timeout=60, check=False)
    monkeypatch.setenv(own_memory.VARIABLE, launcher.place("0", 1))
    area = area_here()
    assert area is not None and area.newest == 2
    found = area.read(2)
    assert found is not None and (found.head, found.step) == (b"head", 12)
    assert found.state[:4000].view(torch.float32).unique().tolist() == [2.0]
    assert launcher.place("1", 1) != place


def test_of_large_ones_there_is_room_for_one_and_the_next(
    launcher: OwnMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(own_memory.VARIABLE, launcher.place("0", 0))
    area = area_here()
    assert area is not None
    held = area.memory
    for number in range(5):
        leaves = pack({"mean": torch.full((500_000,), float(number))}).leaves  # 2 MB
        assert area.write(number, b"", leaves, number, {}, {})
        assert area.newest == number
    assert os.fstat(held.fd).st_blocks * 512 < ROOM
    with pytest.raises(AreaFull):
        area.write(9, b"", pack(torch.empty(1 << 20)).leaves, 9, {}, {})  # 4 MB
    assert area.newest == 4


@pytest.mark.parametrize("place", ["", "/proc/1/fd/7.9:4096", "/proc/self/fd/0.1:4096", "a:b"])
def test_a_worker_without_any(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(own_memory.VARIABLE, place)
    assert area_here() is None
