"""The one port of a team: two servers behind it, told apart by a connection's first byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from ftrun.agent.team.port import CHUNK_BYTES, TeamPort
from tests.jobs import free_port

HERE = "127.0.0.1"
WAIT_S = 60.0


async def echoing(name: bytes) -> tuple[asyncio.Server, tuple[str, int]]:
    """A server that answers with its name and all that it has got, at the end of that."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(name + await reader.read())
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, HERE, 0)
    return server, (HERE, server.sockets[0].getsockname()[1])


async def answer_to(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(HERE, port)
    writer.write(data)
    writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), WAIT_S)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def team_port() -> AsyncIterator[tuple[TeamPort, int]]:
    door, store = await echoing(b"door "), await echoing(b"store ")
    port, number = TeamPort(), free_port()
    port.door = door[1]
    await port.start([HERE], number)
    try:
        yield port, number
        port.store = store[1]
        assert await answer_to(number, b"\0rest") == b"store \0rest"
    finally:
        await port.close()
        door[0].close()
        store[0].close()


def test_hands_reach_the_door_and_workers_the_store_of_the_present_start() -> None:
    async def serve() -> None:
        async with team_port() as (_, number):
            large = b"P" * (3 * CHUNK_BYTES)
            assert await answer_to(number, large) == b"door " + large
            assert await answer_to(number, b"\x16hello") == b"door \x16hello"
            assert await answer_to(number, b"\0early") == b""

    asyncio.run(serve())


@pytest.mark.parametrize("first", [b"P", b""])
def test_a_connection_that_is_open_ends_with_the_port(first: bytes) -> None:
    async def serve() -> None:
        async with team_port() as (_, number):
            reader, writer = await asyncio.open_connection(HERE, number)
            writer.write(first)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()

    asyncio.run(serve())
