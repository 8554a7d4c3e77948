"""The agents' stream, against a real gRPC server made of the lighthouse's pieces."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest

from ftrun.base.errors import ProtocolError
from ftrun.core.messages import Goodbye, Heartbeat, HeartbeatAck, Notice
from ftrun.protocol import ftrun_pb2, rpc
from ftrun.protocol.auth import bearer, new_token
from ftrun.protocol.codec import decode_batch, encode
from ftrun.protocol.rpc import (
    Connected,
    Disconnected,
    LighthouseConnection,
    TokenInterceptor,
    membership_service,
    server_options,
)
from ftrun.protocol.streams import take_batch

TOKEN = new_token()
T = TypeVar("T")
Attach = Callable[[AsyncIterator[bytes], Any], Awaitable[None]]


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, 30.0))


def batch(*messages: object) -> bytes:
    """The messages as one gRPC message."""
    return take_batch(deque(encode(message) for message in messages))


async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
    """Answer a Heartbeat with an ack and end at a Goodbye."""
    await context.send_initial_metadata(rpc.ACCEPTED)
    async for data in requests:
        for message in decode_batch(data):
            if isinstance(message, Goodbye):
                return
            await context.write(batch(HeartbeatAck()))


@contextlib.asynccontextmanager
async def serving(attach: Attach = echo, port: int = 0) -> AsyncIterator[int]:
    server = grpc.aio.server(interceptors=[TokenInterceptor(TOKEN)], options=server_options())
    server.add_generic_rpc_handlers((membership_service(attach),))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)


class Agent:
    """Collects a connection's events; waits for one kind of event."""

    def __init__(self, *ports: int, token: str = TOKEN) -> None:
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        addresses = [f"127.0.0.1:{port}" for port in ports]
        self.connection = LighthouseConnection(addresses, token, self.events.put_nowait)
        self.task = asyncio.ensure_future(self.connection.run())

    async def next(self, kind: type[T]) -> T:
        while True:
            event = await asyncio.wait_for(self.events.get(), 10.0)
            if isinstance(event, kind):
                return event

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.connection.close()
        await asyncio.wait_for(self.task, 60.0)


def test_messages_go_both_ways() -> None:
    async def main() -> None:
        async with serving() as port, Agent(port) as agent:
            assert not agent.connection.send(Heartbeat())
            assert (await agent.next(Connected)).address == f"127.0.0.1:{port}"
            for _ in range(3):
                assert agent.connection.send(Heartbeat())
                assert await agent.next(HeartbeatAck) == HeartbeatAck()
            with pytest.raises(ProtocolError):
                agent.connection.send(object())

    run(main())


def test_what_is_queued_at_close_still_arrives() -> None:
    got: list[Any] = []

    async def keep(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata(rpc.ACCEPTED)
        async for data in requests:
            got.extend(decode_batch(data))

    async def main() -> None:
        async with serving(keep) as port, Agent(port) as agent:
            await agent.next(Connected)
            for _ in range(100):
                agent.connection.send(Heartbeat())
            agent.connection.send(Goodbye())

    run(main())
    assert got == [Heartbeat()] * 100 + [Goodbye()]


def test_a_lost_lighthouse_is_found_again_at_its_port_or_elsewhere() -> None:
    async def main() -> None:
        async with serving() as port:
            agent = Agent(port)
            await agent.next(Connected)
        gone = await agent.next(Disconnected)
        assert not gone.refused
        assert not agent.connection.send(Heartbeat())
        while (await agent.next(Disconnected)).failures < 3:
            pass
        async with serving(port=port):
            await agent.next(Connected)
        await agent.next(Disconnected)
        async with serving() as other:
            agent.connection.move([f"127.0.0.1:{other}"])
            assert (await agent.next(Connected)).address.endswith(str(other))
            await agent.__aexit__()

    run(main())


def test_of_several_addresses_the_one_that_answers_counts() -> None:
    async def main() -> None:
        async with serving() as dead:
            pass
        async with serving() as alive, Agent(dead, alive) as agent:
            assert (await agent.next(Connected)).address.endswith(str(alive))

    run(main())


def test_a_stream_moves_to_a_lighthouse_that_leads_from_now_on() -> None:
    """The former one may be stopped: its stream still seems to live."""
    leads = asyncio.Event()

    async def stands_by(requests: AsyncIterator[bytes], context: Any) -> None:
        await leads.wait()
        await echo(requests, context)

    async def main() -> None:
        async with serving() as first, serving(stands_by) as second:
            agent = Agent(second, first)
            assert (await agent.next(Connected)).address.endswith(str(first))
            assert agent.connection.send(Heartbeat())
            await agent.next(HeartbeatAck)
            leads.set()
            gone = await agent.next(Disconnected)
            assert f"127.0.0.1:{second} leads now" in gone.reason
            assert (await agent.next(Connected)).address.endswith(str(second))
            assert agent.connection.send(Heartbeat())
            await agent.next(HeartbeatAck)
            leads.clear()
            agent.connection.drop("its epoch is old")
            assert "its epoch is old" in (await agent.next(Disconnected)).reason
            await agent.__aexit__()

    run(main())


def test_an_agent_that_waits_for_lighthouses_that_stand_by_ends_when_it_is_to() -> None:
    async def stands_by(requests: AsyncIterator[bytes], context: Any) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with serving(stands_by) as first, serving(stands_by) as second:
            async with Agent(first, second) as agent:
                agent.connection.drop("nothing is open")
                await asyncio.sleep(0)
            assert agent.events.empty()

    run(main())


@pytest.mark.parametrize(
    "token",
    ["", TOKEN[:-1], TOKEN + "0", new_token()],
    ids=["none", "truncated", "longer", "another job's"],
)
def test_a_wrong_token_is_refused_and_said_so(token: str) -> None:
    async def main() -> None:
        async with serving() as port, Agent(port, token=token) as agent:
            told = await agent.next(Disconnected)
            assert told.refused
            assert "token" in told.reason
            assert token == "" or token not in told.reason

    run(main())


def test_who_is_refused_was_never_connected_and_says_nothing() -> None:
    """A Hello on a refused stream would hide its status; the agent would think it accepted."""

    async def main() -> None:
        async with serving() as port, Agent(port, token=new_token()) as agent:
            for _ in range(5):
                told = await agent.next(object)
                assert isinstance(told, Disconnected) and told.refused, told
            assert agent.connection.traffic.messages == 0

    run(main())


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("words", [(), (("ftrun-accepts", "2"),)])
def test_who_accepts_as_no_lighthouse_does_is_none(words: Any, stays: bool) -> None:
    async def other(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata(words)
        if stays:
            await asyncio.Event().wait()

    async def main() -> None:
        async with serving(other) as port, Agent(port) as agent:
            told = await agent.next(object)
            assert isinstance(told, Disconnected) and not told.refused, told
            assert "no lighthouse of ftrun" in told.reason

    run(main())


def test_every_method_refuses_every_wrong_token() -> None:
    """X1: the methods come from the service's descriptor; a new one cannot be forgotten."""
    names = [
        f"/{service.full_name}/{method.name}"
        for service in ftrun_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    assert names
    wrong = [None, "", TOKEN, "Bearer ", bearer(TOKEN[:-1]), bearer(new_token())]

    async def code_of(port: int, name: str, header: str | None) -> grpc.StatusCode:
        metadata = () if header is None else (("authorization", header),)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            opened: Any = channel
            call = opened.stream_stream(name)(metadata=metadata)
            try:
                await asyncio.wait_for(call.read(), 60.0)
            except grpc.aio.AioRpcError as error:
                return error.code()
            return grpc.StatusCode.OK

    async def main() -> None:
        async with serving() as port:
            for name in [*names, "/ftrun.Membership/Unknown"]:
                for header in wrong:
                    code = await code_of(port, name, header)
                    assert code is grpc.StatusCode.UNAUTHENTICATED, (name, header)
            unknown = await code_of(port, "/ftrun.Membership/Unknown", bearer(TOKEN))
            assert unknown is grpc.StatusCode.UNIMPLEMENTED

    run(main())


def test_a_lighthouse_that_does_not_drain_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "OUTBOX_MAX", 50)

    async def deaf(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata(rpc.ACCEPTED)
        await asyncio.Event().wait()

    async def main() -> None:
        async with serving(deaf) as port, Agent(port) as agent:
            await agent.next(Connected)
            big = Notice("k", (), "x" * 60_000)
            sent = 0
            while agent.connection.send(big):
                sent += 1
                await asyncio.sleep(0)
            assert sent >= 50
            assert "drain" in (await agent.next(Disconnected)).reason

    run(main())


def test_a_lighthouse_that_speaks_otherwise_is_left() -> None:
    async def noisy(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata(rpc.ACCEPTED)
        await context.write(b"noise")
        await asyncio.Event().wait()

    async def main() -> None:
        async with serving(noisy) as port, Agent(port) as agent:
            await agent.next(Connected)
            assert "protocol" in (await agent.next(Disconnected)).reason

    run(main())


def test_a_lighthouse_that_accepts_and_cuts_is_not_hammered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpc, "BACKOFF_LAST_S", 60.0)  # no try lasts that long

    async def cutting(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata(rpc.ACCEPTED)

    async def main() -> None:
        async with serving(cutting) as port, Agent(port) as agent:
            for failures in (1, 2, 3):
                assert (await agent.next(Disconnected)).failures == failures

    run(main())


def test_close_ends_a_connection_that_never_stood(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lighthouse that accepts the connection and sends nothing does not block the agent."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            port = mute.getsockname()[1]
            async with Agent(port):
                await asyncio.sleep(0)
            monkeypatch.setattr(rpc, "CONNECT_TIMEOUT_S", 0.1)
            async with Agent(port) as agent:
                assert "no answer" in (await agent.next(Disconnected)).reason

    run(main())


def test_a_port_is_taken_once() -> None:
    """gRPC shares ports unless told not to: two lighthouses would share their agents."""

    async def main() -> None:
        async with serving() as port:
            with pytest.raises(RuntimeError):
                async with serving(port=port):
                    pass

    run(main())


def test_a_connection_needs_an_address() -> None:
    with pytest.raises(ValueError, match="address"):
        LighthouseConnection([], TOKEN, print)
