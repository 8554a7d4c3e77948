"""``ftrun status``: which lighthouse gets the request, and the error if there is none."""

from __future__ import annotations

import io
import json
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.base.errors import ExitCode, UserError
from ftrun.protocol.auth import load_or_create_token, new_token
from ftrun.tools.status.client import LighthouseUnreachable, fetch_status
from ftrun.tools.status.jobs import RunningJob, birth_mark, jobs_dir, write_job
from ftrun.tools.status.once import StatusQuery, show_json
from ftrun.tools.status.view import show_once
from tests.unit.tools.status.served_status import served
from tests.unit.tools.status.status_sample import sample


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def test_by_address_with_the_users_token(home: Path) -> None:
    token = load_or_create_token(home / "ftrun" / "token")
    out = io.StringIO()
    with served(sample(), token) as address:
        assert show_json(StatusQuery(lighthouse=address), out) == 0
        assert show_json(StatusQuery(lighthouse=f"http://{address}/"), io.StringIO()) == 0
    assert json.loads(out.getvalue()) == sample()


def job(job_id: str, http: str, token_file: Path, started: str = "1") -> RunningJob:
    """A job of this very process, which runs."""
    birth = birth_mark(os.getpid())
    return RunningJob(job_id, http, os.getpid(), "/logs", str(token_file), started, birth=birth)


def test_the_only_job_or_the_one_that_is_named(home: Path) -> None:
    token_file = home / "job-token"
    token = load_or_create_token(token_file)
    with served(sample(), token) as address:
        write_job(job("one", address, token_file))
        write_job(replace(job("killed", "127.0.0.1:1", token_file), birth=f"{jobs_dir().name}/0"))
        out = io.StringIO()
        assert show_once(StatusQuery(), out) == 0
        assert out.getvalue().startswith(" digits")
        assert show_once(StatusQuery(job_id="one"), io.StringIO()) == 0
        with pytest.raises(LighthouseUnreachable):
            show_once(StatusQuery(job_id="killed"))


def test_of_several_jobs_none_is_chosen(home: Path) -> None:
    for number in range(25):
        write_job(job(f"job-{number}", "127.0.0.1:1", home / "none", f"{number:02}"))
    with pytest.raises(UserError) as told:
        show_once(StatusQuery())
    assert told.value.exit_code == 2
    lines = str(told.value).splitlines()
    assert lines[0].startswith("25 jobs run on this machine and none was named. Nothing was done.")
    assert lines[0].endswith("ftrun status JOB")
    assert lines[1] == f"  job-24  started 24, pid {os.getpid()}, logs in /logs"
    assert lines[20].startswith("  job-5  ")
    assert lines[21:] == ["  … and 5 older ones"]


def test_no_job_is_said_with_the_remedy() -> None:
    for query in (StatusQuery(), StatusQuery(job_id="x")):
        with pytest.raises(UserError, match="--lighthouse HOST:PORT"):
            show_once(query)


def test_another_jobs_token_is_said() -> None:
    with (
        served(sample(), new_token()) as address,
        pytest.raises(UserError, match="--token-file"),
    ):
        fetch_status(address, new_token())


def test_nobody_there_is_said_with_its_exit_code() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    with pytest.raises(LighthouseUnreachable, match="ftrun lighthouse") as told:
        fetch_status(address, "x")
    assert told.value.exit_code == ExitCode.LIGHTHOUSE_UNREACHABLE


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"noise\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{]\xff",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_something_else_that_answers_is_no_lighthouse(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_once() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(answer)

        thread = threading.Thread(target=answer_once)
        thread.start()
        with pytest.raises(LighthouseUnreachable) as told:
            fetch_status(f"127.0.0.1:{listener.getsockname()[1]}", "x")
        thread.join(60.0)
        assert str(told.value).isprintable()


def test_a_silent_port_does_not_hold_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(LighthouseUnreachable):
        fetch_status(f"127.0.0.1:{silent.getsockname()[1]}", "x", timeout_s=0.1)
