"""A mock of Kubernetes' API server for ConfigMaps, by TLS on loopback, with the mount of a pod.

It implements the API's documents for reads, creates and merge patches: 404, and 409 if the
resourceVersion differs. It has one counter for all objects, like etcd. No controller, no other
kinds.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import ssl
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from ftrun.lighthouse.register.kubernetes import ApiServer
from ftrun.tools.certs import write_certificates
from tests.jobs.process import free_port

BYTES_MAX = 1 << 20
NAMESPACE = "team"
END_S = 60.0
T = TypeVar("T")


class MockApi:
    """``api``: how a pod reaches it. ``refuses``: the status of every answer; 0: none.

    ``delay_s``: the delay before each answer. ``is_silent``: no request is answered. ``late``:
    writes are carried out and then not answered.
    """

    def __init__(self, directory: Path) -> None:
        self.mount = directory / "mount"
        self.mount.mkdir(parents=True)
        write_certificates(directory / "certs", ("127.0.0.1",))
        (self.mount / "ca.crt").write_bytes((directory / "certs" / "ca.pem").read_bytes())
        self.rotate("first")
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certs = directory / "certs"
        self._tls.load_cert_chain(certs / "lighthouse.pem", certs / "lighthouse.key")
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.refuses, self.delay_s, self.is_silent, self.late = 0, 0.0, False, False
        self._counter = 100
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="the API server")
        self._thread.start()
        self._port = free_port()
        self._runner: web.AppRunner | None = None
        self.restart()
        self.api = ApiServer(f"127.0.0.1:{self._port}", self.mount)
        self.environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self._port)
        }  # fmt: skip

    def rotate(self, token: str) -> None:
        """Replace the service account's token; the former one becomes invalid."""
        self._token = token
        (self.mount / "token").write_text(token)

    def restart(self) -> None:
        """Serve (again) at the same port, with the existing objects."""
        self._do(self._serve())

    def kill(self) -> None:
        """Accept no connections any more, and cut the existing ones."""
        assert self._runner is not None
        self._do(self._runner.cleanup())
        self._runner = None

    def close(self) -> None:
        """End it."""
        if self._runner is not None:
            self.kill()
        self._do(_end_the_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(END_S)

    async def _serve(self) -> None:
        app = web.Application(client_max_size=4 * BYTES_MAX)
        path = "/api/v1/namespaces/{namespace}/configmaps"
        app.router.add_get(path + "/{name}", self._answer)
        app.router.add_patch(path + "/{name}", self._answer)
        app.router.add_post(path, self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self._port, ssl_context=self._tls, reuse_address=True
        )
        await site.start()

    # ------------------------------------------------------------ answers

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append(request.method)
        if self.is_silent:
            await asyncio.sleep(END_S)
        await asyncio.sleep(self.delay_s)
        status, found = self._carry_out(request, body)
        if self.late and request.method != "GET":
            await asyncio.sleep(END_S)
        return web.json_response(found, status=status)

    def _carry_out(self, request: web.Request, body: bytes) -> tuple[int, dict[str, Any]]:
        if request.headers.get("Authorization") != f"Bearer {self._token}":
            return _failure(401, "Unauthorized")
        if self.refuses:
            return _failure(self.refuses, "as the test wants")
        if request.match_info["namespace"] != NAMESPACE:
            return _failure(404, "namespaces not found")
        if request.method == "POST":
            return self._create(json.loads(body))
        found = self.objects.get(request.match_info["name"])
        if found is None:
            return _failure(404, "configmaps not found")
        if request.method == "GET":
            return 200, found
        assert request.content_type == "application/merge-patch+json"
        return self._patch(found, json.loads(body))

    def _create(self, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = document["metadata"]["name"]
        if document["metadata"].get("resourceVersion"):
            return _failure(400, "resourceVersion should not be set on objects to be created")
        if name in self.objects:
            return _failure(409, f'configmaps "{name}" already exists')
        return self._store(201, document)

    def _patch(self, found: dict[str, Any], patch: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        stated = patch["metadata"].pop("resourceVersion", None)
        if stated not in (None, found["metadata"]["resourceVersion"]):
            return _failure(409, "the object has been modified")
        return self._store(200, _merged(found, patch))

    def _store(self, status: int, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        size = sum(len(text) for text in (document.get("data") or {}).values())
        size += sum(map(len, map(base64.b64decode, (document.get("binaryData") or {}).values())))
        if size > BYTES_MAX:
            return _failure(422, "must have at most 1048576 bytes")
        former = self.objects.get(document["metadata"]["name"])
        if former != document:  # a write without a change has no new version
            self._counter += 1
            document["metadata"]["resourceVersion"] = str(self._counter)
            self.objects[document["metadata"]["name"]] = document
        return status, document


async def _end_the_others() -> None:
    """End the handlers that do not answer."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _merged(found: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """RFC 7386."""
    merged = copy.deepcopy(found)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merged(merged.get(key) or {}, value)
        else:
            merged[key] = value
    return merged


def _failure(status: int, message: str) -> tuple[int, dict[str, Any]]:
    return status, {"kind": "Status", "status": "Failure", "message": message, "code": status}


@contextlib.contextmanager
def running_api(directory: Path) -> Iterator[MockApi]:
    """An API server that ends with the block."""
    api = MockApi(directory)
    try:
        yield api
    finally:
        api.close()
