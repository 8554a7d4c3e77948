"""Files of packed calls and values: whole, limited, and this user's own."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ftrun.base import packed
from ftrun.base.errors import UserError
from ftrun.base.packed import NoValue, Surroundings, read_call, read_value, write_call, write_value

AROUND = Surroundings(path=["/a\nb"], argv=["x"], main_path="/m.py")


def test_a_call_and_a_value_come_back(tmp_path: Path) -> None:
    write_call(tmp_path, AROUND, b"pickle\nof it")
    assert read_call(tmp_path) == (AROUND, b"pickle\nof it")
    assert read_value(tmp_path, "abc", 1) is None  # its function left by sys.exit(0)
    write_value(tmp_path, "abc", 1, {"loss": 1.5})
    assert read_value(tmp_path, "abc", 1) == {"loss": 1.5}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert not list(tmp_path.glob("*.part"))


class Unsendable:
    """Its pickling fails in its own way."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


@pytest.mark.parametrize(
    ("value", "text"),
    [(threading.Lock(), "type lock .*cannot be pickled"), (Unsendable(), "RuntimeError: not me")],
)
def test_a_value_that_cannot_be_pickled_is_named(tmp_path: Path, value: Any, text: str) -> None:
    write_value(tmp_path, "abc", 1, value)
    with pytest.raises(NoValue, match=text):
        read_value(tmp_path, "abc", 1)


def test_sizes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "VALUE_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(packed, "CALL_BYTES_MAX", 1 << 20)
    write_value(tmp_path, "abc", 1, b"x" * (2 << 20))
    with pytest.raises(NoValue, match="larger than 1 MiB"):
        read_value(tmp_path, "abc", 1)
    with pytest.raises(UserError, match=r"1 MiB is the most\. Nothing was started"):
        write_call(tmp_path, AROUND, b"x" * ((1 << 20) + 1))


class OfMain:
    """A class that the worker knows as ``__mp_main__.OfMain``."""


def test_classes_of_the_main_module_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules[__name__])
    monkeypatch.setattr(OfMain, "__module__", "__mp_main__")
    write_value(tmp_path, "abc", 1, OfMain())
    monkeypatch.delitem(sys.modules, "__mp_main__")
    monkeypatch.setattr(sys.modules["__main__"], "OfMain", OfMain, raising=False)
    assert type(read_value(tmp_path, "abc", 1)) is OfMain


def test_a_link_and_another_users_file_are_not_read(tmp_path: Path) -> None:
    write_value(tmp_path, "abc", 1, 1)
    path = tmp_path / packed.value_name("abc", 1)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoValue, match="cannot be read"):
        read_value(tmp_path, "abc", 1)
    if os.geteuid() == 0:
        path.unlink()
        write_value(tmp_path, "abc", 1, 1)
        os.chown(path, 12345, 12345)
        with pytest.raises(NoValue, match="another user's"):
            read_value(tmp_path, "abc", 1)
