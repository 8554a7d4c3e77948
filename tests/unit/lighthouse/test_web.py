"""The web server: every route behind the token, and figures that Prometheus can read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ftrun.core.ids import StateId, WorkerKey
from ftrun.core.lighthouse import Lighthouse
from ftrun.core.lighthouse_events import (
    AgentAttached,
    AgentSaid,
    JournalState,
    LighthouseSettings,
    TimerFired,
)
from ftrun.core.messages import Endpoint, Hello, JobSpec, Progress, Report, WorkerMessage
from ftrun.core.messages import ReplicaStarted as Started
from ftrun.lighthouse.metrics import render_metrics
from ftrun.lighthouse.web import OPEN_ROUTES, WebServer, build_app
from ftrun.protocol.auth import bearer, new_token

TOKEN = new_token()


def status() -> dict[str, Any]:
    """A real core's snapshot, with what the service adds."""
    core = Lighthouse(LighthouseSettings(takeover_grace_s=0.0), JournalState(), 0.0)
    spec = JobSpec("job", 2, 1, 2, 5.0, 2.0, 60.0)
    key = WorkerKey("0", "aa", 0)
    core.handle(AgentAttached("node", Hello("node", spec, 8, "h", "s")), 0.0)
    core.handle(TimerFired(), 1.0)
    for message in (
        Started("0", "aa", 3),
        WorkerMessage(key, Report(StateId(7, "ab"), Endpoint("h", "h:1"))),
        WorkerMessage(key, Progress(7, 7, "forward", (("loss", 0.5),))),
    ):
        core.handle(AgentSaid("node", message), 1.0)
    service = {"uptime_s": 1.5, "agents_attached": 1, "journal_writes": 2, "journal_write_s": 0.01}
    return {"lighthouse": service, "messages_received": {"Report": 1}, **core.snapshot(2.0)}


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 20.0))


class Served:
    """The web server on a free port, and a client."""

    async def __aenter__(self) -> Served:
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.server = WebServer(status, TOKEN)
        await self.server.start(listener)
        self.client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0))
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
        for route in build_app(status, TOKEN).router.routes()
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


@pytest.mark.parametrize("value", [None, 1e308, -0.0])
def test_any_scalar_can_be_scraped(value: float | None) -> None:
    facts = status()
    facts["replicas"][0]["scalars"] = {'we"ird\n\\name': value}
    (family,) = [
        family
        for family in text_string_to_metric_families(render_metrics(facts).decode())
        if family.name == "ftrun_replica_scalar"
    ]
    assert family.samples[0].labels["name"] == 'we"ird\n\\name'
