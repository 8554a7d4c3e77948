"""The routes of the web page: what is open, sessions, the stream, other sites' pages."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ftrun.core.lighthouse.status import Status
from ftrun.lighthouse import events
from ftrun.lighthouse.events import HEARTBEAT, Snapshots, page_status
from ftrun.lighthouse.page_routes import DOOR_FILES, FILES, HOME
from ftrun.protocol.auth import bearer
from tests.unit.lighthouse.test_web import SETTINGS, TOKEN, Served, run, status

DRAIN = {"command": "drain", "replica": "1"}


async def post(
    served: Served, path: str, body: Any = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    """The code and the document of a POST with a JSON body."""
    async with served.client.post(served.url + path, json=body, headers=headers) as response:
        return response.status, await response.json()


def test_without_a_token_there_is_the_page_and_nothing_else() -> None:
    async def main() -> None:
        async with Served() as served:
            for path, (name, kind) in FILES.items():
                async with served.client.get(served.url + path) as response:
                    assert response.status == 200
                    assert response.content_type == kind
                    policy = response.headers["Content-Security-Policy"]
                    assert policy.startswith("default-src 'none'; script-src 'self'; ")
                    assert "unsafe" not in policy
                    assert response.headers["Cache-Control"] == "no-store"
                    assert await response.text() == (HOME / name).read_text()
            for path in ("/events", "/status", "/page/", "/page/../guard.py", "/page/x.js"):
                assert (await served.ask(path, None))[0] == 401, path

    run(main())


def test_every_file_of_the_page_is_served_and_none_asks_another_site() -> None:
    assert {path.name for path in HOME.iterdir()} == {
        name for name, _ in (*FILES.values(), *DOOR_FILES.values())
    }
    for path in HOME.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text.replace("HTTP", "").replace("http-equiv", ""), path
        for sink in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
            assert sink not in text, (path, sink)
    page = (HOME / "index.html").read_text()
    assert " style=" not in page
    assert " onclick=" not in page


def test_a_link_becomes_a_session_once() -> None:
    async def main() -> None:
        async with Served() as served:
            assert (await post(served, "/links"))[0] == 401
            code, link = await post(served, "/links", Authorization=bearer(TOKEN))
            assert code == 200
            code, session = await post(served, "/session", {"code": link["code"]})
            assert code == 200
            again, _ = await post(served, "/session", {"code": link["code"]})
            assert again == 401
            header = bearer(session["session"])
            assert (await served.ask("/status", header))[0] == 200
            assert (await post(served, "/operations", DRAIN, Authorization=header))[0] == 200
            # A session cannot be prolonged.
            assert (await post(served, "/links", Authorization=header))[0] == 401
            assert (await post(served, "/session", Authorization=header))[0] == 401
            assert (await post(served, "/session", Authorization=bearer(TOKEN)))[0] == 200
            bodies: tuple[Any, ...] = (None, [], {"code": 1}, {"code": ""}, {"code": "x"}, {})
            for body in bodies:
                assert (await post(served, "/session", body))[0] == 401
        async with Served() as served:  # Another lighthouse with the same token.
            assert (await served.ask("/status", header))[0] == 200

    run(main())


def test_a_cookie_opens_nothing() -> None:
    async def main() -> None:
        async with Served() as served:
            _, found = await post(served, "/session", Authorization=bearer(TOKEN))
            cookie = f"session={found['session']}; Authorization={bearer(found['session'])}"
            assert (await post(served, "/operations", DRAIN, Cookie=cookie))[0] == 401
            assert served.operations.operations == {}

    run(main())


@pytest.mark.parametrize(
    "heads",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_sites_pages_are_refused_also_with_the_token(heads: dict[str, str]) -> None:
    """X6."""

    async def main() -> None:
        async with Served() as served:
            own = {"Origin": served.url, "Sec-Fetch-Site": "same-origin"}
            ways = {"Authorization": bearer(TOKEN)}
            assert (await post(served, "/operations", DRAIN, **ways, **own))[0] == 200
            for path in ("/operations", "/links", "/session"):
                assert (await post(served, path, DRAIN, **ways, **heads))[0] == 403
            assert len(served.operations.operations) == 1

    run(main())


def test_events_are_statuses_and_streams_are_few_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STREAMS_MAX", 2)
    monkeypatch.setattr(events, "INTERVAL_S", 0.02)
    monkeypatch.setattr(events, "STREAM_S", 600.0)
    heads = {"Authorization": bearer(TOKEN)}

    async def main() -> None:
        async with Served() as served:
            url = served.url + "/events"
            first = await served.client.get(url, headers=heads)
            second = await served.client.get(url, headers=heads)
            assert first.content_type == "text/event-stream"
            lines = [await first.content.readline() for _ in range(6)]
            found = [json.loads(x[6:]) for x in lines if x.startswith(b"data: ")]
            assert found[0]["job"]["job_id"] == "job"
            assert (await served.ask("/events", bearer(TOKEN)))[0] == 503
            first.close()
            second.close()
            monkeypatch.setattr(events, "STREAM_S", 0.1)
            while (answer := await served.ask("/events", bearer(TOKEN)))[0] == 503:
                pass  # Until the lighthouse has noticed that one browser went.
            assert answer[0] == 200  # And the stream has ended by itself.

    run(main())


def test_watching_costs_a_twentieth_of_a_core_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = 0.0, 0

    def slow() -> Status:
        nonlocal now, asked
        asked += 1
        now += 0.5
        return {**status(), "schema": "ftrun.status/1"}

    monkeypatch.setattr(events.clock, "now", lambda: now)  # type: ignore[attr-defined]
    snapshots = Snapshots(slow)
    number, event = snapshots.after(0)
    assert event.startswith(b"id: 1\ndata: {")
    for _ in range(9):
        assert snapshots.after(number) == (number, b"")
        assert snapshots.after(0) == (number, event)  # One more page costs nothing.
        now += 1.0
    assert asked == 1
    now += 1.0
    assert snapshots.after(number)[0] == 2
    assert HEARTBEAT.startswith(b":")


def test_of_many_replicas_less_is_sent() -> None:
    facts: Any = {**status(), "schema": "ftrun.status/1"}
    assert "workers" in page_status(facts)["replicas"][0]
    many: Any = {**facts, "replicas": facts["replicas"][:1] * 1000}
    shown = page_status(many)
    assert len(json.dumps(shown)) < 400_000
    assert "workers" not in shown["replicas"][0]


def test_the_page_is_served_under_a_further_name() -> None:
    async def main() -> None:
        async with Served(replace(SETTINGS, allowed_hosts=("front.example",))) as served:
            heads = {"Host": "front.example", "Origin": "https://front.example"}
            code, _ = await post(served, "/session", Authorization=bearer(TOKEN), **heads)
            assert code == 200

    run(main())
