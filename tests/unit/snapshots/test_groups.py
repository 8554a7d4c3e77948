"""A group's memory on a disk: the same in another memory, and read by torch alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ftrun.base.errors import PeerError, UserError
from ftrun.checkpoint.format import pack
from ftrun.checkpoint.leaves import Leaf
from ftrun.core.replay.falls import Fall
from ftrun.snapshots import groups, manifest, reading
from ftrun.snapshots.board import Word
from ftrun.snapshots.directory import Found, look, snapshots
from ftrun.snapshots.group_memory import GroupMemory
from ftrun.snapshots.manifest import StoredFile
from ftrun.snapshots.process import DRAFT, MERGE, PART, WHOLE
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
    for rank in memory.here[:ranks]:
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
        directory=str(where), keep=3, writer="incarnation", origin=ORIGIN, workers=WORKERS,
        place=memory.place, notes=str(where.parent / "notes-{}"),
    )  # fmt: skip


def filling(memory: GroupMemory, path: Path, digest: str = "") -> groups.Filling:
    notes = str(path.parent.parent / "found-{}")
    return groups.Filling(path=str(path), place=memory.place, notes=notes, digest=digest)


def test_another_group_goes_on_from_it(tmp_path: Path, memory: GroupMemory) -> None:
    where = tmp_path / "s"
    take(memory, 30)
    take(memory, 31, 1, ranks=1)  # the other is a step behind
    (tmp_path / "notes-1").write_bytes(b"a seed")
    answer = Writing(None).obey(WHOLE, order(memory, where))
    assert answer["step"] == 30 and answer["path"] == str(where / "step-000000000030")
    other = GroupMemory.make(WORKERS, ROOM)
    found = groups.fill(filling(other, where / "step-000000000030"))
    assert found == {"damaged": ""}
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
    Writing(None).obey(WHOLE, order(memory, tmp_path / "s"))
    read = {"script": {"shard": torch.zeros(4, 3), "whole": torch.zeros(5)}}
    dcp.load(read, checkpoint_id=tmp_path / "s/step-000000000003", no_dist=True)
    assert read["script"]["shard"][:, 0].tolist() == [30.0, 30.0, 31.0, 31.0]
    assert read["script"]["whole"].tolist() == [3.0] * 5


def test_what_is_alike_is_written_once(tmp_path: Path, memory: GroupMemory) -> None:
    take(memory, 3)
    Writing(None).obey(WHOLE, order(memory, tmp_path / "s"))
    found = look(tmp_path / "s").newest
    assert found is not None
    lead, mate = found.manifest.share(0).leaves, found.manifest.share(1).leaves
    assert [x == y for x, y in zip(lead, mate, strict=True)] == [True, False, False, True]


def test_a_damaged_one_is_passed_over_and_told(tmp_path: Path, memory: GroupMemory) -> None:
    where = tmp_path / "s"
    for step in (3, 4):
        take(memory, step, step)
        Writing(None).obey(WHOLE, order(memory, where))
    file = where / "step-000000000004/__1_0.distcp"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    other = GroupMemory.make(WORKERS, ROOM)
    found = groups.fill(filling(other, where / "step-000000000004"))
    assert found == {"damaged": "__1_0.distcp is not what was written: its hash differs"}
    assert (where / "step-000000000004.damaged").exists()
    assert groups.fill(filling(other, where / "step-000000000003")) == {"damaged": ""}
    assert [other.area(rank).newest for rank in range(WORKERS)] == [3, 3]
    other.close()


def test_each_file_is_read_once(
    tmp_path: Path, memory: GroupMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(memory, 3)
    path = Path(Writing(None).obey(WHOLE, order(memory, tmp_path / "s"))["path"])
    opened: list[str] = []

    def noted(name: Path, *args: Any, **more: Any) -> Any:
        opened.append(Path(name).name)
        return open(name, *args, **more)

    monkeypatch.setattr(reading, "open", noted, raising=False)
    other = GroupMemory.make(WORKERS, ROOM)
    assert groups.fill(filling(other, path)) == {"damaged": ""}
    assert sorted(opened) == sorted({x.name for x in path.iterdir()} - {"ftrun.json"})
    other.close()


def halves() -> list[GroupMemory]:
    """The memory of two nodes, each with one of the workers."""
    return [GroupMemory.make(WORKERS, ROOM, range(rank, rank + 1)) for rank in range(WORKERS)]


def index(found: Found) -> set[tuple[str, StoredFile]]:
    """DCP's, which has the name of the draft in it."""
    return {(".metadata", found.manifest.files[".metadata"])}


def test_nodes_write_their_parts_of_one_and_read_them(tmp_path: Path, memory: GroupMemory) -> None:
    where, nodes = tmp_path / "s", halves()
    for node in nodes:
        take(node, 30)
        take(node, 31, 1)
    take(memory, 30)
    one = replace(order(nodes[0], where), step=30)
    writing = Writing(None)
    with pytest.raises(PeerError, match="All nodes must share --snapshot"):
        Writing(None).obey(PART, replace(one, draft="draft"))
    draft = Path(writing.obey(DRAFT, one)["path"]).name
    for node in nodes:
        Writing(None).obey(PART, replace(one, place=node.place, draft=draft))
    answer = writing.obey(MERGE, one)
    alone = Writing(None).obey(WHOLE, order(memory, tmp_path / "alone"))
    whole, expected = (look(Path(x["path"]).parent).newest for x in (answer, alone))
    assert whole is not None and expected is not None
    theirs, own = (x.manifest.files.items() - index(x) for x in (whole, expected))
    assert theirs == own and len(own) == 4, "as one node writes it"
    others = halves()
    for rank, node in enumerate(others):
        with pytest.raises(groups.Refused, match="not what the first node has there"):
            groups.fill(filling(node, whole.path, "another"))
        digest = manifest.digest_of(whole.path / manifest.NAME)
        assert groups.fill(filling(node, whole.path, digest)) == {"damaged": ""}
        state, before = node.area(rank).read(0), nodes[rank].area(rank).read(0)
        assert state is not None and before is not None and state.step == 30
        assert bytes(state.state.numpy()) == bytes(before.state.numpy())
    for node in (*nodes, *others):
        node.close()


def test_a_part_that_is_missing_leaves_no_snapshot(tmp_path: Path) -> None:
    where, nodes = tmp_path / "s", halves()
    take(nodes[0], 30)
    one, writing = replace(order(nodes[0], where), step=30), Writing(None)
    draft = Path(writing.obey(DRAFT, one)["path"]).name
    Writing(None).obey(PART, replace(one, draft=draft))
    with pytest.raises(PeerError, match="the workers have no whole snapshot of step 30 in memory"):
        Writing(None).obey(PART, replace(one, place=nodes[1].place, draft=draft))
    with pytest.raises(OSError, match="part-1"):
        writing.obey(MERGE, one)
    writing.drop()
    assert list(where.iterdir()) == []
    for node in nodes:
        node.close()


def test_none_is_taken_of_what_may_be_incomplete(tmp_path: Path, memory: GroupMemory) -> None:
    where = tmp_path / "s"
    with pytest.raises(PeerError, match="no whole snapshot of one step in memory"):
        Writing(None).obey(WHOLE, order(memory, where))
    take(memory, 3)
    memory.board.set(1, Word.FALL, Fall.SCRIPT)
    with pytest.raises(PeerError, match="what is in memory may be incomplete: ftrun cannot follow"):
        Writing(None).obey(WHOLE, order(memory, where))
    assert list(where.iterdir()) == []
    memory.board.set(1, Word.FALL, Fall.LOG_FULL)
    assert Writing(None).obey(WHOLE, order(memory, where))["step"] == 3


def test_a_full_disk_is_told_and_leaves_no_draft(
    tmp_path: Path, memory: GroupMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(memory, 3)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda where: usage._replace(free=100))
    with pytest.raises(PeerError, match="100 B are free"):
        Writing(None).obey(WHOLE, order(memory, tmp_path / "s"))
    assert snapshots(tmp_path / "s") == [] and memory.hold() is not None


def test_a_run_of_another_form_is_refused_before_it_starts(
    tmp_path: Path, memory: GroupMemory
) -> None:
    where, script = tmp_path / "s", tmp_path / "t.py"
    script.touch()
    take(memory, 3)
    Writing(None).obey(WHOLE, order(memory, where))
    one = resolved(str(script), snapshot=where, workers_per_replica=WORKERS)
    name = one.script.name
    found = look(where).newest
    assert found is not None
    own = replace(found.manifest, origin=replace(found.manifest.origin, script=name))
    (found.path / "ftrun.json").write_bytes(own.encode())
    [line] = prepare(one)
    assert line.startswith("The job resumes from step 3, the newest") and "of 2 workers" in line
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
            assert "resumes from step 3" in prepare(one)[0]
