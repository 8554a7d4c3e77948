"""A machine's shortages are reported in one line, with exit code 2, and no traceback."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from ftrun.base.descriptors import descriptors_needed
from tests.jobs import ROOT, Job

WAITS = """
import resource, signal
print("up, files", *resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)
signal.pause()
"""


def few_files(kind: str, limit: int) -> tuple[str, ...]:
    """``kind``: -S for the soft limit, -H for both."""
    both = f"ulimit -Sn {limit}; " + (f"ulimit -Hn {limit}; " if kind == "-H" else "")
    return ("sh", "-c", f'{both}exec "$@"', "sh")


def no_loopback() -> tuple[str, ...]:
    """In a network namespace whose loopback interface is down."""
    within = ("unshare", "-rn")
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1) here")
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may make no network namespaces")
    return within


def refusal(job: Job) -> str:
    """The one line of output of a job that cannot start."""
    assert job.end() == 2, job.output
    (line,) = job.output.splitlines()
    assert "Nothing was started." in line
    assert not job.logs.exists()
    assert job.left() == []
    return line


def test_too_few_descriptors_are_said_before_anything_starts(tmp_path: Path) -> None:
    needed = descriptors_needed(2, 1, 2)
    with Job(tmp_path, WAITS, "--replicas", "2", within=few_files("-H", 32)) as job:
        line = refusal(job)
    assert f"2 x 1 workers on this node may need {needed} open files" in line
    assert "32 is the most that is allowed (ulimit -Hn)" in line
    assert "Raise that to 1024 or more" in line


def test_a_soft_limit_is_raised_without_a_word_and_a_script_keeps_its_share(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = 32 + descriptors_needed(2, 1, 2)
    with Job(tmp_path, WAITS, "--replicas", "2", within=few_files("-S", 32)) as job:
        job.expect(rf"up, files {raised} {hard}$", 2)
        assert "ulimit" not in job.output
        job.signal(signal.SIGTERM)
        assert job.end() == 75


def test_no_descriptor_to_start_with_is_said(tmp_path: Path) -> None:
    with Job(tmp_path, WAITS, within=few_files("-H", 6)) as job:
        assert "No process can be started (Too many open files)" in refusal(job)


def test_without_a_loopback_interface_the_job_ends_at_once_and_says_why(tmp_path: Path) -> None:
    with Job(tmp_path, WAITS, "--replicas", "2", within=no_loopback()) as job:
        line = refusal(job)
    assert "This node cannot reach itself at 127.0.0.1 (Network is unreachable)" in line
    assert "ip link set lo up" in line


def test_a_torch_that_cannot_be_imported_is_named_in_one_line(tmp_path: Path) -> None:
    """Like PyPI's torch without CUDA's libraries; the test's torch shadows the real one."""
    (tmp_path / "torch").mkdir()
    words = "libcudnn.so.9: cannot open shared object file"
    (tmp_path / "torch" / "__init__.py").write_text(f"raise ImportError({words!r})")
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    with Job(tmp_path, WAITS, environment=path) as job:
        assert job.end() == 2
        assert f"The job ends here: torch cannot be imported: ImportError: {words}." in job.output
        assert "Traceback" not in job.output
        assert job.left() == []


def limit_descriptors(pid: int, limit: int) -> None:
    """The soft limit: it can be raised again."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))


@pytest.mark.slow
def test_stores_that_run_out_of_descriptors_end_the_job_with_one_line(tmp_path: Path) -> None:
    with Job(tmp_path, WAITS, "--replicas", "2") as job:
        job.expect("up, files", 2)
        limit_descriptors(job.stores(), 20)
        os.kill(job.worker(1), signal.SIGKILL)
        assert job.end() == 2
        assert "The job ends here: no TCPStore can be opened at 127.0.0.1" in job.output
        assert "(Too many open files). Its process may have 20 files open" in job.output
        assert not re.search("Traceback|frame #", job.output)
        assert job.left() == []


@pytest.mark.slow
def test_a_spawner_that_runs_out_of_descriptors_says_so_and_tries_on(tmp_path: Path) -> None:
    with Job(tmp_path, WAITS, "--replicas", "2") as job:
        job.expect("up, files", 2)
        limit_descriptors(job.spawner(), 8)
        os.kill(job.worker(1), signal.SIGKILL)
        job.expect("replica 1 could not be started: Too many open files. Restart")
        limit_descriptors(job.spawner(), 1024)
        job.expect("up, files", 3)
        assert "Traceback" not in job.output
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        assert job.left() == []
