"""``ftrun chaos``: which job it torments, and when it refuses to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.protocol.auth import load_or_create_token
from ftrun.tools.chaos.held_agent import HeldAgent
from ftrun.tools.chaos.session import ChaosSettings, Session, run_chaos
from ftrun.tools.status.jobs import RunningJob, birth_mark, write_job


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def job(job_id: str, token_file: Path, birth: str) -> RunningJob:
    """Its lighthouse answers nobody."""
    return RunningJob(
        job_id, "127.0.0.1:1", os.getpid(), "/logs", str(token_file), "1", birth=birth
    )


def test_of_several_jobs_none_is_touched(home: Path) -> None:
    for job_id in ("mine", "somebody-elses"):
        write_job(job(job_id, home / "none", birth_mark(os.getpid())))
    with pytest.raises(UserError, match=r"ftrun chaos JOB\n  .*\n  .*") as told:
        run_chaos(ChaosSettings(mtbf_s=1.0))
    assert {"mine", "somebody-elses"} <= set(str(told.value).split())


def test_a_stranger_with_the_agents_pid_is_not_taken_for_the_agent(home: Path) -> None:
    token_file = home / "token"
    load_or_create_token(token_file)
    found = job("killed", token_file, "of another process")
    with HeldAgent(found) as agent:
        session = Session(ChaosSettings(mtbf_s=1.0), found, agent, lambda line: None)
        with pytest.raises(UserError, match="Nothing was killed"):
            session._announce({"replicas": []})  # type: ignore[typeddict-item]
