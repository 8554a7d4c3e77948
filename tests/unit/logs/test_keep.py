"""Logs of finished jobs go beyond the limits; running jobs and files of others stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.logs.keep import Keep, apply_keep, parse_keep
from ftrun.logs.layout import log_path
from ftrun.logs.marker import LogDirLock, is_held, read_marker

NOW_S = 1_000_000.0
DAY_S = 86400.0


def job(root: Path, name: str, age_days: float, size: int = 100) -> Path:
    """The logs of a finished job."""
    directory = root / name
    directory.mkdir(parents=True)
    LogDirLock(directory, name).release()
    log = log_path(directory, "0", 0, 0)
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * size)
    for path in directory.rglob("*"):
        os.utime(path, (NOW_S - age_days * DAY_S,) * 2)
    return directory


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", Keep()),
        ("20jobs", Keep(jobs=20)),
        ("1 job", Keep(jobs=1)),
        ("7d", Keep(age_s=7 * DAY_S)),
        ("10GiB", Keep(size_bytes=10 << 30)),
        ("7d, 10GB,3 jobs", Keep(3, 7 * DAY_S, 10**10)),
    ],
)
def test_forms(text: str, kept: Keep) -> None:
    assert parse_keep(text) == kept
    assert bool(kept) == bool(text)


@pytest.mark.parametrize("text", ["20", "7", "d", "-1d", "7d,8d", "10 GiBs", "all"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--log-keep"):
        parse_keep(text)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("2jobs", {"a", "b"}),
        ("2d", {"a", "b"}),
        ("250B", {"a"}),  # with its marker a job has more than 100 bytes
        ("3jobs,36h", {"a"}),
        ("1GB", {"a", "b", "c"}),
    ],
)
def test_the_newest_within_the_limits_stay(tmp_path: Path, text: str, left: set[str]) -> None:
    for name, age in (("a", 1), ("b", 1.9), ("c", 3)):
        job(tmp_path, name, age)
    sentences = apply_keep(tmp_path, parse_keep(text), tmp_path / "own", NOW_S)
    assert {path.name for path in tmp_path.iterdir()} == left
    gone = {"a", "b", "c"} - left
    assert len(sentences) == (1 if gone else 0)
    assert all(name in sentences[0].rpartition(":")[2] for name in gone)


def test_what_runs_is_not_touched_and_neither_is_the_own_job(tmp_path: Path) -> None:
    running, own = job(tmp_path, "running", 30), job(tmp_path, "own", 30)
    lock = LogDirLock(running, "running")
    assert is_held(running)
    assert apply_keep(tmp_path, Keep(jobs=0), own, NOW_S) == []
    assert log_path(running, "0", 0, 0).exists()
    assert log_path(own, "0", 0, 0).exists()
    lock.release()
    assert not is_held(running)
    apply_keep(tmp_path, Keep(jobs=0), own, NOW_S)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_what_ftrun_did_not_write_stays_and_is_named(tmp_path: Path) -> None:
    finished, foreign = job(tmp_path, "finished", 30), tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "replica_0").mkdir()
    (foreign / "merged.log").write_text("")
    (finished / "model.pt").write_text("weights")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "0.log").write_text("")
    (finished / "replica_9").symlink_to(tmp_path / "elsewhere")
    first, *more = apply_keep(tmp_path, Keep(jobs=0), tmp_path / "own", NOW_S)
    assert "removed the logs of 1 finished job" in first
    assert sorted(path.name for path in finished.iterdir()) == ["model.pt", "replica_9"]
    assert (finished / "model.pt").read_text() == "weights"
    assert (tmp_path / "elsewhere" / "0.log").exists()
    assert (foreign / "merged.log").exists()
    assert len(more) == 1
    assert "model.pt" in more[0]


def test_the_marker_names_the_job_and_two_agents_share_it(tmp_path: Path) -> None:
    first = LogDirLock(tmp_path, "train")
    second = LogDirLock(tmp_path, "other")
    marked = read_marker(tmp_path)
    assert marked is not None
    assert (marked.job_id, marked.pid) == ("train", os.getpid())
    first.release()
    assert is_held(tmp_path)
    second.release()
    assert not is_held(tmp_path)
