"""``ftrun logs``: the right lines, in the order of their times, with clear words if there are none.

The logs are written with times that the tests choose; the follower is tried with an agent's lock.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.logs.disk import LogFile
from ftrun.logs.layout import index_path, log_path
from ftrun.logs.marker import LogDirLock
from ftrun.logs.reading import LogReader, Worker, find_workers
from ftrun.logs.show import LogQuery, find_log_dir, show_logs
from ftrun.logs.units import parse_since

TIMEOUT_S = 60.0


def write(directory: Path, worker: str, attempt: int, *pieces: tuple[float, str, bytes]) -> LogFile:
    """A worker's log of pieces: (time, stream, bytes)."""
    replica, rank = worker.split(".")
    log = LogFile(log_path(directory, replica, int(rank), attempt), has_index=True)
    for time_s, stream, data in pieces:
        log.write(data, stream, time_s)
    log.close()
    return log


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two replicas; the worker of the second one has died once."""
    directory = tmp_path / "job"
    write(directory, "0.0", 0, (1.0, "o", b"a1\na"), (2.0, "e", b"warn\n"), (3.0, "o", b"2\na3\n"))
    write(directory, "1.0", 0, (1.5, "o", b"b1\nhalf"))
    write(directory, "1.0", 1, (2.5, "o", b"b2\n"), (4.0, "e", b"boom\n"))
    return directory


def shown(capfdbinary: pytest.CaptureFixture[bytes], directory: Path, **query: object) -> list[str]:
    show_logs(directory, LogQuery(**query))  # type: ignore[arg-type]
    return capfdbinary.readouterr().out.decode().splitlines()


@pytest.mark.parametrize(
    ("query", "lines"),
    [
        ({}, "[0.0] a1|[0.0] a2|[0.0] warn|[1.0] b2|[0.0] a3|[1.0] boom"),
        ({"attempt": "all", "target": "1"}, "b1|half|b2|boom"),
        ({"attempt": "0"}, "[0.0] a1|[0.0] a2|[1.0] b1|[1.0] half|[0.0] warn|[0.0] a3"),
        ({"target": "0/0"}, "a1|a2|warn|a3"),
        ({"target": "1.0"}, "b2|boom"),
        ({"stream": "err"}, "[0.0] warn|[1.0] boom"),
        ({"stream": "out", "target": "0"}, "a1|a2|a3"),
        ({"since_s": 2.4}, "[1.0] b2|[0.0] a3|[1.0] boom"),
        ({"since_s": 99.0}, ""),
        ({"last": 2}, "[0.0] a3|[1.0] boom"),
        ({"last": 0}, ""),
        ({"pattern": "^b|3"}, "[1.0] b2|[0.0] a3|[1.0] boom"),
        ({"pattern": "a", "last": 1}, "[0.0] a3"),
    ],
)
def test_lines_that_are_asked_for(
    job: Path, capfdbinary: pytest.CaptureFixture[bytes], query: dict[str, object], lines: str
) -> None:
    assert sorted(shown(capfdbinary, job, **query)) == sorted(filter(None, lines.split("|")))


def test_lines_of_several_workers_come_in_the_order_of_their_times(
    job: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    lines = shown(capfdbinary, job, times=True)
    stamps = [line.split()[0] for line in lines]
    assert stamps == sorted(stamps)
    assert lines[0] == "1970-01-01T00:00:01.000Z [0.0] a1"
    assert lines[-1] == "1970-01-01T00:00:04.000Z [1.0] boom"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"target": "7"}, "has no logs of 7. It has those of 0.0, 1.0."),
        ({"target": "0/3"}, "has no logs of 0/3"),
        ({"attempt": "9"}, r"from start 9 \(there are 0, 1\)"),
        ({"attempt": "-1"}, "--attempt '-1': give a number"),
        ({"target": "0/x"}, "give REPLICA or REPLICA/RANK"),
        ({"pattern": "("}, "no regular expression"),
        ({"stream": "both"}, "give out or err"),
    ],
)
def test_what_is_not_there_is_named(job: Path, query: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        show_logs(job, LogQuery(**query))  # type: ignore[arg-type]


def test_a_job_is_found_by_name_or_as_the_newest(job: Path) -> None:
    assert find_log_dir(job.parent, "job") == job
    newer = job.parent / "newer"
    newer.mkdir()
    LogDirLock(newer, "newer").release()
    os.utime(job, (1.0, 1.0))
    assert find_log_dir(job.parent, None) == newer
    with pytest.raises(UserError, match="There are logs of newer, job"):
        find_log_dir(job.parent, "other")
    with pytest.raises(UserError, match="has no logs"):
        find_log_dir(job.parent / "nowhere", None)
    with pytest.raises(UserError, match="none has been started yet"):
        show_logs(newer, LogQuery())


def test_a_limited_log_is_read_through_both_files(tmp_path: Path) -> None:
    log = LogFile(log_path(tmp_path, "0", 0, 0), has_index=True, bytes_max=1000)
    numbers = [b"%04d\n" % number for number in range(1000)]
    for at, number in enumerate(numbers):
        log.write(number, "o", at / 10)
    log.close()
    reader = LogReader(tmp_path, Worker("0", 0), 0)
    lines = list(reader.lines())
    reader.close()
    texts = [line.text + b"\n" for line in lines if line.stream == "o"]
    assert len(texts) > 50
    assert texts == numbers[-len(texts) :]
    assert [line.time_s for line in lines if line.stream == "o"][-1] == pytest.approx(99.9)
    assert find_workers(tmp_path) == {Worker("0", 0): [0]}


def test_a_log_without_an_index_is_shown_and_its_times_are_not_claimed(
    job: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    index_path(log_path(job, "1", 0, 1)).unlink()
    show_logs(job, LogQuery(target="1", since_s=0.0))
    out, err = capfd.readouterr()
    assert out == "b2\nboom\n"
    assert "1.log has no index" in err


def test_a_follower_goes_on_over_a_restart_until_the_job_ends(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    lock = LogDirLock(tmp_path, "job")
    log = write(tmp_path, "0.0", 0, (1.0, "o", b"first\nnot yet "))
    seen: list[bytes] = []
    following = threading.Thread(target=show_logs, args=(tmp_path, LogQuery(follow=True)))
    following.start()

    def expect(text: bytes) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while text not in b"".join(seen):
            assert time.monotonic() < deadline, seen
            time.sleep(0.05)  # the follower looks now and then
            seen.append(capfdbinary.readouterr().out)

    expect(b"[0.0] first\n")
    log.write(b"whole\n", "o", 2.0)
    log.close()
    expect(b"[0.0] not yet whole\n")
    write(tmp_path, "0.0", 1, (3.0, "e", b"again\n"))
    expect(b"[0.0] again\n")
    write(tmp_path, "1.0", 0, (3.5, "e", b"another\nno end"))
    expect(b"[1.0] another\n")
    lock.release()
    following.join(TIMEOUT_S)
    assert not following.is_alive()
    expect(b"[1.0] no end\n")


def test_ages_and_times() -> None:
    now = datetime(2026, 11, 23, 8, 30, tzinfo=timezone.utc)
    assert parse_since("10m", now) == now.timestamp() - 600
    assert parse_since("2026-11-23T08:30Z", now) == now.timestamp()
    assert parse_since("2026-11-23T09:30+01:00", now) == now.timestamp()
    with pytest.raises(UserError, match="--since"):
        parse_since("soon", now)
