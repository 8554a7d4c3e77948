"""TLS on both ports: the right authority lets in, any other does not; with a CA both ways."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.base.errors import UserError
from ftrun.core.lighthouse.events import JournalState, LighthouseSettings
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.messages import Hello, JobSpec, Welcome
from ftrun.lighthouse.journal import JournalFile
from ftrun.lighthouse.server import MembershipServer
from ftrun.lighthouse.settings import ServiceSettings
from ftrun.lighthouse.shell import Shell
from ftrun.lighthouse.web import WebServer, build_app
from ftrun.protocol.auth import new_token
from ftrun.protocol.handshake import check_first_answer, check_handshake
from ftrun.protocol.rpc import Connected, Disconnected, LighthouseConnection
from ftrun.protocol.tls import PLAINTEXT, TlsFiles
from ftrun.tools.certs import write_certificates
from ftrun.tools.status.client import LighthouseUnreachable, fetch_status
from tests.unit.lighthouse.scripted_operations import ScriptedOperations

HOST = "127.0.0.1"
SPEC = JobSpec("job", 2, 1, 1, 5.0, 2.0, 60.0)


class Authority:
    """The files of one `ftrun certs`."""

    def __init__(self, directory: Path) -> None:
        write_certificates(directory, (HOST,))
        self.ca = directory / "ca.pem"
        self.lighthouse = directory / "lighthouse.pem", directory / "lighthouse.key"
        self.agent = directory / "agent.pem", directory / "agent.key"


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "other")


@pytest.fixture
def settings(tmp_path: Path, ours: Authority) -> ServiceSettings:
    return ServiceSettings(
        tmp_path, new_token(), bind=f"{HOST}:0", tls=TlsFiles(*ours.lighthouse, ours.ca)
    )


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60.0))


@contextlib.asynccontextmanager
async def serving(settings: ServiceSettings) -> AsyncIterator[int]:
    """The gRPC port of a lighthouse."""
    core = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
    shell = Shell(core, JournalFile(settings.state_dir / "journal"))
    server = MembershipServer(settings)
    _, port = server.bind()
    await server.start(shell)
    try:
        yield port
    finally:
        shell.stop()
        await server.stop()


@contextlib.asynccontextmanager
async def serving_http(settings: ServiceSettings) -> AsyncIterator[int]:
    listener = socket.create_server((HOST, 0))
    app = build_app(lambda: {"lighthouse": {}}, settings, ScriptedOperations())  # type: ignore[typeddict-item]
    server = WebServer(app, settings)
    await server.start(listener)
    try:
        yield listener.getsockname()[1]
    finally:
        await server.stop()


async def is_let_in(settings: ServiceSettings, port: int, tls: TlsFiles) -> bool:
    """Whether an agent with these files is welcome."""
    events: asyncio.Queue[Any] = asyncio.Queue()
    connection = LighthouseConnection(
        [f"{HOST}:{port}"], settings.token, events.put_nowait, tls=tls
    )
    task = asyncio.ensure_future(connection.run())
    first = await events.get()
    welcome = None
    if isinstance(first, Connected):
        connection.send(Hello("node", SPEC, 8, "h", "s"))
        welcome = await events.get()
    connection.close()
    await task
    assert isinstance(welcome or first, Welcome | Disconnected)
    return isinstance(welcome, Welcome)


def test_agents_attach_by_certificates_of_the_authority_only(
    settings: ServiceSettings, ours: Authority, other: Authority
) -> None:
    async def main() -> None:
        async with serving(settings) as port:
            assert await is_let_in(settings, port, TlsFiles(*ours.agent, ours.ca))
            for wrong in (
                TlsFiles(*ours.agent, other.ca),
                TlsFiles(*other.agent, ours.ca),
                TlsFiles(ca=ours.ca),
                PLAINTEXT,
            ):
                assert not await is_let_in(settings, port, wrong), wrong
        one_way = replace(settings, tls=TlsFiles(*ours.lighthouse))
        async with serving(one_way) as port:
            assert await is_let_in(one_way, port, TlsFiles(ca=ours.ca))
            assert not await is_let_in(one_way, port, TlsFiles(ca=other.ca))

    run(main())


def test_the_handshake_before_the_start_says_what_is_wrong(
    settings: ServiceSettings, ours: Authority, other: Authority
) -> None:
    async def refusal(port: int, tls: TlsFiles, host: str = HOST) -> str:
        with pytest.raises(UserError) as told:
            await asyncio.to_thread(check_handshake, host, port, tls)
        assert "Nothing was started" in str(told.value)
        return str(told.value)

    async def main() -> None:
        right = TlsFiles(*ours.agent, ours.ca)
        async with serving(replace(settings, bind="0.0.0.0:0")) as port:
            await asyncio.to_thread(check_handshake, HOST, port, right)
            await asyncio.to_thread(check_handshake, HOST, port, PLAINTEXT)
            told = await refusal(port, TlsFiles(*ours.agent, other.ca))
            assert "was not signed by --tls-ca" in told
            assert "wants to see a certificate" in await refusal(port, TlsFiles(ca=ours.ca))
            told = await refusal(port, TlsFiles(*other.agent, ours.ca))
            assert "does not accept --tls-cert" in told
            assert "not for that name" in await refusal(port, right, "127.0.0.2")
        async with serving_http(settings) as port:
            assert "not a lighthouse's port for agents" in await refusal(port, right)
        async with serving(replace(settings, tls=PLAINTEXT)) as port:
            assert "does not speak TLS" in await refusal(port, right)
        await asyncio.to_thread(check_handshake, HOST, port, right)  # Not there yet: no error.

    run(main())


def test_of_several_lighthouses_the_first_that_answers_is_checked(
    settings: ServiceSettings, ours: Authority, other: Authority
) -> None:
    async def main() -> None:
        right, wrong = TlsFiles(*ours.agent, ours.ca), TlsFiles(*ours.agent, other.ca)
        async with serving(settings) as port:
            lost = HOST, 1  # nothing listens there
            await asyncio.to_thread(check_first_answer, [lost, (HOST, port)], right)
            with pytest.raises(UserError, match="was not signed by --tls-ca"):
                await asyncio.to_thread(check_first_answer, [lost, (HOST, port), lost], wrong)
        await asyncio.to_thread(check_first_answer, [lost, lost], wrong)

    run(main())


@contextlib.contextmanager
def resetting(authority: Authority, protocol: str) -> Iterator[int]:
    """A server that ends each connection after the handshake, without data or FIN."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.lighthouse)
    context.set_alpn_protocols([protocol])
    with socket.create_server((HOST, 0)) as listener:

        def reset_once() -> None:
            raw, _ = listener.accept()
            with context.wrap_socket(raw, server_side=True) as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        thread = threading.Thread(target=reset_once)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(60.0)
        assert not thread.is_alive()


def test_who_resets_the_connection_after_the_handshake_wants_a_certificate(ours: Authority) -> None:
    """With TLS 1.3 it looks at ours then; Python 3.13 tells a reset where others tell an end."""
    wanted = pytest.raises(UserError, match="wants to see a certificate")
    with resetting(ours, "http/1.1") as port, wanted:
        fetch_status(f"{HOST}:{port}", "x", tls=TlsFiles(ca=ours.ca))
    with resetting(ours, "h2") as port, wanted:
        check_handshake(HOST, port, TlsFiles(ca=ours.ca))


def test_the_status_is_asked_with_certificates_too(
    settings: ServiceSettings, ours: Authority, other: Authority
) -> None:
    async def main() -> None:
        async def ask(port: int, tls: TlsFiles) -> dict[str, Any]:
            address = f"{HOST}:{port}"
            return await asyncio.to_thread(fetch_status, address, settings.token, tls=tls)  # type: ignore[arg-type]

        async with serving_http(settings) as port:
            assert await ask(port, TlsFiles(*ours.agent, ours.ca)) == {"lighthouse": {}}
            for wrong, word in (
                (TlsFiles(*ours.agent, other.ca), "was not signed by"),
                (TlsFiles(*other.agent, ours.ca), "does not accept --tls-cert"),
                (TlsFiles(ca=ours.ca), "wants to see a certificate"),
            ):
                with pytest.raises(UserError, match=word):
                    await ask(port, wrong)
            with pytest.raises(LighthouseUnreachable, match="--tls-ca PEM"):
                await ask(port, PLAINTEXT)
        async with serving(settings) as port:
            with pytest.raises(UserError, match="is a lighthouse's port for agents"):
                await ask(port, TlsFiles(*ours.agent, ours.ca))
        async with serving_http(replace(settings, tls=PLAINTEXT)) as port:
            with pytest.raises(UserError, match="does not speak TLS"):
                await ask(port, TlsFiles(ca=ours.ca))

    run(main())
