"""``ftrun status --web``: a link whose code becomes a session, and no token in it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.protocol.auth import load_or_create_token
from ftrun.tools.commands.looking import status
from ftrun.tools.status.client import request
from ftrun.tools.status.once import StatusQuery
from ftrun.tools.status.weblink import show_link
from tests.unit.tools.status.served_status import served
from tests.unit.tools.status.status_sample import sample


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def test_the_link_opens_a_session_once(home: Path) -> None:
    token, out = load_or_create_token(home / "ftrun" / "token"), io.StringIO()
    with served(sample(), token) as address:
        assert show_link(StatusQuery(lighthouse=address), out) == 0
        link = out.getvalue().split()[0]
        start, _, code = link.partition("#code=")
        assert start == f"http://{address}/"
        assert token not in out.getvalue()
        _, answer, body = request(address, "none", "POST", "/session", {"code": code})
        assert answer == 200
        session = json.loads(body)["session"]
        assert request(address, session, "GET", "/status")[1] == 200
        assert request(address, "none", "POST", "/session", {"code": code})[1] == 401


def test_a_link_needs_the_jobs_token(home: Path) -> None:
    load_or_create_token(home / "ftrun" / "token")
    with served(sample(), "another") as address, pytest.raises(UserError, match="another token"):
        show_link(StatusQuery(lighthouse=address), io.StringIO())


def test_a_link_and_a_document_exclude_each_other() -> None:
    with pytest.raises(UserError, match="give one of them"):
        status(web=True, as_json=True)
