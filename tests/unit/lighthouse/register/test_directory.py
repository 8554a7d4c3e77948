"""The register in a directory: one writer for each version, whoever was stopped where."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.base.files import sync
from ftrun.core.register.events import Accepted, Answered, Refused, Value
from ftrun.lighthouse.register import directory
from ftrun.lighthouse.register.directory import KEPT, DirectoryStore
from ftrun.lighthouse.register.store import StoreError

VALUE = Value(5, "me", "a:1", 3.0, 1)


def swap(store: DirectoryStore, version: int, value: Value) -> Accepted | Refused:
    return asyncio.run(store.swap(version, value))


def read(store: DirectoryStore, *, with_journal: bool = True) -> Answered:
    return asyncio.run(store.read(with_journal=with_journal))


def filled(store: DirectoryStore, count: int) -> None:
    for version in range(count):
        assert swap(store, version, replace(VALUE, serial=version)) == Accepted(version + 1)


def test_what_was_written_is_read_again_and_a_journal_stays(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    assert read(store) == Answered(0, None)
    assert swap(store, 0, VALUE) == Accepted(1)
    assert read(store) == Answered(1, replace(VALUE, journal=b""))
    assert swap(store, 1, replace(VALUE, journal=b"one\n two")) == Accepted(2)
    endless = replace(VALUE, silence_s=float("inf"), is_free=True)
    assert swap(store, 2, endless) == Accepted(3)
    assert read(DirectoryStore(tmp_path)) == Answered(3, replace(endless, journal=b"one\n two"))
    assert read(store, with_journal=False) == Answered(3, endless)
    assert (tmp_path / "v.3").stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["v.1", "v.2", "v.3"]


def test_a_version_has_one_writer(tmp_path: Path) -> None:
    first, second = DirectoryStore(tmp_path), DirectoryStore(tmp_path)
    assert swap(first, 0, VALUE) == Accepted(1)
    assert swap(second, 0, replace(VALUE, holder="other")) == Refused()
    assert swap(second, 1, replace(VALUE, holder="other")) == Accepted(2)
    assert swap(first, 1, VALUE) == Refused()
    assert sorted(os.listdir(tmp_path)) == ["v.1", "v.2"]


def test_old_versions_go_and_the_journal_of_the_newest_stays(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    swap(store, 0, replace(VALUE, journal=b"kept"))
    (tmp_path / "draft.2.abc").write_bytes(b"of a killed process")
    for version in range(1, 40):
        swap(store, version, VALUE)
    assert len(os.listdir(tmp_path)) == KEPT + 2
    assert read(store) == Answered(40, replace(VALUE, journal=b"kept"))


@pytest.mark.parametrize("journal", [b"stale", None], ids=["a journal", "none"])
def test_a_name_of_long_ago_that_is_free_again_counts_for_nothing(
    tmp_path: Path, journal: bytes | None
) -> None:
    store = DirectoryStore(tmp_path)
    filled(store, 40)
    assert swap(store, 3, replace(VALUE, holder="woken", journal=journal)) == Refused()
    assert read(store).version == 40
    assert not (tmp_path / "v.4").exists()


def test_a_write_on_which_another_has_built_meanwhile_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that is stopped after its link must not take the journal away from the next one."""
    store, real = DirectoryStore(tmp_path), sync

    def build_on_it(path: Path) -> None:
        real(path)
        monkeypatch.setattr(directory, "sync", real)
        assert store._swap(1, replace(VALUE, holder="next")) == Accepted(2)

    monkeypatch.setattr(directory, "sync", build_on_it)
    assert swap(store, 0, replace(VALUE, journal=b"kept")) == Accepted(1)
    assert read(store) == Answered(2, replace(VALUE, holder="next", journal=b"kept"))


def test_a_listing_that_is_old_hides_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS answers a listing from its cache, while the name itself is looked up."""
    store = DirectoryStore(tmp_path)
    filled(store, 3)
    monkeypatch.setattr(os, "listdir", lambda _: ["v.1"])
    assert read(store).version == 3


def test_a_link_that_is_reported_as_there_although_we_made_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS repeats a call whose answer was lost."""
    link = os.link

    def twice(source: Any, name: Any) -> None:
        link(source, name)
        link(source, name)

    monkeypatch.setattr(os, "link", twice)
    assert swap(DirectoryStore(tmp_path), 0, VALUE) == Accepted(1)


def test_a_corrupt_version_is_kept_and_the_register_goes_on_without_a_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DirectoryStore(tmp_path)
    swap(store, 0, replace(VALUE, journal=b"first"))
    good = (tmp_path / "v.1").read_bytes()
    with caplog.at_level(logging.WARNING):
        for bad in (b"", good[:-1], good[:20], good.replace(b"first", b"other")):
            (tmp_path / "v.1").write_bytes(bad)
            assert read(store) == Answered(1, None)
    assert "v.1 is corrupt (its checksum is wrong)" in caplog.text
    assert (tmp_path / "corrupt.1").exists()
    assert swap(store, 1, VALUE) == Accepted(2)
    assert read(store) == Answered(2, replace(VALUE, journal=b""))


def test_a_directory_that_is_away_is_an_error_of_the_store(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "gone")
    with pytest.raises(StoreError, match="No such file or directory"):
        read(store)
    with pytest.raises(StoreError):
        swap(store, 0, replace(VALUE, journal=b"x"))


def test_a_file_that_vanishes_between_two_looks_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path)
    filled(store, 1)
    monkeypatch.setattr(DirectoryStore, "_highest", lambda _: 7)
    with pytest.raises(StoreError, match="changes faster"):
        read(store)


def test_a_bug_is_no_error_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectoryStore, "_highest", lambda _: None)
    filled(DirectoryStore(tmp_path), 0)
    monkeypatch.setattr(DirectoryStore, "_highest", lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        read(DirectoryStore(tmp_path))
