"""The token: made once, read by its owner only, compared whole."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.protocol.auth import (
    bearer,
    bearer_matches,
    default_token_path,
    load_or_create_token,
    load_token,
    new_token,
    one_token,
    state_home,
    take_token,
    token_matches,
)


def test_tokens_have_256_bits_and_differ() -> None:
    first, second = new_token(), new_token()
    assert first != second
    assert len(bytes.fromhex(first)) == 32


def test_a_token_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "token"
    token = load_or_create_token(path)
    assert load_or_create_token(path) == token == load_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["token"]


def test_all_who_make_it_at_once_get_the_same(tmp_path: Path) -> None:
    path = tmp_path / "token"
    gate = threading.Barrier(8)
    found: list[str] = []

    def make() -> None:
        gate.wait(60.0)
        found.append(load_or_create_token(path))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text(new_token())
    path.chmod(mode)
    with pytest.raises(UserError, match="chmod 600"):
        load_token(path)


def test_a_read_only_file_of_an_own_group_is_accepted(tmp_path: Path) -> None:
    """A secret of Kubernetes with fsGroup."""
    path = tmp_path / "token"
    token = new_token()
    path.write_text(token)
    os.chown(path, -1, os.getegid())
    path.chmod(0o440)
    if os.geteuid() != 0:  # one's own file, whose group could read it
        with pytest.raises(UserError, match="chmod 600"):
            load_token(path)
    else:
        assert load_token(path) == token
        os.chown(path, 65534, -1)
        with pytest.raises(UserError, match="chmod 600"):
            load_token(path)
        os.chown(path, 0, -1)
        os.chown(path, -1, max({os.getegid(), *os.getgroups()}) + 1)
        with pytest.raises(UserError, match="chmod 600"):
            load_token(path)


@pytest.mark.parametrize("text", ["", "short", "g" * 64, "a" * 65, "a" * 64 + "\nmore"])
def test_what_is_no_token_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UserError, match="does not hold a token") as told:
        load_token(path)
    assert len(text) < 64 or text not in str(told.value)


def test_no_file_and_no_directory_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_token(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be"):
        load_or_create_token(tmp_path / "file" / "token")
    (tmp_path / "binary").write_bytes(b"\xff" * 64)
    (tmp_path / "binary").chmod(0o600)
    with pytest.raises(UserError, match="cannot be read"):
        load_token(tmp_path / "binary")


def test_only_the_whole_token_matches() -> None:
    token = new_token()
    wrong = ["", token[:-1], token + "0", token.upper() + "x", new_token(), "ä", "\udcff"]
    assert token_matches(token, token)
    assert not any(token_matches(given, token) for given in wrong)
    assert not token_matches("", "")
    assert bearer_matches(bearer(token), token)
    headers = [None, "", token, "Bearer", "Bearer ", f"bearer {token}", f"Bearer  {token}"]
    assert not any(bearer_matches(header, token) for header in headers)
    assert not bearer_matches("Bearer ", "")


def test_the_state_home_follows_xdg() -> None:
    assert state_home({"XDG_STATE_HOME": "/x"}) == Path("/x/ftrun")
    fallback = Path.home() / ".local" / "state" / "ftrun"
    assert state_home({}) == state_home({"XDG_STATE_HOME": "relative"}) == fallback
    assert default_token_path().name == "token"


def test_a_token_is_taken_out_of_the_environment() -> None:
    token = new_token()
    environ = {"FTRUN_TOKEN": token + "\n", "OTHER": "x"}
    assert take_token(environ) == token
    assert environ == {"OTHER": "x"}
    assert take_token(environ) == ""
    with pytest.raises(UserError, match="FTRUN_TOKEN does not hold a token") as raised:
        take_token({"FTRUN_TOKEN": "secret"})
    assert "secret" not in str(raised.value)


def test_a_token_that_is_stated_twice_is_refused(tmp_path: Path) -> None:
    assert one_token("", tmp_path) == ""
    assert one_token("a", None) == "a"
    with pytest.raises(UserError, match="both state"):
        one_token("a", tmp_path)
