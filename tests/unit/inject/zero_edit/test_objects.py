"""Objects and broadcasts of a script while a replica is away."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ftrun.inject.zero_edit.given import GIVEN_BYTES_MAX, LastGiven
from ftrun.inject.zero_edit.objects import Objects
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.world import World


class Replicas:
    """Three ranks, one after the other in one thread: each call has what the others would give."""

    def __init__(self) -> None:
        self.away: set[int] = set()
        self.others: Callable[[int, bytes], bytes] = lambda rank, own: own

    def world(self, rank: int) -> World:
        def exchange(site: str, what: str, body: bytes, timeout_s: float) -> dict[int, bytes]:
            found = {other: self.others(other, body) for other in range(3) if other != rank}
            given = {rank: body, **found}
            return {other: given[other] for other in sorted(given) if other not in self.away}

        return World(
            rank, 3, 1 << 20, timedelta(seconds=5), exchange, lambda size: size, LastGiven()
        )


@contextmanager
def patched(world: World, monkeypatch: pytest.MonkeyPatch, rank: int) -> Iterator[None]:
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    patches = Patches()
    Objects(lambda group: world.give, LastGiven()).install(patches)
    try:
        yield
    finally:
        patches.undo()


def _packed(world: World, value: Any) -> bytes:
    """What another rank gives: its object behind its length."""
    tensor, _ = distributed_c10d._object_to_tensor(value, torch.device("cpu"), None)
    body = bytes(tensor.numpy().tobytes())
    return len(body).to_bytes(8, "big") + body


def test_a_root_that_is_away_has_given_the_last_one_or_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    replicas = Replicas()
    world = replicas.world(1)
    given: dict[str, Any] = {"value": ["run-7", {"lr": 0.1}]}
    none = (0).to_bytes(8, "big")
    replicas.others = lambda rank, own: _packed(world, given["value"]) if rank == 0 else none
    with patched(world, monkeypatch, 1):
        for is_away, given["value"], expected in (
            (True, None, [None, None]),
            (False, ["run-7", 1], ["run-7", 1]),
            (True, None, ["run-7", 1]),
            (False, ["run-8", 2], ["run-8", 2]),
        ):
            replicas.away = {0} if is_away else set()
            found = [None, None]
            dist.broadcast_object_list(found, src=0)
            assert found == expected
    assert (
        "rank 0 gave nothing, so its broadcast_object_list is left as each"
        in capfd.readouterr().err
    )
    assert dist.broadcast_object_list is distributed_c10d.broadcast_object_list


def test_on_the_way_past_a_loop_nobody_is_called_away(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    replicas = Replicas()
    replicas.away = {0, 2}
    world = replicas.world(1)
    world._last.is_still = True
    with patched(world, monkeypatch, 1):
        world.allreduce([torch.ones(1)])
        world.allgather([[torch.ones(1) for _ in range(3)]], [torch.ones(1)])
    assert "away" not in capfd.readouterr().err


def test_the_root_keeps_its_own_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas()
    world, own = replicas.world(0), ["mine", object]
    with patched(world, monkeypatch, 0):
        dist.broadcast_object_list(own, src=0)
    assert own == ["mine", object]


def test_gathered_objects_are_the_same_on_all_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas()
    objects = {0: "zero", 1: {"one": [1] * 50}, 2: "two"}
    replicas.away = {1}
    for rank in (0, 2):
        world = replicas.world(rank)
        replicas.others = lambda other, own, world=world: _packed(world, objects[other])  # type: ignore[misc]
        with patched(world, monkeypatch, rank):
            found: list[Any] = [None] * 3
            dist.all_gather_object(found, objects[rank])
            assert found == ["zero", "zero", "two"]
            into: list[Any] | None = [None] * 3 if rank == 2 else None
            dist.gather_object(objects[rank], into, dst=2)
            assert into == (["zero", "zero", "two"] if rank == 2 else None)
            if rank == 2:
                with pytest.raises(ValueError, match="object_gather_list"):
                    dist.gather_object(objects[rank], None, dst=2)


def test_tensors_of_a_replica_that_is_away_are_the_same_on_all() -> None:
    replicas = Replicas()
    replicas.away = {1}
    for rank in (0, 2):
        world = replicas.world(rank)
        replicas.others = lambda other, own: torch.tensor([float(other)]).numpy().tobytes()
        found = [torch.empty(1) for _ in range(3)]
        world.allgather([found], [torch.tensor([float(rank)])])
        assert [tensor.item() for tensor in found] == [0.0, 0.0, 2.0]


def test_a_broadcast_without_its_root_is_what_it_gave_there_last() -> None:
    replicas = Replicas()
    world = replicas.world(1)
    seen: list[bytes] = []

    def others(rank: int, own: bytes) -> bytes:
        seen.append(own)
        return torch.tensor([7.0]).numpy().tobytes() if rank == 0 else own

    replicas.others = others
    for away, expected in ((set[int](), 7.0), ({0}, 7.0)):
        replicas.away = away
        tensor = torch.tensor([-1.0])  # as torch.empty may be
        options = dist.BroadcastOptions()
        options.rootRank = 0
        world.broadcast([tensor], options)
        assert tensor.item() == expected
    assert torch.frombuffer(bytearray(seen[-1]), dtype=torch.float32).item() == 7.0


def test_what_is_kept_of_roots_is_bounded() -> None:
    last = LastGiven()
    last.keep("large", b"x" * (GIVEN_BYTES_MAX + 1))
    for number in range(200):
        last.keep(f"site {number}", b"%d" % number)
    assert last.at("large") == b"" and last.at("site 0") == b"0" and last.at("site 199") == b""
    last.keep("site 0", b"new")
    assert last.at("site 0") == b"new"


def test_torch_has_what_this_relies_on() -> None:
    for name in ("_object_to_tensor", "_tensor_to_object", "_get_default_group"):
        assert callable(getattr(distributed_c10d, name)), sys.version
