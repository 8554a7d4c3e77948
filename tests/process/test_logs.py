"""Logs of real jobs: one worker's bytes as they are, a restart followed, old jobs' logs removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.jobs import THIS_TREE, Job, run

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0
DATA = b"partial\r10%\r20%\n\x00\xff\x1b[A no end"
WRITES = f"import os; os.write(1, {DATA!r}); os.write(2, b'own line')"
FLOOD = "import sys\nfor i in range(200_000): sys.stdout.write(f'{i:09}\\n')"
DIES_ONCE = """
import os, signal, sys, time
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
print("first life" if first else "second life", flush=True)
if first and os.environ["RANK"] == "1":
    open("printed", "w").close()
    signal.pause()  # until its group is killed for the death of worker 0
if first:
    while not os.path.exists("printed"):
        time.sleep(0.01)
    sys.stderr.write("last words")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)
print("done", file=sys.stderr)
"""


def ftrun(directory: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return run(
        [sys.executable, "-m", "ftrun", *words],
        cwd=directory,
        env={
            **os.environ,
            **THIS_TREE,
            "XDG_STATE_HOME": str(directory / "state"),
            "TMPDIR": str(directory),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_stdout_is_the_scripts_and_old_logs_go(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WRITES)
    first = ftrun(tmp_path, "--job-id", "first", "script.py")
    assert (first.returncode, first.stdout) == (0, DATA)
    assert b"own lineftrun: " in first.stderr  # before it may stand why a slow machine waits
    second = ftrun(tmp_path, "--job-id", "second", "--log-keep", "0jobs", "script.py")
    assert second.stdout == DATA
    assert b"--log-keep: removed the logs of 1 finished job from ftrun-logs" in second.stderr
    assert [path.name for path in (tmp_path / "ftrun-logs").iterdir()] == ["second"]
    shown = ftrun(tmp_path, "logs", "--stream", "err")
    assert shown.stdout == b"own line\n"
    assert ftrun(tmp_path, "logs", "4").returncode == 2


def test_a_flood_is_whole_on_stdout_and_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FLOOD)
    whole = b"".join(b"%09d\n" % number for number in range(200_000))
    done = ftrun(tmp_path, "--job-id", "job", "script.py")
    assert done.stdout == whole
    assert (tmp_path / "ftrun-logs/job/replica_0/rank_0/0.log").read_bytes() == whole
    limited = ftrun(tmp_path, "--job-id", "limited", "--log-max-size", "1MiB", "script.py")
    assert limited.stdout == whole
    assert b"--log-max-size: the first " in limited.stderr
    kept = ftrun(tmp_path, "logs", "--job", "limited", "--stream", "out").stdout
    assert whole.endswith(kept)
    assert len(kept) > 1 << 19


def test_logs_follow_a_job_over_a_restart(tmp_path: Path) -> None:
    options = ("--inject", "off", "--max-restarts", "3", "-r", "2", "--merged-log")
    with Job(tmp_path, DIES_ONCE, *options, "-w", "2") as job:
        job.expect(r"^\[0\.0\] first life")
        place = ("--log-dir", str(job.logs), "--job", "job")
        following = ftrun(tmp_path, "logs", "0/0", "-f", "--attempt", "all", *place)
        assert job.end() == 0
    assert following.stdout == b"first life\nlast words\nsecond life\ndone\n"
    assert b"ftrun: The job has ended. Its logs are in " in following.stderr
    rank = job.logs / "job" / "replica_0" / "rank_0"
    assert (rank / "0.log").read_bytes() == b"first life\nlast words"
    assert (rank / "1.stderr.log").read_bytes() == b"done\n"
    assert "last words" not in job.output
    merged = (job.logs / "job" / "merged.log").read_text()
    assert all(f" [0.1] {words}\n" in merged for words in ("first life", "second life", "done"))
    assert "ftrun: The job has finished" in merged
    assert not job.left()
