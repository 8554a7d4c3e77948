"""A group's memory on a disk: the same in another memory, and read by torch alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ftrun.base.errors import PeerError, UserError
from ftrun.checkpoint.format import pack
from ftrun.checkpoint.leaves import Leaf
from ftrun.core.replay.falls import Fall
from ftrun.snapshots import groups
from ftrun.snapshots.area import GroupMemory, Word
from ftrun.snapshots.directory import look, snapshots
from ftrun.snapshots.starting import prepare
from ftrun.snapshots.writer import Writing
from tests.unit.run_settings import resolved

WORKERS = 2
ROOM = 8 << 20
MESH = json.dumps([["shard 0"], [4, 3], [3, 1], "cpu", [WORKERS], None, None])
ORIGIN = {"script": "t.py", "inject": "memory", "workers_per_replica": WORKERS, "replicas": 1}


@pytest.fixture
def memory() -> Iterator[GroupMemory]:
    made = GroupMemory.make(WORKERS, ROOM)
    yield made
    made.close()


def take(memory: GroupMemory, step: int, number: int = 0, ranks: int = WORKERS) -> None:
    """Each worker's generation: a weight that all have, a shard, and numbers of its own."""
    for rank in range(ranks):
        shard = torch.full((2, 3), float(10 * step + rank))
        tree = {"script": {"whole": torch.full((5,), float(step)), "shard": shard, "lr": 0.5}}
        packed = pack(tree)
        leaves: list[Leaf] = []
        for leaf in packed.leaves:
            mesh = MESH if leaf.value is shard else ""
            kind = "dtensor" if mesh else leaf.spec.kind
            leaves.append(replace(leaf, spec=replace(leaf.spec, mesh=mesh, kind=kind)))
        head = {
            "step": step,
            "structure": packed.structure,
            "specs": [asdict(leaf.spec) for leaf in leaves],
            "chunks": {MESH: [2 * rank, 0]},
        }
        text = json.dumps([head, [4]]).encode() + b"\n" + b"rng%d" % rank
        area = memory.area(rank)
        area.divide()
        area.write(number, text, leaves, step, {5: 7 * step}, {5: 7 * step})
        memory.board.set(rank, Word.NEWEST, step)


def order(memory: GroupMemory, where: Path) -> groups.Order:
    return groups.Order(
        directory=str(where), keep=3, writer="incarnation", step=0, origin=ORIGIN, workers=WORKERS,
        place=memory.place, notes=str(where.parent / "notes-{}"),
    )  # fmt: skip


def filling(memory: GroupMemory, where: Path, **origin: object) -> groups.Filling:
    return groups.Filling(
        directories=[str(where.parent / "none"), str(where)], origin={**ORIGIN, **origin},
        place=memory.place, notes=str(where.parent / "found-{}"),
    )  # fmt: skip


def test_another_group_goes_on_from_it(tmp_path: Path, memory: GroupMemory) -> None:
    where = tmp_path / "s"
    take(memory, 30)
    take(memory, 31, 1, ranks=1)  # the other is a step behind
    (tmp_path / "notes-1").write_bytes(b"a seed")
    answer = groups.write(Writing(None), order(memory, where))
    assert answer["step"] == 30 and answer["path"] == str(where / "step-000000000030")
    other = GroupMemory.make(WORKERS, ROOM)
    found = groups.fill(groups.Filling(**asdict(filling(other, where))))
    assert (found["step"], found["damaged"]) == (30, [])
    for rank in range(WORKERS):
        area, before = other.area(rank), memory.area(rank).read(0)
        state = area.read(area.newest)
        assert before is not None and state is not None
        assert (state.head, state.step) == (before.head, 30)
        assert bytes(state.state.numpy()) == bytes(before.state.numpy())
    assert (tmp_path / "found-1").read_bytes() == b"a seed"
    assert (tmp_path / "found-0").read_bytes() == b""
    other.close()


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, that this process reads alone
def test_torch_reads_the_shards_as_one_tensor(tmp_path: Path, memory: GroupMemory) -> None:
    take(memory, 3)
    groups.write(Writing(None), order(memory, tmp_path / "s"))
    read = {"script": {"shard": torch.zeros(4, 3), "whole": torch.zeros(5)}}
    dcp.load(read, checkpoint_id=tmp_path / "s/step-000000000003", no_dist=True)
    assert read["script"]["shard"][:, 0].tolist() == [30.0, 30.0, 31.0, 31.0]
    assert read["script"]["whole"].tolist() == [3.0] * 5


def test_what_is_alike_is_written_once(tmp_path: Path, memory: GroupMemory) -> None:
    take(memory, 3)
    groups.write(Writing(None), order(memory, tmp_path / "s"))
    found = look(tmp_path / "s").newest
    assert found is not None
    lead, mate = found.manifest.share(0).leaves, found.manifest.share(1).leaves
    assert [x == y for x, y in zip(lead, mate, strict=True)] == [True, False, False, True]


def test_a_damaged_one_is_passed_over_and_told(tmp_path: Path, memory: GroupMemory) -> None:
    where = tmp_path / "s"
    for step in (3, 4):
        take(memory, step, step)
        groups.write(Writing(None), order(memory, where))
    file = where / "step-000000000004/__1_0.distcp"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    other = GroupMemory.make(WORKERS, ROOM)
    found = groups.fill(filling(other, where))
    assert found["step"] == 3 and found["damaged"][0][0] == "step-000000000004"
    assert (where / "step-000000000004.damaged").exists()
    assert [other.area(rank).newest for rank in range(WORKERS)] == [3, 3]
    other.close()


def test_none_is_taken_of_what_may_be_incomplete(tmp_path: Path, memory: GroupMemory) -> None:
    where = tmp_path / "s"
    with pytest.raises(PeerError, match="no whole snapshot of one step in memory"):
        groups.write(Writing(None), order(memory, where))
    take(memory, 3)
    memory.board.set(1, Word.FALL, Fall.SCRIPT)
    with pytest.raises(PeerError, match="what is in memory may be incomplete: ftrun does not"):
        groups.write(Writing(None), order(memory, where))
    assert list(where.iterdir()) == []
    memory.board.set(1, Word.FALL, Fall.LOG_FULL)
    assert groups.write(Writing(None), order(memory, where))["step"] == 3


def test_a_full_disk_is_told_and_leaves_no_draft(
    tmp_path: Path, memory: GroupMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(memory, 3)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda where: usage._replace(free=100))
    with pytest.raises(PeerError, match="100 B are free"):
        groups.write(Writing(None), order(memory, tmp_path / "s"))
    assert snapshots(tmp_path / "s") == [] and memory.hold() is not None


def test_that_of_another_job_is_refused(tmp_path: Path, memory: GroupMemory) -> None:
    where = tmp_path / "s"
    assert groups.fill(filling(memory, where))["step"] == -1
    take(memory, 3)
    groups.write(Writing(None), order(memory, where))
    with pytest.raises(PeerError, match=r"a snapshot of t\.py with .* this is other\.py"):
        groups.fill(filling(memory, where, script="other.py"))


def test_a_run_of_another_form_is_refused_before_it_starts(
    tmp_path: Path, memory: GroupMemory
) -> None:
    where, script = tmp_path / "s", tmp_path / "t.py"
    script.touch()
    take(memory, 3)
    groups.write(Writing(None), order(memory, where))
    one = resolved(str(script), snapshot=where, workers_per_replica=WORKERS)
    name = one.script.name
    found = look(where).newest
    assert found is not None
    own = replace(found.manifest, origin=replace(found.manifest.origin, script=name))
    (found.path / "ftrun.json").write_bytes(own.encode())
    [line] = prepare(one)
    assert line.startswith("The job goes on from step 3, the newest") and "of 2 workers" in line
    with pytest.raises(UserError, match=r"with memory snapshots and 2 .* with --inject ddp and 2"):
        prepare(replace(one, inject="ddp", replicas=2))
    for form, why in (
        ("ddp", "with --inject ddp and 2 .* with memory snapshots"),
        ("explicit", ""),
    ):
        other = replace(own, origin=replace(own.origin, inject=form))
        (found.path / "ftrun.json").write_bytes(other.encode())
        if why:
            with pytest.raises(UserError, match=why):
                prepare(one)
        else:
            assert "goes on from step 3" in prepare(one)[0]
