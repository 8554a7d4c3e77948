"""One group without replicas: what its workers have in memory is on a disk, when all is lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from ftrun.snapshots.directory import look, snapshots
from tests.jobs import Job
from tests.process.test_operators import command
from tests.snapshots.jobs import kill_everything
from tests.zero_edit.test_memory_snapshots import OPTIONS, ends, kill
from tests.zero_edit.test_memory_snapshots import SCRIPT as SHORT

pytestmark = pytest.mark.timeout(300)
HELD_AT, STEPS = 75, 110
SCRIPT = (
    SHORT.replace("steps == 60", f"steps == {HELD_AT}")
    .replace("range(6)", f"range({STEPS // 11})")
    .replace("        time.sleep(0.02)\n        while", "        time.sleep(0.05)\n        while")
)
"""Steps that take long enough for some snapshots, and not too many: each costs every worker."""


def start(tmp_path: Path, name: str, kind: str, *options: str, is_over: bool = False) -> Job:
    """``is_over``: it does not wait at step ``HELD_AT``."""
    (tmp_path / name).mkdir()
    if is_over:
        (tmp_path / name / "over").touch()
    return Job(tmp_path / name, SCRIPT, *OPTIONS, *options, args=(kind,))


@pytest.mark.parametrize("kind", ["fsdp", pytest.param("ddp", marks=pytest.mark.slow)])
def test_all_is_killed_while_one_is_written_and_the_end_is_the_same(
    tmp_path: Path, kind: str
) -> None:
    with start(tmp_path, "calm", kind, is_over=True) as job:
        assert job.end() == 0
        undisturbed = ends(job)
    where = tmp_path / "snapshots"
    on = ("--snapshot", str(where), "--snapshot-every", "1s")
    with start(tmp_path, "killed", kind, *on) as job:
        job.expect(r"wrote the snapshot of step \d+ to .*; no worker waited")
        shutil.rmtree(where)
        where.touch()
        job.expect(
            r"a snapshot was not written: .*\. Training continues; the next one is due in 1 s"
        )
        where.unlink()
        job.until(lambda: bool(snapshots(where)), "another snapshot")
        job.until(lambda: any(where.glob(".draft-*")), "a draft")
        kill_everything(job)
    with start(tmp_path, "again", kind, *on) as job:
        job.expect(r"The job resumes from step \d+, the newest snapshot in .* of 3 workers, ")
        job.expect(rf"\[0\.1\] step {HELD_AT}: ")
        writer = job.titled("ftrun snapshots")
        os.kill(writer, signal.SIGKILL)
        job.expect_process("ftrun snapshots", but=writer)
        kill(job, 1)
        job.expect(
            r"worker 0\.1 .* All continued after \S+ s, and no step was lost\. Restart 1 of 10\."
        )
        (tmp_path / "again/over").touch()
        assert job.end() == 0
        assert ends(job) == undisturbed
        assert not job.left()
        began = int(re.findall(r"resumes from step (\d+),", job.output)[0])
        steps = [int(x) for x in re.findall(r"^\[0\.2\] step (\d+): ", job.output, re.MULTILINE)]
        assert steps == list(range(began + 1, STEPS + 1)) and began > 0


def test_a_job_that_is_stopped_leaves_what_its_workers_had_in_memory(tmp_path: Path) -> None:
    """So does one of which no restart is left."""
    where = tmp_path / "snapshots"
    on = ("--snapshot", str(where), "--snapshot-every", "1h")
    with start(tmp_path, "stopped", "fsdp", *on) as job:
        job.expect(rf"\[0\.1\] step {HELD_AT}: ")
        job.process.send_signal(signal.SIGTERM)
        job.expect(r"The last snapshot is of step \d+\. The same command resumes from there\.")
        job.end()
    found = look(where).newest
    assert found is not None, job.output
    assert found.manifest.step > HELD_AT // 2
    spent = (*on, "--max-restarts", "0")
    with start(tmp_path, "failed", "fsdp", *spent) as job:
        job.expect(rf"resumes from step {found.manifest.step}, ")
        job.expect(rf"\[0\.1\] step {HELD_AT}: ")
        assert command(tmp_path / "failed", "restart", "0")[0] == 0  # without its memory
        job.expect(rf"\[0\.1\] step {found.manifest.step + 1}: ")
        (tmp_path / "failed/over").touch()
        job.expect(rf"\[0\.1\] step {HELD_AT + 20}: ")
        kill(job, 2)
        assert job.end() != 0
    last = look(where).newest
    assert last is not None and last.manifest.step > found.manifest.step, job.output
