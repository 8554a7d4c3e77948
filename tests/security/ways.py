"""Every way into a running job, and its answer to each kind of token (X1).

The ways come from the service's descriptor and the route tables, so a new one is tried without an
entry here. A lighthouse, a worker's state server, with TLS and without, and an agent's socket are
real processes. A state server is tried with proofs (checkpoint/proof.py) under each token, and with
the tokens themselves, which give no access there.
"""

from __future__ import annotations

import asyncio
import http.client
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ftrun.base.errors import PeerError
from ftrun.checkpoint.requests import ROUTES
from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.ids import WorkerKey
from ftrun.lighthouse.guard import OPEN_ROUTES
from ftrun.lighthouse.settings import ServiceSettings
from ftrun.lighthouse.web import build_app
from ftrun.protocol import ftrun_pb2
from ftrun.protocol.auth import bearer, new_token
from ftrun.protocol.frames import FrameSocket
from tests.fuzz.hosted import HOSTED, STATES, HostedBytes
from tests.unit.checkpoint.asking import Caller
from tests.unit.lighthouse.lighthouse_process import LighthouseProcess
from tests.unit.lighthouse.scripted_operations import ScriptedOperations

WAIT_S = 10.0
Ask = Callable[[str | None], str]
"""Sends a request with this token (None: without one); returns the answer in a word or two."""


@dataclass(frozen=True)
class Way:
    """One way in. ``welcome``: its answer to the job's token. ``is_open``: it needs no token."""

    name: str
    token: str
    ask: Ask
    welcome: str
    refusal: str
    is_open: bool = False


def wrong_tokens(token: str) -> dict[str, str | None]:
    """All kinds of tokens that are not the job's."""
    return {
        "none": None,
        "empty": "",
        "wrong": "0" * 64,
        "truncated": token[:-1],
        "longer": token + "0",
        "upper case": token.upper(),
        "another job's": new_token(),
    }


@contextmanager
def all_ways(directory: Path) -> Iterator[list[Way]]:
    """Start all servers; yields every way into them."""
    with ExitStack() as stack:
        (directory / "lighthouse").mkdir()
        lighthouse = stack.enter_context(LighthouseProcess(directory / "lighthouse", new_token()))
        hosted = {kind: HostedBytes(directory, kind, known=True) for kind in HOSTED}
        for host in hosted.values():
            stack.enter_context(host)
        socket = hosted["agent, Unix socket"]
        yield [
            *_calls(lighthouse),
            *_lighthouse_routes(lighthouse),
            *(way for kind in STATES for way in _state_routes(hosted[kind])),
            Way("agent: Unix socket", socket.token, partial(_hello, socket.address),
                "answers", "closed"),
        ]  # fmt: skip


# ---------------------------------------------------------------- gRPC


def _calls(lighthouse: LighthouseProcess) -> Iterator[Way]:
    names = [
        f"/{service.full_name}/{method.name}"
        for service in ftrun_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    for name in (*names, "/ftrun.Membership/Unknown", "/grpc.health.v1.Health/Check"):
        welcome = "INVALID_ARGUMENT" if name in names else "UNIMPLEMENTED"
        ask = partial(_call, lighthouse.grpc, name)
        yield Way(f"lighthouse: gRPC {name}", lighthouse.token, ask, welcome, "UNAUTHENTICATED")


def _call(address: str, name: str, token: str | None) -> str:
    async def call() -> str:
        metadata = () if token is None else (("authorization", bearer(token)),)
        async with grpc.aio.insecure_channel(address) as channel:
            opened: Any = channel
            stream = opened.stream_stream(name)(metadata=metadata)
            try:
                await stream.done_writing()  # without a Hello: an admitted client is told so
                await asyncio.wait_for(stream.read(), WAIT_S)
                await stream.read()
            except grpc.aio.AioRpcError as error:
                return error.code().name
            except asyncio.InvalidStateError:
                pass
            return str((await stream.code()).name)

    return asyncio.run(call())


# ---------------------------------------------------------------- HTTP


def _lighthouse_routes(lighthouse: LighthouseProcess) -> Iterator[Way]:
    settings = ServiceSettings(Path("/nowhere"), lighthouse.token)
    nothing: Any = dict
    found = {
        (route.method, route.resource.canonical)
        for route in build_app(nothing, settings, ScriptedOperations()).router.routes()
        if route.resource is not None
    }
    for method, path in sorted(found | {("POST", "/status"), ("GET", "/unknown")}):
        answers = {("POST", "/status"): "405", ("POST", "/operations"): "415"}
        answers |= {(x, "/operations/{number}"): "404" for x in ("GET", "HEAD")}
        answers["GET", "/unknown"] = "404"
        welcome = answers.get((method, path), "200")
        ask = partial(_request, lighthouse.http, method, path)
        name = f"lighthouse: {method} {path}"
        yield Way(name, lighthouse.token, ask, welcome, "401", path in OPEN_ROUTES)


def _state_routes(states: HostedBytes) -> Iterator[Way]:
    where = "worker, TLS" if states.certificate else "worker"
    for route, method in ROUTES.items():
        path = f"/state/8.1.10/{route}" + ("?offset=0&length=4000" if route == "data" else "")
        name = f"{where}: {method} /state/TAG/{route}"
        proved = partial(_proved, states, method, path)
        yield Way(f"{name}, proved", states.token, proved, "200", "401")
        shown = partial(_shown, states, method, path)
        yield Way(f"{name}, the token itself", states.token, shown, "401", "401")


def _proved(states: HostedBytes, method: str, path: str, token: str | None) -> str:
    """Request with a proof under this token; without a token make two requests: the first has no
    proof."""
    with Caller(states.address, token or "", states.certificate) as caller:
        if token is not None:
            return str(caller.ask(path, method, x_ftrun_receiver="r1").status)
        request = f"{method} {path} HTTP/1.1\r\nx-ftrun-receiver: r1\r\n\r\n".encode()
        first, second = caller.send(request).status, caller.send(request).status
        return str(first) if first == second else f"{first}, {second}"


def _shown(states: HostedBytes, method: str, path: str, token: str | None) -> str:
    with Caller(states.address, "", states.certificate) as caller:
        field = "" if token is None else f"authorization: {bearer(token)}\r\n"
        head = f"{method} {path} HTTP/1.1\r\n{field}x-ftrun-receiver: r1\r\n\r\n"
        return str(caller.send(head.encode()).status)


def _request(address: str, method: str, path: str, token: str | None) -> str:
    host, port = address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_S)
    headers = {} if token is None else {"Authorization": bearer(token)}
    try:
        connection.request(method, path, headers=headers)
        return str(connection.getresponse().status)
    finally:
        connection.close()


# ---------------------------------------------------------------- the agent's socket


def _hello(path: str, token: str | None) -> str:
    """A worker's first frame; without any token another frame is first."""
    import socket

    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    worker = FrameSocket(sock)
    try:
        if token is not None:
            worker.send(m.WorkerHello(WorkerKey("0", "aa", 0), os.getpid(), token))
        worker.send(m.Progress(1, 1, Activity.STEP))
        return "answers" if worker.receive(WAIT_S) is not None else "silent"
    except PeerError:
        return "closed"
    finally:
        worker.close()
