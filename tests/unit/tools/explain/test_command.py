"""``ftrun explain`` from log directories: which job, which incident, what is refused."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.tools.explain.command import explain
from ftrun.tools.explain.finding import Query
from ftrun.tools.status.jobs import RunningJob, birth_mark, jobs_dir, write_job


@pytest.fixture(autouse=True)
def _no_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def logs(tmp_path: Path, job_id: str, *numbers: int) -> Path:
    directory = tmp_path / "logs" / job_id / "incidents"
    directory.mkdir(parents=True)
    for number in numbers:
        cause = {"replica_id": "1", "cause": f"died: SIGKILL \x1b[2J{number}"}
        record = {"number": number, "first_cause": cause, "time": "2030-01-02T03:04:05+00:00"}
        (directory / f"{number:04d}.json").write_text(json.dumps(record))
    return tmp_path / "logs"


def shown(query: Query, number: int | None = None, **more: bool) -> str:
    out = io.StringIO()
    assert explain(query, number, out=out, **more) == 0
    return out.getvalue()


def test_the_latest_incident_is_shown_by_default_and_others_by_number(tmp_path: Path) -> None:
    query = Query("job", logs(tmp_path, "job", 1, 2, 11))
    assert shown(query).startswith("Incident 11, 2030-01-02 03:04:05 UTC")
    assert "2 more of job job" in shown(query)
    assert shown(query, 2).startswith("Incident 2,")
    assert "\x1b" not in shown(query)
    assert shown(query, all_of_them=True).count("died: SIGKILL") == 3
    assert json.loads(shown(query, as_json=True))["number"] == 11
    assert [x["number"] for x in json.loads(shown(query, as_json=True, all_of_them=True))] == [
        1, 2, 11,
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"no incident 7 .*It has: 1, 2, 11"):
        shown(query, 7)


def test_without_a_name_it_is_the_job_that_ended_last(tmp_path: Path) -> None:
    directory = logs(tmp_path, "old", 1)
    logs(tmp_path, "new", 2)
    for name, at in (("old", 2_000_000_000), ("new", 1_000_000_000)):
        path = directory / name / "exit.json"
        path.write_text(json.dumps({"exit_code": 137, "kind": "signal", "reason": "x"}))
        os.utime(path, (at, at))
    assert "Incident 1" in shown(Query(None, directory))
    assert "The job has ended with exit code 137, signal: x" in shown(Query(None, directory))


def test_a_job_without_a_failure_says_so(tmp_path: Path) -> None:
    query = Query("job", logs(tmp_path, "job"))
    assert "nothing has failed" in shown(query)
    assert json.loads(shown(query, as_json=True)) is None


def test_damaged_files_are_left_out(tmp_path: Path) -> None:
    directory = logs(tmp_path, "job", 1)
    (directory / "job" / "incidents" / "0002.json").write_text("{")
    (directory / "job" / "incidents" / "0003.json").write_text("[]")
    assert shown(Query("job", directory)).startswith("Incident 1")


def test_a_job_that_is_not_here_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ftrun explain --log-dir DIR JOB"):
        shown(Query("other", tmp_path))
    with pytest.raises(UserError, match="no logs of one"):
        shown(Query(None, tmp_path / "none"))


def at(path: Path, time: int) -> None:
    os.utime(path, (time, time))


def running(tmp_path: Path, job_id: str, log_dir: Path, *, lives: bool = True) -> None:
    """The file of a job whose agent is this process; its lighthouse does not answer."""
    mark = birth_mark(os.getpid()) if lives else f"{jobs_dir().name}/0"
    job = RunningJob(
        job_id, "127.0.0.1:1", os.getpid(), str(log_dir / job_id), str(tmp_path / "none"), "2030",
        birth=mark,
    )  # fmt: skip
    write_job(job)


def test_a_job_that_has_just_ended_comes_before_one_that_runs(tmp_path: Path) -> None:
    directory = logs(tmp_path, "ended", 1)
    logs(tmp_path, "runs", 2)
    at(directory / "ended" / "incidents" / "0001.json", 1_000)
    at(directory / "runs" / "incidents" / "0002.json", 2_000)
    running(tmp_path, "runs", directory)
    running(tmp_path, "elsewhere", tmp_path / "other")
    (directory / "ended" / "exit.json").write_text(json.dumps({"exit_code": 1}))
    at(directory / "ended" / "exit.json", 3_000)
    text = shown(Query(None, directory))
    assert text.startswith("Job ended: of the 2 jobs of ")
    assert "Another one: ftrun explain JOB (runs)." in text and "Incident 1," in text
    at(directory / "runs" / "incidents" / "0002.json", 4_000)
    assert "Incident 2," in shown(Query(None, directory))
    assert json.loads(shown(Query(None, directory), as_json=True))["number"] == 2


def test_where_no_job_has_logs_it_is_the_one_that_runs(tmp_path: Path) -> None:
    directory = logs(tmp_path, "elsewhere", 1)
    running(tmp_path, "elsewhere", directory)
    assert shown(Query(None, tmp_path / "here")).startswith("Job elsewhere: the only one that runs")
    assert shown(Query(None, directory)).startswith("Job elsewhere: the only one of ")
    running(tmp_path, "another", directory)
    with pytest.raises(UserError, match="2 jobs run on this machine"):
        shown(Query(None, tmp_path / "here"))


def test_an_incident_that_nobody_will_close_says_so(tmp_path: Path) -> None:
    directory = logs(tmp_path, "job", 1)
    path = directory / "job" / "incidents" / "0001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "is_open": True}))
    query = Query("job", directory)
    running(tmp_path, "job", directory)
    assert "not over yet" in shown(query, all_of_them=True)
    running(tmp_path, "job", directory, lives=False)
    assert "not known" in shown(query, all_of_them=True)
    assert "no later record has come" in shown(query)
