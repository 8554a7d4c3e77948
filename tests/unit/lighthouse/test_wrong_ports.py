"""Clients at a lighthouse's other port, torchft's or our own, are told where they are, at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from ftrun.base.errors import UserError
from ftrun.compat.torchft_wire import torchft_pb2 as wire
from ftrun.lighthouse.web import _FirstBytes
from ftrun.protocol.auth import new_token
from ftrun.protocol.handshake import not_for_agents
from ftrun.protocol.http2_refusal import PREFACE
from ftrun.protocol.rpc import Disconnected, LighthouseConnection, Refusal
from ftrun.tools.status.client import fetch_status
from tests.unit.lighthouse.lighthouse_process import LighthouseProcess

HEARTBEAT = "/torchft.LighthouseService/Heartbeat"
TIMEOUT_S = 60.0


def heartbeat(address: str, path: str = HEARTBEAT) -> grpc.RpcError:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            path,
            wire.LighthouseHeartbeatRequest.SerializeToString,
            wire.LighthouseHeartbeatResponse.FromString,
        )
        with pytest.raises(grpc.RpcError) as caught:
            call(wire.LighthouseHeartbeatRequest(replica_id="a"), timeout=TIMEOUT_S)
        return caught.value


def test_both_ports_say_what_they_are(tmp_path: Path) -> None:
    with LighthouseProcess(tmp_path, new_token()) as lighthouse:
        for address, words in ((lighthouse.grpc, "own agents"), (lighthouse.http, "HTTP port")):
            error = heartbeat(address)
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
            assert words in error.details() and "--torchft-bind HOST:PORT" in error.details()  # type: ignore[operator]
        # Other strangers learn nothing.
        error = heartbeat(lighthouse.grpc, "/ftrun.Membership/Attach")
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert lighthouse.status()["torchft"] is None


def test_our_own_commands_and_agents_are_told_too(tmp_path: Path) -> None:
    async def first_event(address: str, token: str) -> object:
        events: asyncio.Queue[object] = asyncio.Queue()
        connection = LighthouseConnection([address], token, events.put_nowait)
        task = asyncio.ensure_future(connection.run())
        event = await asyncio.wait_for(events.get(), TIMEOUT_S)
        connection.close()
        await task
        return event

    with LighthouseProcess(tmp_path, new_token()) as lighthouse:
        with pytest.raises(UserError, match="is a lighthouse's port for agents"):
            fetch_status(lighthouse.grpc, lighthouse.token, timeout_s=TIMEOUT_S)
        event = asyncio.run(first_event(lighthouse.http, lighthouse.token))
        assert isinstance(event, Disconnected)
        assert event.refused is Refusal.PORT, event
        assert event.words in not_for_agents(lighthouse.http, event.words)


class Connection(asyncio.Transport):
    """One whose end would be seen: all that it can do is to carry the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data


def test_the_client_ends_the_connection_when_it_has_the_answer() -> None:
    """gRPC reports the end of a connection in place of an answer that comes with it."""
    connection, first_bytes = Connection(), _FirstBytes(asyncio.Protocol())
    first_bytes.connection_made(connection)
    headers = b"\0\0\0\1\5\0\0\0\1"  # of stream 1, and empty
    first_bytes.data_received(PREFACE + headers)
    answer = connection.written
    assert b"grpc-status" in answer and b"HTTP port" in answer
    first_bytes.data_received(headers)
    assert connection.written == answer


@pytest.mark.slow
def test_a_client_that_says_nothing_more_is_closed(tmp_path: Path) -> None:
    """The preface alone holds a connection no longer than any other request."""

    async def main() -> None:
        with LighthouseProcess(tmp_path, new_token()) as lighthouse:
            host, port = lighthouse.http.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"PRI * HTTP/2.0\r\n")
            await writer.drain()
            writer.write(b"\r\nSM\r\n\r\n")
            assert await reader.readexactly(9) == b"\0\0\0\4\0\0\0\0\0"
            assert await asyncio.wait_for(reader.read(), 2 * TIMEOUT_S) == b""
            writer.close()
            await writer.wait_closed()

    asyncio.run(asyncio.wait_for(main(), 5 * TIMEOUT_S))
