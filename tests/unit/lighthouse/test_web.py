"""The web server: every route behind the token, and figures that Prometheus can read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ftrun.core.activity import Activity
from ftrun.core.ids import StateId, WorkerKey
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentSent,
    JournalState,
    LighthouseSettings,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.status import LighthouseStatus, Status
from ftrun.core.messages import Hello, JobSpec, Progress, Report, WorkerMessage
from ftrun.core.messages import ReplicaStarted as Started
from ftrun.core.quorum import Endpoint
from ftrun.lighthouse import web
from ftrun.lighthouse.guard import CONTENT_SECURITY_POLICY, OPEN_ROUTES, own_names
from ftrun.lighthouse.metrics import render_metrics
from ftrun.lighthouse.occurrences import Totals
from ftrun.lighthouse.openapi import openapi
from ftrun.lighthouse.settings import ServiceSettings
from ftrun.lighthouse.web import WebServer, build_app
from ftrun.protocol.auth import bearer, new_token
from ftrun.protocol.tls import TlsFiles
from ftrun.tools.certs import write_certificates
from tests.unit.lighthouse.scripted_operations import ScriptedOperations

TOKEN = new_token()
SETTINGS = ServiceSettings(Path("/nowhere"), TOKEN, http="node-0.cluster:0")


def status() -> Status:
    """A real core's snapshot, with what the service adds."""
    core = Lighthouse(LighthouseSettings(takeover_grace_s=0.0), JournalState(), 0.0)
    spec = JobSpec("job", 2, 1, 2, 5.0, 2.0, 60.0)
    key = WorkerKey("0", "aa", 0)
    core.handle(AgentAttached("node", Hello("node", spec, 8, "h", "s")), 0.0)
    core.handle(TimerFired(), 1.0)
    for message in (
        Started("0", "aa", 3),
        WorkerMessage(key, Report(StateId(7, "ab"), Endpoint("h", "h:1"))),
        WorkerMessage(key, Progress(7, 7, Activity.STEP, (("loss", 0.5),))),
    ):
        core.handle(AgentSent("node", (message,)), 1.0)
    service: LighthouseStatus = {
        "version": "1",
        "pid": 812,
        "uptime_s": 1.5,
        "agents_attached": 1,
        "journal_writes": 2,
        "journal_write_s": 0.01,
        "epoch": 1,
    }
    return {  # type: ignore[typeddict-item]
        "lighthouse": service,
        **core.snapshot(2.0),
        "events": [],
        "messages_received": {"Report": 1},
        "idle_nodes": [],
        "torchft": None,
    }


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 300.0))


class Served:
    """The web server on a free port, and a client."""

    def __init__(self, settings: ServiceSettings = SETTINGS) -> None:
        self.settings = settings

    async def __aenter__(self) -> Served:
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.operations = ScriptedOperations()
        self.server = WebServer(build_app(status, self.settings, self.operations), self.settings)
        await self.server.start(listener)
        self.client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60.0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.server.stop()

    async def ask(self, path: str, header: str | None, method: str = "GET") -> tuple[int, str]:
        headers = {} if header is None else {"Authorization": header}
        async with self.client.request(method, self.url + path, headers=headers) as response:
            return response.status, await response.text()


def test_every_route_refuses_every_wrong_token() -> None:
    """X1: the routes come from the route table; a new one cannot be forgotten."""
    routes = {
        (route.method, route.resource.canonical)
        for route in build_app(status, SETTINGS, ScriptedOperations()).router.routes()
        if route.resource is not None
    }
    assert {"/status", "/metrics", "/healthz"} <= {path for _, path in routes}
    wrong = [None, "", TOKEN, "Bearer ", bearer(TOKEN[:-1]), bearer(TOKEN + "0"), bearer("é")]
    wrong += [bearer(new_token()), f"Basic {TOKEN}"]

    async def main() -> None:
        async with Served() as served:
            for method, path in sorted(routes | {("GET", "/unknown"), ("POST", "/status")}):
                for header in wrong:
                    code, text = await served.ask(path, header, method)
                    expected = 200 if path in OPEN_ROUTES else 401
                    assert code == expected, (method, path, header)
                    assert TOKEN not in text
            assert (await served.ask("/unknown", bearer(TOKEN)))[0] == 404
            assert (await served.ask("/status", bearer(TOKEN), "POST"))[0] == 405

    run(main())


def test_the_status_is_the_cores_and_holds_no_token() -> None:
    async def main() -> None:
        async with Served() as served:
            code, text = await served.ask("/status", bearer(TOKEN))
            assert code == 200
            assert '"job_id": "job"' in text
            assert TOKEN not in text
            assert await served.ask("/healthz", None) == (200, '{"ok": true}')

    run(main())


def test_metrics_are_those_of_the_status() -> None:
    async def main() -> None:
        async with Served() as served:
            code, text = await served.ask("/metrics", bearer(TOKEN))
            assert code == 200
            found = {
                (sample.name, *sorted(sample.labels.values())): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            assert found["ftrun_replica_step", "0"] == 7
            assert found["ftrun_replica_restarts_total", "0"] == 3
            assert found["ftrun_replica_scalar", "0", "loss"] == 0.5
            assert found["ftrun_replica_phase", "0", "joining"] == 1
            assert found["ftrun_replica_phase", "1", "absent"] == 1
            assert found["ftrun_phase", "empty"] == 1
            assert found["ftrun_replicas_wanted",] == 2
            assert found["ftrun_journal_writes_total",] == 2
            assert found["ftrun_messages_received_total", "Report"] == 1
            assert found["ftrun_epoch",] == 1

    run(main())


def test_without_their_package_metrics_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ftrun.lighthouse.metrics")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    async def main() -> None:
        async with Served() as served:
            code, text = await served.ask("/metrics", bearer(TOKEN))
            assert code == 501 and "pip install 'ftrun[lighthouse]'" in text
            assert (await served.ask("/status", bearer(TOKEN)))[0] == 200

    run(main())


@pytest.mark.parametrize("value", [None, 1e308, -0.0])
def test_any_scalar_can_be_scraped(value: float | None) -> None:
    facts = status()
    facts["replicas"][0]["scalars"] = {'we"ird\n\\name': value}
    (family,) = [
        family
        for family in text_string_to_metric_families(render_metrics(facts, Totals()).decode())
        if family.name == "ftrun_replica_scalar"
    ]
    assert family.samples[0].labels["name"] == 'we"ird\n\\name'


HOSTS = ("127.0.0.1", "127.0.0.1:29511", "[::1]:80", "10.1.2.3", "LOCALHOST:1", "node-0.cluster.")
OTHER_HOSTS = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "a b")
ODD_HOSTS = ("[::1", "[::1]x", "localhost:", "localhost:x", "localhost@evil", "[127.0.0.1", ":80")


def test_only_names_of_ours_are_answered() -> None:
    """X6: a page that has pointed its own name at us gets nothing, with the token or without."""

    async def main() -> None:
        async with Served() as served:

            async def ask(host: str, path: str = "/status") -> int:
                headers = {"Host": host, "Authorization": bearer(TOKEN)}
                async with served.client.get(served.url + path, headers=headers) as response:
                    await response.read()
                    return response.status

            for host in HOSTS:
                assert await ask(host) == 200, host
            for host in (*OTHER_HOSTS, *ODD_HOSTS):
                assert await ask(host) in (400, 421), host
            assert await ask("my-lighthouse.team.svc", "/healthz") == 200  # a probe by Service
        async with Served(replace(SETTINGS, allowed_hosts=("Evil.example",))) as served:
            assert await ask("evil.example") == 200

    run(main())


def test_the_names_in_our_certificate_are_ours(tmp_path: Path) -> None:
    write_certificates(tmp_path, ("front.cluster", "10.0.0.1"))
    tls = TlsFiles(tmp_path / "lighthouse.pem", tmp_path / "lighthouse.key")
    assert {"front.cluster", "localhost"} <= own_names(replace(SETTINGS, tls=tls))
    assert "front.cluster" not in own_names(SETTINGS)


def test_every_answer_carries_the_safe_heads() -> None:
    async def main() -> None:
        async with Served() as served:
            for path, header in (
                ("/healthz", {}),
                ("/status", {}),
                ("/<script>alert(1)</script>", {"Authorization": bearer(TOKEN)}),
                ("/openapi.json", {"Authorization": bearer(TOKEN)}),
            ):
                async with served.client.get(served.url + path, headers=header) as response:
                    assert response.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
                    assert response.headers["X-Content-Type-Options"] == "nosniff"
                    assert response.headers["Cache-Control"] == "no-store"
                    assert response.content_type == "application/json"
                    assert "<script" not in await response.text()

    run(main())


def test_the_token_counts_in_its_header_only() -> None:
    """Cookies, which a browser adds by itself, let no other page act in its user's name."""

    async def main() -> None:
        async with Served() as served:
            code, _ = await served.ask(f"/status?token={TOKEN}&access_token={TOKEN}", None)
            assert code == 401
            cookies = {"Cookie": f"token={TOKEN}; Authorization={bearer(TOKEN)}"}
            async with served.client.get(served.url + "/status", headers=cookies) as response:
                assert response.status == 401

    run(main())


def test_every_route_is_in_the_document_and_only_one_changes_anything() -> None:
    """A new route is forgotten neither in the document nor, if it acts, in this test (X6)."""
    document = openapi("1")
    table = {
        (route.method.lower(), route.resource.canonical)
        for route in build_app(status, SETTINGS, ScriptedOperations()).router.routes()
        if route.resource is not None
    }
    posts = {path for method, path in table if method not in ("get", "head")}
    assert posts == {"/operations", "/links", "/session"}  # The last two make a page's session.
    described = {(method, path) for path, x in document["paths"].items() for method in x}
    assert described == {(method, path) for method, path in table if method != "head"}
    unprotected = {
        path
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if operation.get("security") == []
    }
    assert unprotected == OPEN_ROUTES


def test_bodies_and_heads_have_limits() -> None:
    """X3."""

    async def main() -> None:
        async with Served() as served:
            host, port = served.url.removeprefix("http://").split(":")

            async def answer(data: bytes) -> bytes:
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(data)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                    found = await reader.readline()
                    writer.close()
                    return found
                return b"cut"

            head = f"GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: {bearer(TOKEN)}\r\n"
            assert b" 200 " in await answer(head.encode() + b"\r\n")
            for more in (
                b"X: " + b"y" * 20_000 + b"\r\n\r\n",
                b"".join(b"X%d: y\r\n" % n for n in range(40_000)) + b"\r\n",
                b"Host: localhost\r\n\r\n",
            ):
                told = await answer(head.encode() + more)
                assert b" 200 " not in told, told
            assert b" 400 " in await answer(b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n")
            assert b" 400 " in await answer(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")

    run(main())


def test_connections_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(web, "CONNECTION_LIFETIME_S", 0.2)
    monkeypatch.setattr(web, "SWEEP_INTERVAL_S", 0.1)

    async def main() -> None:
        async with Served() as served:
            host, port = served.url.removeprefix("http://").split(":")
            held = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
            # One is closed at once; the silent rest, when their time is over.
            for reader, writer in held:
                assert await reader.read() == b""
                writer.close()
            monkeypatch.setattr(web, "CONNECTION_LIFETIME_S", 60.0)
            assert (await served.ask("/healthz", None))[0] == 200

    run(main())
