"""The account on disk: its age by the right clock, and never in the way."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from ftrun.base import clock
from ftrun.lighthouse import account_file
from ftrun.lighthouse.account_file import AccountFile


def test_it_comes_back_with_its_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "account.json"
    now, wall = clock.now(), clock.wall()
    monkeypatch.setattr(clock, "now", lambda: now)
    monkeypatch.setattr(clock, "wall", lambda: wall)
    AccountFile(path).write({"wall": 5})
    monkeypatch.setattr(clock, "now", lambda: now + 3.0)
    monkeypatch.setattr(clock, "wall", lambda: wall + timedelta(seconds=86400))
    found = AccountFile(path).load()
    assert found is not None
    assert found.document == {"wall": 5}
    assert found.age_s == pytest.approx(3.0), "a jump of the wall clock changes nothing (L3)"
    monkeypatch.setattr(account_file, "boot_id", lambda: "another")
    found = AccountFile(path).load()
    assert found is not None
    assert found.age_s == pytest.approx(86400.0, abs=0.01)
    monkeypatch.setattr(clock, "wall", lambda: wall - timedelta(seconds=9))
    found = AccountFile(path).load()
    assert found is not None and found.age_s == 0.0


def test_it_is_replaced_as_a_whole_and_not_for_others(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    file = AccountFile(path)
    file.write({"wall": 1})
    file.write({"wall": 2})
    assert json.loads(path.read_text())["account"] == {"wall": 2}
    assert path.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "[" * 100_000, '{"account": {}}', "\xff"])
def test_one_that_cannot_be_read_is_told_and_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path = tmp_path / "account.json"
    path.write_bytes(text.encode("latin-1"))
    with caplog.at_level(logging.WARNING):
        assert AccountFile(path).load() is None
    assert "starts over now" in caplog.text


def test_a_full_disk_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = AccountFile(tmp_path / "none" / "account.json")
    with caplog.at_level(logging.WARNING):
        file.write({})
        file.write({})
    assert len(caplog.records) == 1
    assert AccountFile().load() is None
