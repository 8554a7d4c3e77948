"""X3 against a real lighthouse: excesses are refused, and no other client notices.

Ids, counts and durations: tests/unit/protocol/test_codec.py. HTTP heads, bodies and connections:
tests/unit/lighthouse/test_web.py. Frames: test_frames.py. States: tests/unit/checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ftrun.lighthouse.web import BODY_BYTES_MAX
from ftrun.protocol.auth import bearer, new_token
from ftrun.protocol.limits import COUNT_MAX, MESSAGE_BYTES_MAX
from ftrun.protocol.rpc import ATTACH
from ftrun.protocol.streams import varint
from tests.unit.lighthouse.lighthouse_process import LighthouseProcess


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60.0))


async def refusal(
    lighthouse: LighthouseProcess, data: bytes, *more: tuple[str, str]
) -> tuple[grpc.StatusCode, str]:
    """The end of a stream with this one message."""
    metadata = (("authorization", bearer(lighthouse.token)), *more)
    async with grpc.aio.insecure_channel(lighthouse.grpc) as channel:
        opened: Any = channel
        call = opened.stream_stream(ATTACH)(metadata=metadata)
        try:
            await call.write(data)
            await call.done_writing()
            while await asyncio.wait_for(call.read(), 20.0) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        return await call.code(), await call.details()


def test_messages_heads_and_counts_over_their_limits_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        with LighthouseProcess(tmp_path, new_token()) as lighthouse:
            code, _ = await refusal(lighthouse, b"\0" * (MESSAGE_BYTES_MAX + (1 << 20)))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            code, _ = await refusal(lighthouse, b"", ("x-more", "y" * 64_000))
            assert code is not grpc.StatusCode.OK
            many = (b"\x0a" + varint(0)) * (COUNT_MAX + 1)
            code, why = await refusal(lighthouse, many)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "65536 are allowed" in why or "at most" in why
            assert (await asyncio.to_thread(lighthouse.status))["lighthouse"]

    run(main())


def test_a_request_body_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    async def main() -> None:
        with LighthouseProcess(tmp_path, new_token()) as lighthouse:
            host, port = lighthouse.http.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            length = 1 << 40
            writer.write(
                f"GET /status HTTP/1.1\r\nHost: {host}\r\nAuthorization: "
                f"{bearer(lighthouse.token)}\r\nContent-Length: {length}\r\n\r\n".encode()
            )
            writer.write(b"x" * (4 * BODY_BYTES_MAX))
            status = await asyncio.wait_for(reader.readline(), 20.0)
            # It was answered without waiting for the rest, and the rest is not taken.
            assert status.split()[:2] in ([b"HTTP/1.1", b"200"], [b"HTTP/1.1", b"413"])
            try:
                while await asyncio.wait_for(reader.read(1 << 16), 20.0):
                    pass
            except ConnectionError:
                pass
            writer.close()
            assert (await asyncio.to_thread(lighthouse.status))["lighthouse"]

    run(main())
