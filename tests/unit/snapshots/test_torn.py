"""A writer that is killed at each of its file operations leaves older snapshots, or the new one.

A process with torch loaded forks a writer for each operation and kills it there: at the n-th event
of the interpreter that names a path in the directory (open, rename, mkdir, remove …), and at the
n-th fsync. What is left is looked at after each.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import THIS_TREE, run

OPERATIONS_MAX = 200

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from ftrun.snapshots import manifest
from ftrun.snapshots.directory import look
from ftrun.snapshots.reading import read
from tests.unit.snapshots.written import tree_of, write_tree
from tests.unit.snapshots.written_parts import write_parts

where, keep, workers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4])

def tree(step):
    return tree_of(step, a={"w": torch.full((1000,), float(step)), "p": (torch.ones(3),)})

def write(step):
    if workers == 1:
        write_tree(where, tree(step), keep=keep)
    else:
        write_parts(where, [tree(step)] * workers, lambda path, rank: (0,), keep=keep)

write(1)
write(2)

def die_at(number):
    left = [number]
    def count(*_):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    def hook(event, args):
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir"):
            if any(str(where) in os.fsdecode(x) for x in args if isinstance(x, (str, bytes, Path))):
                count()
    sys.addaudithook(hook)
    plain = os.fsync
    def fsync(fd):
        count()
        plain(fd)
        count()
    os.fsync = fsync

for number in range(int(sys.argv[3])):
    pid = os.fork()
    if pid == 0:
        die_at(number)
        write(3)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    looked = look(where)
    found = looked.newest
    manifest.verify(found.path, found.manifest)
    state = read(found, tree(0))["user"]["a"]["w"].unique().tolist()
    names = sorted(p.name for p in where.iterdir())
    row = [status, found.manifest.step, state, [str(p) for p, _ in looked.passed_over], names]
    print(json.dumps(row), flush=True)
    if status == 0:
        break
    for name in names:  # the next writer begins where this one did
        if name == "step-000000000003":
            import shutil
            shutil.rmtree(where / name)
            if keep == 1 and "step-000000000002" not in names:
                write(2)
"""


def rows(directory: Path, keep: int, workers: int = 1) -> list[list[Any]]:
    """What each killed writer has left; the last one was not killed."""
    program = directory.with_suffix(".py")
    program.write_text(PROGRAM)
    words = (str(program), str(directory), str(keep), str(OPERATIONS_MAX), str(workers))
    done = run(
        [sys.executable, *words],
        capture_output=True, text=True, timeout=500, env={**os.environ, **THIS_TREE},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("keep", "workers"), [(1, 1), (3, 1), (1, 2)])
def test_killed_at_each_file_operation(tmp_path: Path, keep: int, workers: int) -> None:
    """Also where two workers have parts, at each operation of either, and of the merge."""
    found = rows(tmp_path / "snapshots", keep, workers)
    assert found[-1][0] == 0, "it was killed at all operations that are looked at"
    assert len(found) > 15, found
    assert {status for status, *_ in found[:-1]} == {9}
    assert {step for _, step, *_ in found} == {2, 3}, "killed before and after it had its name"
    for _, step, state, passed_over, names in found:
        assert state == [float(step)]
        assert passed_over == [], names  # a torn one never gets the name of a whole one
