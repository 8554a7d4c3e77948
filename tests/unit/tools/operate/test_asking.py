"""``ftrun restart`` and its like over a restart of the lighthouse: asked once more, done once."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ftrun.tools.operate.operation import Target, run_operation
from ftrun.tools.status import asking
from ftrun.tools.status.client import LighthouseUnreachable
from ftrun.tools.status.once import StatusQuery

Reply = Callable[[dict[str, Any]], "tuple[int, dict[str, Any]] | None"]
TOKEN = "0123456789abcdef" * 4


def operation(state: str, text: str = "", **more: Any) -> Reply:
    """Answers with an operation; its request_id is that of the first request."""
    base = {"operation": 1, "command": "x", "state": state, "text": text, "stacks": []}
    return lambda first: (200, {**base, "request_id": first["request_id"], **more})


def dies(first: dict[str, Any]) -> None:
    """The lighthouse dies without an answer."""


def forgotten(first: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 404, {"error": "there is no such operation, or no longer"}


class Lighthouse:
    """Answers requests one by one, as the script says, and keeps what it was sent."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.received: list[tuple[str, dict[str, Any]]] = []


@contextmanager
def serving(lighthouse: Lighthouse, tmp_path: Path) -> Iterator[StatusQuery]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer("POST", body)

        def do_GET(self) -> None:
            self._answer("GET", {})

        def _answer(self, method: str, body: dict[str, Any]) -> None:
            lighthouse.received.append((method, body))
            reply = lighthouse.replies.pop(0)(lighthouse.received[0][1])
            if reply is not None:
                code, found = reply
                data = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *words: Any) -> None:
            pass

    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"127.0.0.1:{server.server_address[1]}"
            yield StatusQuery(lighthouse=address, token_file=token)
        finally:
            server.shutdown()
            thread.join(10.0)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "RETRY_S", 0.01)


def ask(
    tmp_path: Path, lighthouse: Lighthouse, command: str = "restart", target: str = "1", **more: Any
) -> tuple[int, str]:
    out = io.StringIO()
    with serving(lighthouse, tmp_path) as query:
        options = {"timeout_s": 60.0, **more}
        code = run_operation(query, command, Target(target), out=out, **options)
    return code, out.getvalue()


def test_a_request_without_an_answer_is_sent_again_with_its_id(tmp_path: Path) -> None:
    lighthouse = Lighthouse(dies, dies, operation("done", "Replica 1 trains again."))
    code, text = ask(tmp_path, lighthouse)
    assert (code, text.splitlines()[-1]) == (0, "Replica 1 trains again.")
    assert text.count("The lighthouse does not answer.") == 1
    assert [method for method, _ in lighthouse.received] == ["POST"] * 3
    assert len({body["request_id"] for _, body in lighthouse.received}) == 1


def test_what_was_acknowledged_is_asked_for_after_the_restart(tmp_path: Path) -> None:
    under_way = operation("under way", "Replica 1 leaves.")
    lighthouse = Lighthouse(under_way, dies, dies, under_way, operation("done", "It is done."))
    code, text = ask(tmp_path, lighthouse)
    assert (code, text.splitlines()[0], text.splitlines()[-1]) == (
        0, "Replica 1 leaves.", "It is done.",
    )  # fmt: skip
    assert [method for method, _ in lighthouse.received] == ["POST"] + ["GET"] * 4


@pytest.mark.parametrize("reply", [forgotten, operation("done", request_id="another's")])
def test_a_lighthouse_without_its_journal_is_said(tmp_path: Path, reply: Reply) -> None:
    lighthouse = Lighthouse(operation("under way", "x"), dies, reply)
    code, text = ask(tmp_path, lighthouse)
    assert (code, text.splitlines()[-1]) == (1, str(asking.RequestLost()))


def test_stacks_are_asked_for_anew(tmp_path: Path) -> None:
    taken = [{"replica_id": "1", "group_rank": 0, "text": "File script.py"}]
    lighthouse = Lighthouse(
        operation("under way"), dies, forgotten, operation("done", "Stacks.", stacks=taken)
    )
    code, text = ask(tmp_path, lighthouse, "stack")
    assert code == 0 and "File script.py" in text
    assert [method for method, _ in lighthouse.received] == ["POST", "GET", "GET", "POST"]


def test_no_answer_in_time_is_an_error_that_says_where_the_request_is(tmp_path: Path) -> None:
    lighthouse = Lighthouse(operation("under way"), *[dies] * 10_000)
    with pytest.raises(LighthouseUnreachable, match="is in the lighthouse's journal"):
        ask(tmp_path, lighthouse, timeout_s=0.3)
    lighthouse = Lighthouse(*[dies] * 10_000)
    with pytest.raises(LighthouseUnreachable, match="may have arrived"):
        ask(tmp_path, lighthouse, timeout_s=0.3)


def test_a_job_that_was_asked_to_leave_and_is_gone_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ANSWER_S", 0.1)
    lighthouse = Lighthouse(operation("under way"), *[dies] * 10_000)
    code, text = ask(tmp_path, lighthouse, "drain", "")
    assert (code, text.splitlines()[-1]) == (
        0, "All agents have left, and their lighthouse with them.",
    )  # fmt: skip


def test_where_there_never_was_a_lighthouse_nothing_is_waited_for(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    query = StatusQuery(lighthouse="127.0.0.1:1", token_file=token)
    with pytest.raises(LighthouseUnreachable, match="No lighthouse answers"):
        run_operation(query, "kill", Target("0"), timeout_s=600.0, out=io.StringIO())
