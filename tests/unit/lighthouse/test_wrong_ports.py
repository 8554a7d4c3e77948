"""Clients at a lighthouse's other port, torchft's or our own, are told where they are, at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from ftrun.base.errors import UserError
from ftrun.compat.torchft_wire import torchft_pb2 as wire
from ftrun.protocol.auth import new_token
from ftrun.protocol.handshake import not_for_agents
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


def test_the_port_for_agents_says_what_it_is(tmp_path: Path) -> None:
    with LighthouseProcess(tmp_path, new_token()) as lighthouse:
        error = heartbeat(lighthouse.grpc)
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        for words in ("own agents", "--torchft-bind HOST:PORT"):
            assert words in error.details()  # type: ignore[operator]
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
