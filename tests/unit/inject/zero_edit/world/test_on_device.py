"""What a group on a GPU does beside the calls themselves; with a double of CUDA."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftrun.core.replay.falls import Fall
from ftrun.inject.zero_edit.world import on_device, replayed
from ftrun.inject.zero_edit.world.on_device import DeviceWorld, backends_of
from ftrun.process_groups.settled import SettledGroup


@pytest.mark.parametrize(
    ("label", "has_device", "has_host"),
    [
        ("nccl", True, False),
        ("gloo", False, True),
        ("undefined", True, True),
        ("cpu:gloo,cuda:nccl", True, True),
        ("cuda:nccl", True, False),
    ],
)
def test_a_group_is_connected_for_what_the_script_has_asked(
    label: str, has_device: bool, has_host: bool
) -> None:
    assert backends_of(label) == (has_device, has_host)


class Cuda:
    """Of a machine with four GPUs. ``current``: -1: CUDA is not in use."""

    def __init__(self, current: int) -> None:
        self.current = current

    def is_initialized(self) -> bool:
        return self.current >= 0

    def current_device(self) -> int:
        return self.current

    def device_count(self) -> int:
        return 4

    def set_device(self, device: int) -> None:
        self.current = device


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(replayed.ReplayedWorld, "add", lambda *_: None)
    made: Any = DeviceWorld.__new__(DeviceWorld)
    made.fell = None
    return made


@pytest.mark.parametrize(
    ("before", "device", "after"),
    [(-1, 2, 2), (0, 2, 0), (3, 3, 3)],  # of a mesh; not said so far; torch.cuda.set_device(3)
)
def test_the_device_is_that_of_the_script(
    world: Any, monkeypatch: pytest.MonkeyPatch, before: int, device: int, after: int
) -> None:
    """If nobody has used CUDA yet, a mesh would choose it after the groups are made, but not then
    when CUDA is in use: so it is chosen here."""
    cuda = Cuda(before)
    monkeypatch.setattr(on_device, "_cuda", cuda)
    world.add(SimpleNamespace(label="gloo"))
    assert (cuda.current, world._device) == (before, 0), "Gloo needs no GPU"
    world.add(SimpleNamespace(label="nccl"))
    assert (world._device, cuda.current) == (device, after)
    cuda.current = 1
    world.add(SimpleNamespace(label="cpu:gloo,cuda:nccl"))
    assert world._device == device, "that of all its groups"


def test_tensors_on_a_gpu_in_a_group_of_gloo_cannot_be_followed(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch would copy them to the host, and the end of that is not known there."""
    fallen: list[Fall] = []
    monkeypatch.setattr(replayed.ReplayedWorld, "begin", lambda *_: None)
    monkeypatch.setattr(DeviceWorld, "falls", lambda _, reason: fallen.append(reason))
    for label, is_on_gpu in (("gloo", False), ("undefined", True), ("nccl", True)):
        world.begin(SimpleNamespace(label=label), SimpleNamespace(is_on_device=is_on_gpu))
    assert fallen == []
    world.begin(SimpleNamespace(label="gloo"), SimpleNamespace(is_on_device=True))
    assert fallen == [Fall.DEVICE]


def test_a_state_on_several_gpus_cannot_be_followed(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallen: list[Any] = []
    monkeypatch.setattr(DeviceWorld, "falls", lambda _, *why: fallen.append(why))
    monkeypatch.setattr(on_device, "torch", SimpleNamespace(Tensor=SimpleNamespace))

    def leaf(index: int | None) -> Any:
        device = SimpleNamespace(index=index)
        return SimpleNamespace(data=SimpleNamespace(is_cuda=index is not None, device=device))

    assert world.on_device([leaf(None), leaf(1), leaf(None), leaf(1)]) == [1, 3]
    assert fallen == [] and world._device == 1
    world._is_on_device = True
    assert world.on_device([leaf(1), leaf(0)]) == [0, 1]
    assert fallen == [(Fall.SCRIPT, "a worker's state is on several GPUs")]


def test_nothing_of_cuda_is_used_where_the_script_uses_none(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_device, "_cuda", Cuda(-1))
    monkeypatch.setattr(replayed.ReplayedWorld, "_keep", lambda *_, **__: None)
    world._keep(SimpleNamespace(), SimpleNamespace(is_on_device=False), is_live=False)
    world.ready = []
    world.complete_futures()
    with world.copying()():
        pass


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_kernel_that_an_abort_does_not_end_is_a_fall(
    world: Any, monkeypatch: pytest.MonkeyPatch, is_idle: bool
) -> None:
    """It may still write, so no call can be issued again."""
    fallen: list[Fall] = []
    monkeypatch.setattr(replayed.ReplayedWorld, "end_calls", lambda *_: None)
    monkeypatch.setattr(DeviceWorld, "falls", lambda _, reason: fallen.append(reason))
    group = SettledGroup.__new__(SettledGroup)
    group._device = cast(Any, SimpleNamespace(is_idle=is_idle))
    world.end_calls([group, SimpleNamespace()], [])
    assert fallen == [Fall.STAYS] * (not is_idle)
