"""The files by which ``ftrun status`` finds jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.tools.status.jobs import (
    RunningJob,
    agent_lives,
    birth_mark,
    job_file,
    jobs_dir,
    jobs_elsewhere,
    read_job,
    remove_job,
    running_jobs,
    stale_jobs,
    write_job,
)

JOB = RunningJob(
    "job-1", "127.0.0.1:29511", os.getpid(), "/logs", "/token", "2026-01-01T00:00:00",
    birth=birth_mark(os.getpid()),
)  # fmt: skip


def test_a_job_is_written_read_and_removed(tmp_path: Path) -> None:
    path = write_job(JOB, tmp_path / "jobs")
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_job("job-1", tmp_path / "jobs") == JOB
    assert os.listdir(tmp_path / "jobs") == ["job-1.json"]
    remove_job("job-1", tmp_path / "jobs")
    assert os.listdir(tmp_path) == []
    remove_job("job-1", tmp_path / "jobs")
    assert read_job("job-1", tmp_path / "jobs") is None


def test_running_jobs_are_those_whose_agent_lives_newest_first(tmp_path: Path) -> None:
    agent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    killed = replace(JOB, job_id="killed", pid=agent.pid, birth=birth_mark(agent.pid))
    write_job(JOB, tmp_path)
    write_job(replace(JOB, job_id="job-2", started="2026-01-02T00:00:00"), tmp_path)
    write_job(killed, tmp_path)
    assert killed in running_jobs(tmp_path)
    agent.kill()
    os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
    assert killed not in running_jobs(tmp_path)  # a zombie runs nothing
    agent.communicate()
    assert [job.job_id for job in running_jobs(tmp_path)] == ["job-2", "job-1"]
    assert running_jobs(tmp_path / "none") == []


def test_a_stranger_with_a_killed_agents_pid_is_no_job(tmp_path: Path) -> None:
    """A process with that pid runs, but another one wrote the file."""
    place, _, ticks = birth_mark(os.getpid()).partition("/")
    write_job(replace(JOB, birth=f"{place}/{int(ticks) - 1}"), tmp_path)
    assert running_jobs(tmp_path) == []
    assert stale_jobs(tmp_path) != []
    assert read_job("job-1", tmp_path) is not None


@pytest.mark.parametrize("other", ["another-boot.4026531836", "{boot}.1"])
def test_a_job_of_another_machine_is_found_and_not_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: str
) -> None:
    """Its home directory is shared: another machine, or a container with pids of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place, _, ticks = birth_mark(os.getpid()).partition("/")
    there = other.format(boot=place.partition(".")[0])
    elsewhere = replace(JOB, birth=f"{there}/{ticks}", host="c3", http="c3:29511")
    write_job(elsewhere, jobs_dir().parent / there)
    assert (running_jobs(), stale_jobs(), jobs_elsewhere()) == ([], [], [elsewhere])
    assert read_job("job-1") == elsewhere
    assert agent_lives(elsewhere) is None
    assert job_file(elsewhere) == jobs_dir().parent / there / "job-1.json"
    write_job(JOB)  # the same job has an agent here too, whose file counts first
    assert read_job("job-1") == JOB
    remove_job("job-1")
    assert read_job("job-1") == elsewhere


def test_a_loopback_address_of_another_machine_is_not_asked() -> None:
    elsewhere = replace(JOB, birth="another-boot.1/1")
    assert JOB.is_reachable
    assert not elsewhere.is_reachable
    assert replace(elsewhere, http="c3:29511").is_reachable


@pytest.mark.parametrize("text", ["", "[]", "{", '{"job_id": "x"}', '{"job_id": 1, "pid": "x"}'])
def test_what_is_no_job_file_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    assert read_job("x", tmp_path) is None
    assert running_jobs(tmp_path) == []


@pytest.mark.parametrize("job_id", ["", ".", "..", "../x", "a/b", "a\0b"])
def test_an_id_is_no_path(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(UserError):
        read_job(job_id, tmp_path)


def test_they_are_under_the_users_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert jobs_dir().parent == tmp_path / "ftrun" / "jobs"
    write_job(JOB)
    assert read_job("job-1") == JOB
    assert running_jobs() == [JOB]
