"""The batch script of ``ftrun sbatch``, and what is refused before Slurm gets anything."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.unit.test_cli import ftrun, script

__all__ = ["script"]
STEP = "srun --no-kill --kill-on-bad-exit=0 --wait=0 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="


def printed(text: str, cwd: Path) -> tuple[list[str], str]:
    """The lines for sbatch, and the last one's words of ftrun."""
    done = ftrun("sbatch", "--print", *text.split(), cwd=cwd)
    assert done.returncode == 0, done.stderr
    first, *rows, last = done.stdout.splitlines()
    assert first == "#!/bin/bash"
    assert all(row.startswith("#SBATCH ") for row in rows)
    assert last.startswith(STEP)
    return [row.removeprefix("#SBATCH ") for row in rows], last.partition("ftrun ")[2]


def test_the_flags_that_a_job_needs_are_added(script: Path) -> None:
    rows, words = printed("-N4 --time 8:00:00 -- --replicas 4 train.py --lr 1", script.parent)
    assert rows == [
        "-N4", "--time 8:00:00", "--job-name=train", "--ntasks-per-node=1", "--no-kill",
        "--open-mode=append", "--signal=USR1@60",
    ]  # fmt: skip
    assert words == "--preempt-signal USR1 --replicas 4 train.py --lr 1"


def test_what_is_stated_stays_and_both_sides_get_it(script: Path) -> None:
    options = "-J mine -N 2 --requeue --signal=R:SIGUSR2@300 --open-mode=truncate"
    rows, words = printed(f"{options} -- --replicas 2 train.py", script.parent)
    assert rows == [
        "-J mine", "-N 2", "--requeue", "--signal=R:SIGUSR2@300", "--open-mode=truncate",
        "--ntasks-per-node=1", "--no-kill",
    ]  # fmt: skip
    assert words == "--preempt-signal USR2 --requeue --replicas 2 train.py"
    own = "--replicas 2 --requeue --preempt-signal SIGUSR2 train.py"
    rows, words = printed(f"--nodes=2 -- {own}", script.parent)
    assert rows[-2:] == ["--signal=USR2@60", "--requeue"]
    assert words == own


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-N2 train.py", "There is no -- behind sbatch's options"),
        ("-N2 --", "There is no script"),
        ("-N2 a b -- train.py", "'a' before --"),
        ("-N2 -- --replica 4 train.py", "No such option: --replica"),
        ("-N2 -- --replicas 0 train.py", "--replicas 0"),
        ("-N2 -- --replicas 2 other.py", "'other.py' does not exist"),
        ("-N2 -- --nproc-per-node 2 train.py", "needs --replicas N"),
        ("-n4 -- --replicas 4 train.py", "another number of tasks"),
        ("--ntasks-per-node=2 -- --replicas 4 train.py", "another number of tasks"),
        ("--signal=B:USR1@60 -- --replicas 2 train.py", "B: has Slurm signal the script alone"),
        ("--signal=@@ -- --replicas 2 train.py", "SIGNAL@SECONDS"),
        ("--signal=KILL@60 -- --replicas 2 train.py", "SIGKILL: a program cannot handle"),
        ("--signal=USR2@9 -- --replicas 2 --preempt-signal USR1 train.py", "differ"),
        ("--no-requeue -- --replicas 2 --requeue train.py", "--no-requeue, and --requeue"),
        ("-N2 -- --nodes 3 --replicas 2 train.py", "--nodes 3 of ftrun differ"),
        ("--wrap=true -- --replicas 2 train.py", "--wrap"),
        ("-N1 : -N2 -- --replicas 2 train.py", "several components"),
    ],
)
def test_what_would_fail_later_is_refused(script: Path, words: str, said: str) -> None:
    done = ftrun("sbatch", *words.split(), cwd=script.parent, PATH=os.defpath)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_script_goes_to_sbatch_and_its_code_comes_back(script: Path) -> None:
    slurm = script.parent / "bin"
    slurm.mkdir()
    (slurm / "sbatch").write_text("#!/bin/sh\necho Submitted; cat > got; exit 3\n")
    (slurm / "sbatch").chmod(stat.S_IRWXU)
    words = ("-N2", "--comment", "two words", "--", "--replicas", "2", "train.py", "a b")
    path = f"{slurm}:{os.environ['PATH']}"
    done = ftrun("sbatch", *words, cwd=script.parent, PATH=path)
    assert (done.returncode, done.stdout) == (3, "Submitted\n")
    got = (script.parent / "got").read_text()
    assert "\n#SBATCH --comment 'two words'\n" in got
    assert got.endswith(" --replicas 2 train.py 'a b'\n")
    done = ftrun("sbatch", *words, cwd=script.parent, PATH=str(script.parent))
    assert done.returncode == 2
    assert "There is no sbatch on this machine" in done.stderr
