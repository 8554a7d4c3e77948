"""Snapshots of a replica of several workers: parts of one checkpoint, each worker's own back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ftrun.base.errors import PeerError
from ftrun.checkpoint import meshes
from ftrun.snapshots import manifest
from ftrun.snapshots.directory import look, make_draft
from ftrun.snapshots.manifest import Damaged, Origin
from ftrun.snapshots.merging import merge
from ftrun.snapshots.parts import write_outline, write_part
from ftrun.snapshots.reading import read
from tests.unit.snapshots.test_writer import READ_ALONE
from tests.unit.snapshots.written import ORIGIN, newest, tree_of
from tests.unit.snapshots.written_parts import state_of, write_parts

WORKERS = 3
WHOLE = torch.arange(20.0).reshape(5, 4)
HEAD = torch.full((1, 4), 7.0)


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    """A mesh wants a process group, also one that sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORKERS)
    yield
    dist.destroy_process_group()


def part(whole: torch.Tensor, rank: int, step: int = 7) -> Any:
    """The rows of one worker, as FSDP2 deals them."""
    size = -(-len(whole) // WORKERS)
    return meshes_part(whole + step, rank * size, min(len(whole), (rank + 1) * size))


def meshes_part(whole: torch.Tensor, begin: int, end: int) -> Any:
    """The DTensor of these rows."""
    text = json.dumps(
        [["shard 0"], list(whole.shape), list(whole.stride()), "cpu", [WORKERS], None, ["fsdp"]],
        separators=(",", ":"),
    )
    return meshes.rebuild(text, whole[min(begin, len(whole)) : end].clone())


def user_of(rank: int, step: int = 7) -> dict[str, Any]:
    """A worker's state: shards, what is replicated, and what is its own."""
    return {
        "model": {"w": part(WHOLE, rank, step), "head": part(HEAD, rank, step)},
        "adam": {"state": {0: {"step": torch.tensor(3.0), "m": part(2 * WHOLE, rank, step)}}},
        "rest": {"rng": torch.full((4,), rank), "seen": 10 + rank, "both": torch.ones(3)},
    }


def begins(whole: torch.Tensor, rank: int) -> tuple[int, ...]:
    """Where the rows of one worker begin."""
    return min(len(whole), rank * -(-len(whole) // WORKERS)), 0


def chunk_of(path: str, rank: int) -> tuple[int, ...]:
    """Of a DTensor with this path."""
    return begins(HEAD if path.endswith("head") else WHOLE, rank)


def write_all(where: Path, step: int = 7, **changes: Any) -> Path:
    """One snapshot of all workers."""
    trees = [tree_of(step, **user_of(rank, step)) for rank in range(WORKERS)]
    return write_parts(where, trees, chunk_of, **changes)


def local(value: Any) -> Any:
    """The bytes of a tensor here."""
    return value._local_tensor if hasattr(value, "_local_tensor") else value


def test_each_worker_reads_its_own_part(tmp_path: Path) -> None:
    path = write_all(tmp_path)
    found = newest(tmp_path)
    manifest.verify(path, found.manifest)
    names = {f"__{rank}_0.distcp" for rank in range(WORKERS)}
    names |= {"ftrun.leaves.1", "ftrun.leaves.2", ".metadata", "ftrun.json"}  # of random numbers
    assert {file.name for file in path.iterdir()} == names
    for rank in range(WORKERS):
        mine = tree_of(7, **user_of(rank))
        user = read(found, tree_of(7, **user_of(rank, step=0)), rank)["user"]
        for key in ("w", "head"):
            assert torch.equal(local(user["model"][key]), local(mine["user"]["model"][key])), key
            assert user["model"][key].shape == mine["user"]["model"][key].shape
        assert torch.equal(
            local(user["adam"]["state"][0]["m"]), local(mine["user"]["adam"]["state"][0]["m"])
        )
        assert user["rest"]["seen"] == 10 + rank and user["rest"]["rng"].tolist() == [rank] * 4
        assert found.manifest.share(rank).position == f"place of {rank}"
    with pytest.raises(Damaged, match="no part of worker 3"):
        found.manifest.share(3)


def test_what_is_replicated_is_stored_once(tmp_path: Path) -> None:
    write_all(tmp_path)
    shares = [newest(tmp_path).manifest.share(rank) for rank in range(WORKERS)]
    places = [
        {leaf.spec[1] + leaf.spec[2]: (leaf.file, leaf.offset) for leaf in share.leaves}
        for share in shares
    ]
    for path in (".user.rest.both", ".user.adam.state[0].step"):
        assert len({place[path] for place in places}) == 1, path
    assert len({place[".user.rest.rng"] for place in places}) == WORKERS


def test_torch_alone_reads_one_checkpoint(tmp_path: Path) -> None:
    path = write_all(tmp_path)
    root = str(Path(__file__).parents[3])
    program = READ_ALONE.partition("state = {{")[0].format(root=root) + (
        f"state = {{'model': {{'w': torch.zeros(5, 4), 'head': torch.zeros(1, 4)}}}}\n"
        f"dcp.load(state, checkpoint_id={str(path)!r}, no_dist=True)\n"
        f"dcp_to_torch_save({str(path)!r}, {str(tmp_path / 'whole.pt')!r})\n"
        f"whole = torch.load({str(tmp_path / 'whole.pt')!r}, weights_only=False)\n"
        "print(json.dumps([state['model']['w'].tolist(), state['model']['head'].tolist(),"
        " whole['adam']['state']['0']['m'].tolist(), whole['model']['w'].tolist(),"
        " whole['rest']['seen'], whole['ftrun']['step']]))\n"
    )
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True, text=True, timeout=400, cwd=tmp_path, env=environ, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    w, head, moments, again, seen, step = json.loads(done.stdout)
    assert w == again == (WHOLE + 7).tolist() and head == (HEAD + 7).tolist()
    assert moments == (2 * WHOLE + 7).tolist() and (seen, step) == (10, 7)


def test_a_part_of_another_step_and_a_gap_are_refused(tmp_path: Path) -> None:
    """A draft is a snapshot only if its parts are of one state, and cover each tensor."""
    trees = [tree_of(7, **user_of(rank)) for rank in range(WORKERS)]
    states = [state_of(tree, rank, chunk_of) for rank, tree in enumerate(trees)]

    def merged(name: str, states: list[Any]) -> None:
        draft = make_draft(tmp_path, 7, name)
        write_outline(draft, states[0])
        for state in states:
            write_part(draft, state)
        merge(draft, WORKERS, Origin(**ORIGIN))

    with pytest.raises(PeerError, match="worker 1 has copied step 8, and worker 0 step 7"):
        merged("a", [states[0], replace(states[1], step=8), states[2]])
    moved = replace(states[1], chunks=tuple(c and (3, 0) for c in states[1].chunks))
    with pytest.raises(PeerError, match="torch cannot save it"):
        merged("b", [states[0], moved, states[2]])
    draft = make_draft(tmp_path, 7, "c")
    write_outline(draft, states[0])
    write_part(draft, states[0])
    with pytest.raises(FileNotFoundError, match=r"\.part-1"):
        merge(draft, WORKERS, Origin(**ORIGIN))
    assert look(tmp_path).newest is None


@pytest.mark.parametrize("rank", [0, 1])
def test_only_those_who_read_a_file_find_it_damaged(tmp_path: Path, rank: int) -> None:
    path = write_all(tmp_path)
    file = path / f"__{rank}_0.distcp"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    found, bad = newest(tmp_path), []
    for reader in range(WORKERS):
        try:
            read(found, tree_of(7, **user_of(reader)), reader)
        except Damaged:
            bad.append(reader)
    assert bad == ([0, 1, 2] if rank == 0 else [1]), "the first one holds what is replicated"
