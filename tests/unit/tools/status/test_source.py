"""Looks at a job once a second: found, chosen, lost, refused, back, ended."""

from __future__ import annotations

import json
import os
import queue
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.protocol.auth import load_or_create_token, new_token
from ftrun.tools.status import source as source_module
from ftrun.tools.status.client import LighthouseUnreachable, answer_of
from ftrun.tools.status.jobs import RunningJob, birth_mark, jobs_dir, remove_job, write_job
from ftrun.tools.status.once import StatusQuery
from ftrun.tools.status.source import Picture, Source, State
from ftrun.tools.status.watch import line_of, show_lines
from tests.unit.tools.status.documents import healthy, hung
from tests.unit.tools.status.served_status import served

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(source_module, "INTERVAL_S", 0.02)
    monkeypatch.setattr(source_module, "CHOICE_S", 0.02)
    monkeypatch.setattr(source_module, "BACKOFF_MIN_S", 0.02)
    monkeypatch.setattr(source_module, "BACKOFF_MAX_S", 0.08)
    return tmp_path


class Seen:
    """The pictures of a source."""

    def __init__(self, source: Source, pictures: queue.Queue[Picture]) -> None:
        self.source = source
        self._pictures = pictures

    def until(self, state: State, *, job_id: str = "") -> Picture:
        """The next picture in this state."""
        deadline = clock.now() + WAIT_S
        while True:
            picture = self._pictures.get(timeout=deadline - clock.now())
            is_job = not job_id or (
                picture.status is not None and picture.status["job"]["job_id"] == job_id
            )
            if picture.state is state and is_job:
                return picture


@contextmanager
def looking(query: StatusQuery) -> Iterator[Seen]:
    pictures: queue.Queue[Picture] = queue.Queue()
    source = Source(query, pictures.put)
    source.start()
    try:
        yield Seen(source, pictures)
    finally:
        source.stop()
        source._thread.join(WAIT_S)
        assert not source._thread.is_alive()


def named(job_id: str) -> dict[str, Any]:
    status: Any = healthy(0)
    status["job"]["job_id"] = job_id
    return status


def job(job_id: str, http: str, home: Path, **facts: Any) -> RunningJob:
    birth = birth_mark(os.getpid())
    found = RunningJob(
        job_id, http, os.getpid(), str(home / job_id), str(home / "token"), "2026", birth=birth
    )
    return replace(found, **facts)


def test_a_job_that_starts_later_is_found(home: Path) -> None:
    token = load_or_create_token(home / "token")
    with looking(StatusQuery()) as seen, served(named("one"), token) as address:
        seen.until(State.LOOKING)
        write_job(job("one", address, home))
        found = seen.until(State.LIVE)
        assert found.job is not None and found.job.job_id == "one"
        write_job(job("two", "127.0.0.1:1", home))  # the first one stays on the screen
        assert seen.until(State.LIVE).job == found.job


def test_one_connection_serves_many_looks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    real = socket.create_connection

    def counting(*args: Any, **kwargs: Any) -> Any:
        opened.append(args[0])
        return real(*args, **kwargs)

    monkeypatch.setattr(socket, "create_connection", counting)
    token = load_or_create_token(home / "ftrun" / "token")
    with served(named("one"), token) as address, looking(StatusQuery(address)) as seen:
        for _ in range(20):
            seen.until(State.LIVE)
    assert len(opened) == 1


def test_of_several_jobs_one_is_chosen_and_another(home: Path) -> None:
    token = load_or_create_token(home / "token")
    with served(named("one"), token) as first, served(named("two"), token) as second:
        write_job(job("one", first, home))
        write_job(job("two", second, home))
        with looking(StatusQuery()) as seen:
            found = seen.until(State.CHOOSING)
            assert {one.job_id for one in found.jobs} == {"one", "two"}
            seen.source.choose("two")
            seen.until(State.LIVE, job_id="two")
            seen.source.choose(None)
            seen.until(State.CHOOSING)
            seen.source.choose("one")
            seen.until(State.LIVE, job_id="one")


def test_the_last_picture_stays_while_the_lighthouse_is_gone(home: Path) -> None:
    token = load_or_create_token(home / "token")
    with looking(StatusQuery(job_id="one")) as seen:
        with served(named("one"), token) as address:
            write_job(job("one", address, home))
            seen.until(State.LIVE)
        gone = seen.until(State.GONE)
        assert gone.status is not None and "No lighthouse answers" in gone.words
        pauses = [gone.next_s]
        while pauses[-1] < 0.08:
            again = seen.until(State.GONE)
            assert again.status == gone.status and again.taken_at == gone.taken_at
            pauses.append(again.next_s)
        assert pauses == sorted(pauses)
        with served(named("one"), token) as other:
            write_job(job("one", other, home))
            assert seen.until(State.LIVE).words == ""


def test_another_token_is_refused_until_its_file_is_right(home: Path) -> None:
    token, file = new_token(), home / "token"
    load_or_create_token(file)
    with served(named("one"), token) as address:
        write_job(job("one", address, home))
        with looking(StatusQuery(job_id="one")) as seen:
            assert "has another token" in seen.until(State.REFUSED).words
            file.write_text(token)
            seen.until(State.LIVE)


def test_a_job_that_says_its_end(home: Path) -> None:
    token, status = load_or_create_token(home / "token"), named("one")
    status["outcome"] = {"exit_code": 0, "reason": "all have finished"}
    with served(status, token) as address:
        write_job(job("one", address, home))
        with looking(StatusQuery(job_id="one")) as seen:
            assert seen.until(State.ENDED).outcome == status["outcome"]


@pytest.mark.parametrize("has_exit", [True, False])
def test_a_job_that_ends_with_its_lighthouse(home: Path, has_exit: bool) -> None:
    token = load_or_create_token(home / "token")
    with looking(StatusQuery(job_id="one")) as seen:
        with served(named("one"), token) as address:
            write_job(job("one", address, home))
            seen.until(State.LIVE)
            if has_exit:
                (home / "one").mkdir()
                found = {"time": "2026-11-23", "exit_code": 3, "reason": "replica 0 failed"}
                (home / "one" / "exit.json").write_text(json.dumps(found))
            write_job(job("one", address, home, birth=f"{jobs_dir().name}/0"))
            seen.until(State.LIVE)
            seen.until(State.LIVE)
        remove_job("one")
        ended = seen.until(State.ENDED)
    assert ended.status is not None and ended.outcome is not None
    if has_exit:
        assert ended.outcome == {"exit_code": 3, "reason": "replica 0 failed"}
    else:
        assert "was killed, and left no reason" in ended.outcome["reason"]


def test_a_lighthouse_of_another_version_is_named(home: Path) -> None:
    token, status = load_or_create_token(home / "token"), named("one")
    status["schema"] = "ftrun.status/2"
    with served(status, token) as address:
        write_job(job("one", address, home))
        with looking(StatusQuery(job_id="one")) as seen:
            assert "another ftrun (0.1.0)" in seen.until(State.REFUSED).words


def test_watch_prints_a_line_a_look_until_the_end(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token, count = load_or_create_token(home / "token"), [0]

    def status() -> Any:
        count[0] += 1
        found: Any = hung(0)
        if count[0] > 3:
            found["outcome"] = {"exit_code": 1, "reason": "bad\x1b[2J"}
        return found

    with served(status, token) as address:
        write_job(job("one", address, home))
        assert show_lines(StatusQuery()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    facts = ("steady", "step 14208", "2.05 steps/s", "10 of 10", "goodput 98.8 %", "hung: 4")
    assert all(fact in lines[0] for fact in facts), lines[0]
    assert lines[3].endswith("ended with exit code 1: bad [2J")


def test_watch_without_a_job_or_with_another_token_is_an_error(home: Path) -> None:
    with pytest.raises(UserError, match="No job runs"):
        show_lines(StatusQuery())
    with pytest.raises(UserError, match="is not HOST:PORT"):
        show_lines(StatusQuery("nowhere"))
    load_or_create_token(home / "token")
    with served(named("one"), new_token()) as address:
        write_job(job("one", address, home))
        with pytest.raises(UserError, match="has another token"):
            show_lines(StatusQuery())


def test_a_line_says_that_the_lighthouse_is_gone() -> None:
    found = Picture(State.GONE, healthy(0), 10.0, "refused", 20.0, 1.0)
    assert "no answer for 12 s: refused; asked again in 1.0 s" in line_of(found, 22.0)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (503, r"The lighthouse at a:1 stands by\. Give the HTTP address of the one that leads"),
        (404, r"is no job's lighthouse \(HTTP 404\).*ftrun ps --lighthouse a:1"),
        (200, r"is no job's lighthouse \(HTTP 200\)\.$"),
    ],
)
def test_what_answers_instead_of_a_jobs_lighthouse_is_named(code: int, words: str) -> None:
    with pytest.raises(LighthouseUnreachable, match=words):
        answer_of("a:1", code, b"", "replicas")
