"""Calls that gRPC itself cannot read: they end no stream, and the port is served again.

Found by fuzzing: grpc.aio stops accepting at a path that is no UTF-8, without any token.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from ftrun.core import messages as m
from ftrun.protocol.auth import new_token
from ftrun.protocol.rpc import Disconnected
from tests.fuzz.lighthouses import record
from tests.unit.lighthouse.lighthouse_process import LighthouseProcess
from tests.unit.lighthouse.scripted_agent import ScriptedAgent

NEXT = "the next one serves"
SPEC = m.JobSpec("job", 2, 1, 1, 5.0, 10.0, 60.0)


def call_with_a_bad_path(address: str, stream: bytes) -> socket.socket:
    host, port = address.split(":")
    sock = socket.create_connection((host, int(port)), 60.0)
    sock.sendall(stream.replace(b"/ftrun.Membership/Attach", b"/ftrun.Membership/At\xffach"))
    return sock


def test_a_path_that_is_no_text_disturbs_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        with LighthouseProcess(tmp_path, new_token()) as lighthouse:
            stream = await asyncio.to_thread(record, lighthouse.grpc, new_token(), "stranger")
            assert b"/ftrun.Membership/Attach" in stream
            agent = ScriptedAgent("node-a", SPEC, [lighthouse.grpc], lighthouse.token)
            await agent.until(lambda: agent.trains(members=2))
            for round_ in range(3):
                with await asyncio.to_thread(call_with_a_bad_path, lighthouse.grpc, stream):
                    heard = asyncio.to_thread(lighthouse.wait_for, NEXT, round_ + 1)
                    assert await heard
                other = ScriptedAgent(f"b{round_}", SPEC, [lighthouse.grpc], lighthouse.token)
                await other.until(lambda other=other: m.Welcome in map(type, other.received))  # type: ignore[misc]
                await other.close()
            assert Disconnected not in map(type, agent.received)
            assert agent.trains(members=2)
            await agent.close()
            lighthouse.end()
            assert lighthouse.log.count(NEXT) == 3

    asyncio.run(asyncio.wait_for(main(), 300.0))
