"""Files that appear whole or not at all."""

import os
from pathlib import Path

import pytest

from ftrun.base.files import write_whole


def test_a_file_takes_the_place_of_the_old_one_with_the_permissions_asked_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    before = os.umask(0o027)
    try:
        write_whole(path, "näw", mode=0o604, is_synced=True)
        write_whole(tmp_path / "other", b"\0")
    finally:
        os.umask(before)
    assert path.read_bytes() == "näw".encode()
    assert path.stat().st_mode & 0o777 == 0o604
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["file", "other"]


def test_an_error_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(path, b"new")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_whole(tmp_path / "nowhere" / "file", b"new")
    assert os.listdir(tmp_path) == ["file"]
