"""What is left of streams that a lighthouse refuses or ends: nothing, before garbage is looked for.

Found by fuzzing: an aborted call kept its session, its codec and all that was read in a cycle, and
a lighthouse looks for those seldom.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from ftrun.core import messages as m
from ftrun.core.lighthouse.events import JournalState, LighthouseSettings
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.lighthouse.journal import JournalFile
from ftrun.lighthouse.server import MembershipServer
from ftrun.lighthouse.settings import ServiceSettings
from ftrun.lighthouse.shell import Shell
from ftrun.protocol.auth import bearer, new_token
from ftrun.protocol.codec import encode
from ftrun.protocol.quorums import QuorumMemory
from ftrun.protocol.rpc import ATTACH
from ftrun.protocol.serving import Session
from ftrun.protocol.streams import StreamCodec, take_batch

SPEC = m.JobSpec("job", 2, 1, 1, 5.0, 60.0, 120.0)
HELLO = m.Hello("node", SPEC, 8, "h", "s")
CALLS = 5
KEPT = (Session, StreamCodec, QuorumMemory)


def batch(*messages: Any) -> bytes:
    return take_batch(deque(encode(message) for message in messages))


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def count() -> int:
    return sum(type(found) in KEPT for found in gc.get_objects())


async def refusal(port: int, token: str, sent: list[bytes]) -> grpc.StatusCode:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        opened: Any = channel
        call = opened.stream_stream(ATTACH)(metadata=(("authorization", bearer(token)),))
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for data in sent:
                await call.write(data)
            await call.done_writing()
            while await asyncio.wait_for(call.read(), 20.0) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                pass
        code: grpc.StatusCode = await call.code()
        return code


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ([b"\xff\xff"], grpc.StatusCode.INVALID_ARGUMENT),
        ([batch(m.Heartbeat())], grpc.StatusCode.INVALID_ARGUMENT),
        ([], grpc.StatusCode.INVALID_ARGUMENT),
        ([batch(HELLO), b"\xff\xff"], grpc.StatusCode.ABORTED),
        ([batch(HELLO, m.Hello("other", SPEC, 8, "h", "s"))], grpc.StatusCode.ABORTED),
        ([batch(HELLO, m.Heartbeat())], grpc.StatusCode.OK),
    ],
    ids=["noise", "no Hello", "nothing", "noise later", "two Hellos", "right"],
)
def test_nothing_is_left_of_a_stream_that_has_ended(
    tmp_path: Path, sent: list[bytes], code: grpc.StatusCode
) -> None:
    async def main() -> None:
        settings = ServiceSettings(tmp_path, new_token(), bind="127.0.0.1:0")
        shell = Shell(
            Lighthouse(LighthouseSettings(), JournalState(), 0.0), JournalFile(tmp_path / "journal")
        )
        server = MembershipServer(settings)
        _, port = server.bind()
        await server.start(shell)
        with no_collector():
            before = count()
            for _ in range(CALLS):
                assert await refusal(port, settings.token, sent) is code
            shell.stop()
            await server.stop()
            assert count() == before

    asyncio.run(asyncio.wait_for(main(), 60.0))


def test_nothing_is_left_of_a_call_without_the_token(tmp_path: Path) -> None:
    async def main() -> None:
        server = MembershipServer(ServiceSettings(tmp_path, new_token(), bind="127.0.0.1:0"))
        core = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
        _, port = server.bind()
        await server.start(Shell(core, JournalFile(tmp_path / "journal")))
        with no_collector():
            for _ in range(CALLS):
                code = await refusal(port, new_token(), [batch(HELLO)])
                assert code is grpc.StatusCode.UNAUTHENTICATED
            await server.stop()
            assert not [f for f in gc.get_objects() if type(f) is grpc.aio.AbortError]

    asyncio.run(asyncio.wait_for(main(), 60.0))
