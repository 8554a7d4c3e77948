"""Names, ages, what is kept and what is set aside; the shared memory; a malformed manifest."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import xxhash

from ftrun.base.errors import UserError
from ftrun.checkpoint.format import pack
from ftrun.config.rendezvous import Rendezvous
from ftrun.snapshots import directory, manifest
from ftrun.snapshots.manifest import Damaged, Unknown
from ftrun.snapshots.memory import PIECE_BYTES, SharedMemory, offsets_of
from ftrun.snapshots.starting import prepare
from tests.unit.run_settings import run_settings
from tests.unit.snapshots.written import ORIGIN, newest, tree_of, write_tree


def written(where: Path, *steps: int) -> None:
    """Snapshots of these steps."""
    for step in steps:
        write_tree(where, tree_of(step, a={"x": torch.ones(2)}), keep=9)


def test_the_newest_is_that_of_the_highest_step(tmp_path: Path) -> None:
    assert directory.look(tmp_path / "none").newest is None
    written(tmp_path, 9, 100, 10_000_000)
    (tmp_path / "step-7").mkdir()  # not a name of ours
    assert [int(p.name[5:]) for p in directory.snapshots(tmp_path)] == [10_000_000, 100, 9]
    assert newest(tmp_path).manifest.step == 10_000_000
    below = directory.look(tmp_path, below=10_000_000).newest
    assert below is not None and below.manifest.step == 100


def test_a_job_goes_on_from_the_newest_that_all_replicas_agreed_on(tmp_path: Path) -> None:
    settings = run_settings(snapshot=tmp_path)
    origin = {**ORIGIN, "script": settings.script.name}
    for step in (1, 2, 3, 4):
        tree = tree_of(step, a={"x": torch.ones(2)})
        write_tree(tmp_path, tree, keep=9, agreed=0, origin=origin)
    paths = directory.snapshots(tmp_path)
    assert newest(tmp_path).path == paths[0]  # none is better
    before = directory.age_s(tmp_path)
    directory.agree(paths[2], 3)
    looked = directory.look(tmp_path)
    assert looked.newest is not None and looked.newest.manifest.agreed == 3
    assert looked.unagreed == tuple(paths[:2]) and "it is unknown whether" in looked.words()
    text = " ".join(prepare(settings))
    assert "step-000000000004, step-000000000003: newer, but skipped" in text
    after = directory.age_s(tmp_path)
    assert before is not None and after is not None and after >= before
    assert directory.prune(tmp_path, 1, keeps_agreed=True) == 2
    assert directory.snapshots(tmp_path) == [paths[0], paths[2]]


def test_what_is_ahead_of_the_snapshot_that_is_written_is_given_up(tmp_path: Path) -> None:
    written(tmp_path, 1, 9, 4)
    assert newest(tmp_path).manifest.step == 4
    assert (tmp_path / "step-000000000009.given-up").is_dir()


def test_an_age_is_by_the_clock_of_the_file_system(tmp_path: Path) -> None:
    assert directory.age_s(tmp_path) is None
    written(tmp_path, 1)
    file = newest(tmp_path).path / manifest.NAME
    now = file.stat().st_mtime
    os.utime(file, (now - 500, now - 500))
    found = directory.age_s(tmp_path)
    assert found is not None and 499 < found < 560
    os.utime(file, (now + 500, now + 500))
    assert directory.age_s(tmp_path) == 0.0
    assert len(list(tmp_path.iterdir())) == 1  # the probe is gone


def test_set_aside_and_damaged_ones_are_not_taken(tmp_path: Path) -> None:
    assert directory.set_aside(tmp_path) is None
    written(tmp_path, 1, 2)
    directory.set_damaged(newest(tmp_path).path)
    assert newest(tmp_path).manifest.step == 1
    aside = directory.set_aside(tmp_path)
    assert aside is not None and aside.name.startswith("earlier-")
    assert [p.name for p in aside.iterdir()] == ["step-000000000001"]
    assert directory.look(tmp_path).newest is None


# ------------------------------------------------------------ manifests


def signed(parts: object) -> bytes:
    """A manifest of these parts whose hash is right."""
    body = json.dumps(parts).encode()
    return body + b"\n" + xxhash.xxh3_128_hexdigest(body).encode() + b"\n"


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../../etc/passwd": [1, "x"]}},
        {"files": {}},
        {"leaves": [[[], "__0_0.distcp", 0, 10**12, False]]},
        {"leaves": [[[], "__0_0.distcp", -1, 1, False]]},
        {"leaves": 7},
        {"origin": {"who": "me"}},
        {"step": "seven"},
    ],
    ids=str,
)
def test_a_manifest_that_names_what_is_not_there_is_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    written(tmp_path, 1)
    path = newest(tmp_path).path / manifest.NAME
    parts = json.loads(path.read_bytes().partition(b"\n")[0])
    assert manifest.decode(signed(parts)).step == 1
    with pytest.raises(Damaged, match="malformed"):
        manifest.decode(signed({**parts, **change}))


def test_another_format_is_refused_and_older_ones_are_not_taken_instead(tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    path = newest(tmp_path).path / manifest.NAME
    parts = json.loads(path.read_bytes().partition(b"\n")[0])
    path.write_bytes(signed({**parts, "format": "ftrun.snapshot/9"}))
    with pytest.raises(Unknown, match=r"ftrun\.snapshot/9"):
        directory.look(tmp_path)
    with pytest.raises(UserError, match="Update ftrun, or start over with --resume none"):
        prepare(run_settings(snapshot=tmp_path))


# ------------------------------------------------------------ the start of a run


def test_a_start_says_where_the_job_begins(tmp_path: Path) -> None:
    where = tmp_path / "s"
    settings = run_settings(snapshot=where, script=run_settings().script)
    assert prepare(run_settings()) == []
    [line] = prepare(settings)
    assert line.startswith(f"No snapshot is in {where} yet, so the job starts at step 0.")
    own = {"script": settings.script.name, "inject": "explicit"}
    origin = {**own, "workers_per_replica": 1, "replicas": 3, "job_id": "j"}
    write_tree(where, tree_of(5, a={"x": torch.ones(2)}), origin=origin)
    [line] = prepare(settings)
    assert f"resumes from step 5, the newest snapshot in {where}" in line and "3 replicas" in line
    other = tmp_path / "other"
    [line] = prepare(replace(settings, snapshot=other, resume=str(where)))
    assert f"resumes from step 5, the newest snapshot in {where}" in line and str(other) in line
    with pytest.raises(UserError, match="the job on the other nodes"):
        prepare(replace(settings, resume="none", lighthouse="h:1"))
    meeting = Rendezvous(2, 2, None, "h", 1, is_static=False, stated_by="--rdzv-endpoint")
    with pytest.raises(UserError, match="the job on the other nodes"):
        prepare(replace(settings, resume="none", rendezvous=meeting))
    with pytest.raises(UserError, match=r"is a snapshot of .* with --inject explicit"):
        prepare(replace(settings, inject="ddp"))
    (newest(where).path / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"step-000000000005 is damaged.*No complete snapshot is left"
    ):
        prepare(settings)
    assert directory.snapshots(where) == []


# ------------------------------------------------------------ memory


@pytest.mark.parametrize("threads", [1, 3])
def test_memory_holds_what_was_copied_and_grows(threads: int) -> None:
    memory = SharedMemory()
    theirs = SharedMemory(os.dup(memory.fd))
    try:
        for size in (10, 3 * PIECE_BYTES // 4 + 7):
            tree = {"a": torch.rand(size), "b": b"some bytes", "c": torch.ones(0), "d": b""}
            leaves = pack(tree).leaves
            offsets, nbytes = offsets_of([leaf.spec.nbytes for leaf in leaves])
            memory.reserve(nbytes)
            memory.touch()
            memory.fill(leaves, offsets, threads)
            theirs.reserve(nbytes)
            found = theirs.view(offsets[0], leaves[0].spec.nbytes).view(torch.float32)
            assert torch.equal(found, tree["a"])  # type: ignore[arg-type]
            assert theirs.view(offsets[1], 10).numpy().tobytes() == b"some bytes"
            assert theirs.view(offsets[2], 0).numel() == 0
    finally:
        memory.close()
        os.close(theirs.fd)
