"""Sessions of the web page: codes are for one use, sessions end, nothing else is admitted."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from ftrun.base import clock
from ftrun.lighthouse.sessions import CODE_S, CODES_MAX, SESSION_S, Sessions
from ftrun.protocol.auth import bearer, new_token

TOKEN = new_token()


def test_a_code_is_for_one_use() -> None:
    found = Sessions(TOKEN)
    code = found.new_code()
    assert not found.use_code(code[:-1])
    assert found.use_code(code)
    assert not found.use_code(code)
    assert not found.use_code("")
    assert not found.use_code("é\ud800")


def test_a_code_is_soon_over(monkeypatch: pytest.MonkeyPatch) -> None:
    found, now = Sessions(TOKEN), 0.0
    monkeypatch.setattr(clock, "now", lambda: now)
    old, late = found.new_code(), found.new_code()
    now = CODE_S - 1.0
    assert found.use_code(late)
    now = CODE_S
    assert not found.use_code(old)


def test_codes_are_bounded() -> None:
    """X3: the oldest is forgotten."""
    found = Sessions(TOKEN)
    codes = [found.new_code() for _ in range(CODES_MAX + 1)]
    assert [found.use_code(code) for code in codes] == [False] + [True] * CODES_MAX


def test_a_session_outlives_the_lighthouse_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 11, 1, tzinfo=timezone.utc)
    monkeypatch.setattr(clock, "wall", lambda: now)
    session = Sessions(TOKEN).new_session()
    again = Sessions(TOKEN)
    assert again.admits(bearer(session))
    assert not Sessions(new_token()).admits(bearer(session))
    now += timedelta(seconds=SESSION_S - 1)
    assert again.admits(bearer(session))
    now += timedelta(seconds=1)
    assert not again.admits(bearer(session))


def test_nothing_but_a_session_is_admitted() -> None:
    found = Sessions(TOKEN)
    session = found.new_session()
    ends, nonce, mac = session.split(".")
    longer = f"{int(ends) + 1}.{nonce}.{mac}"
    for wrong in (
        session, bearer(longer), bearer(session + "0"), bearer(session[:-1]), bearer(TOKEN),
        bearer(session.upper()), bearer(f"{ends}.{nonce}."), bearer(found.new_code()), "", None,
    ):  # fmt: skip
        assert not found.admits(wrong), wrong
    assert not Sessions("").admits(bearer(session))
    assert TOKEN not in session


def test_a_lighthouse_without_a_token_has_no_key() -> None:
    """Nobody can make a session of a key that everybody knows."""
    empty = Sessions("")
    assert not empty.admits(bearer(empty.new_session()))
