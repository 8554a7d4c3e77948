"""The routes by which people act on a job, over the real web server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ftrun.lighthouse.operations import parse_request
from ftrun.protocol.auth import bearer
from tests.unit.lighthouse.test_web import TOKEN, Served, run

DRAIN = {"command": "drain", "replica": "1"}
BAD: list[tuple[Any, str]] = [
    ([], "no object"),
    ({}, "command"),
    ({"command": "reboot"}, "command"),
    ({"command": "restart"}, "needs one"),
    ({"command": "kill", "replica": 1}, "short name"),
    ({"command": "kill", "replica": "1", "rank": -1}, "number"),
    ({"command": "kill", "replica": "1", "rank": True}, "number"),
    ({"command": "drain", "replica": "1", "rank": 0}, "only kill and stack"),
    ({"command": "stack", "rank": 0}, "only kill and stack"),
    ({"command": "stack", "node": "a"}, "only drain"),
    ({"command": "drain", "replica": "1", "node": "a"}, "only drain"),
    ({"command": "drain", "node": "a" * 200}, "short name"),
    ({"command": "drain", "node": "a\nb"}, "short name"),
    ({"command": "drain", "node": "é" * 100}, "short name"),
    ({"command": "drain", "request_id": "\ud800"}, "short name"),
    ({"command": "drain", "request_id": 7}, "short name"),
    ({"command": "drain", "force": True}, "unknown"),
]


async def post(served: Served, body: str, kind: str = "application/json") -> tuple[int, Any]:
    headers = {"Authorization": bearer(TOKEN), "Content-Type": kind}
    url = served.url + "/operations"
    async with served.client.post(url, data=body, headers=headers) as response:
        return response.status, await response.json()


@pytest.mark.parametrize(("body", "why"), BAD)
def test_a_body_with_an_error_is_refused_by_its_name(body: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_request(body)


def test_a_request_and_its_outcome() -> None:
    async def main() -> None:
        async with Served() as served:
            code, operation = await post(served, json.dumps(DRAIN))
            assert (code, operation["state"], operation["operation"]) == (200, "under way", 1)
            asked = asyncio.ensure_future(served.ask("/operations/1?wait=30", bearer(TOKEN)))
            served.operations.end(1, "Replica 1 has left at step 7.")
            code, text = await asked
            assert code == 200
            assert json.loads(text)["text"] == "Replica 1 has left at step 7."
            assert json.loads(text)["state"] == "done"

    run(main())


def test_what_is_refused_changes_nothing() -> None:
    async def main() -> None:
        async with Served() as served:
            assert (await post(served, json.dumps(DRAIN), "text/plain"))[0] == 415
            assert (await post(served, "{"))[0] == 400
            assert (await post(served, "[" * 20_000))[0] == 400
            assert (await post(served, "{}" + " " * 70_000))[0] == 413
            assert served.operations.operations == {}
            assert (await post(served, json.dumps({**DRAIN, "replica": "77"})))[0] == 404
            assert (await post(served, json.dumps({**DRAIN, "replica": "busy"})))[0] == 429
            for path in ("/operations/9", "/operations/x", "/operations/1" + "0" * 30):
                assert (await served.ask(path, bearer(TOKEN)))[0] == 404, path
            for wait in ("x", "-1", "nan", "1e9"):
                path = f"/operations/1?wait={wait}"
                assert (await served.ask(path, bearer(TOKEN)))[0] == 400, path

    run(main())
