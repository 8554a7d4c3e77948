"""``ftrun ps`` on a machine whose home directory other machines share."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.tools.operate.ps import show_jobs
from ftrun.tools.status.jobs import RunningJob, job_file, jobs_dir, write_job
from ftrun.tools.status.once import find_job

HERE_KILLED = RunningJob(
    "killed", "127.0.0.1:1", 1 << 22, "/logs", "/token", "2026-01-01T00:00:00",
    birth=f"{jobs_dir().name}/1", host="here",
)  # fmt: skip
ELSEWHERE = replace(HERE_KILLED, job_id="away", birth="another-boot.1/77", host="c3")


def test_a_killed_agents_file_is_removed_and_another_machines_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    here = write_job(HERE_KILLED)
    there = write_job(ELSEWHERE, job_file(ELSEWHERE).parent)
    out = io.StringIO()
    assert show_jobs(out) == 0
    assert not here.exists()
    assert there.exists()
    text = out.getvalue()
    assert "No job runs on this machine." in text
    assert "killed: its agent was killed; its file is removed now." in text
    assert "away: its lighthouse listens on the loopback of c3 only" in text
    assert f"If it does not, remove {there}" in text
    out = io.StringIO()
    show_jobs(out, as_json=True)
    assert [job["host"] for job in json.loads(out.getvalue())["jobs"]] == ["c3"]


def test_a_job_of_another_machine_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write_job(ELSEWHERE, job_file(ELSEWHERE).parent)
    with pytest.raises(UserError, match=r"started on c3, .*Run `ftrun drain away` on c3"):
        find_job("away", "ftrun drain")
    with pytest.raises(UserError, match="if it is one of these: away on c3"):
        find_job(None)
    assert not jobs_dir().exists()
