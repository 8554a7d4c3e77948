"""torchft's LighthouseService over real sockets.

Its rules are in tests/transcripts/torchft; that a port goes on after an unreadable call is shown in
tests/unit/lighthouse/test_unreadable_calls.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
import pytest

from ftrun.compat.torchft_wire import torchft_pb2 as wire
from ftrun.compat.torchft_wire.quorum_server import SERVICE, QuorumServer
from ftrun.compat.torchft_wire.records import NAME_BYTES_MAX, ROOM_ID
from ftrun.core.torchft_quorum.machine import TorchftRooms
from ftrun.core.torchft_quorum.records import QuorumSettings, RoomsRecord

TIMEOUT_S = 60.0


class Client:
    """A client of one port."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self._quorum = self.channel.unary_unary(
            f"/{SERVICE}/Quorum",
            wire.LighthouseQuorumRequest.SerializeToString,
            wire.LighthouseQuorumResponse.FromString,
        )
        self._heartbeat = self.channel.unary_unary(
            f"/{SERVICE}/Heartbeat",
            wire.LighthouseHeartbeatRequest.SerializeToString,
            wire.LighthouseHeartbeatResponse.FromString,
        )

    def quorum(self, name: str, timeout_s: float = TIMEOUT_S, room: str = "", **facts: Any) -> Any:
        member = wire.QuorumMember(replica_id=name, **facts)
        request = wire.LighthouseQuorumRequest(requester=member)
        return self._quorum(request, timeout=timeout_s, metadata=_metadata(room))

    def ask_nothing(self) -> Any:
        return self._quorum(wire.LighthouseQuorumRequest(), timeout=TIMEOUT_S)

    def heartbeat(self, name: str, room: str = "") -> Any:
        request = wire.LighthouseHeartbeatRequest(replica_id=name)
        return self._heartbeat(request, timeout=TIMEOUT_S, metadata=_metadata(room))


def _metadata(room: str) -> tuple[tuple[str, str], ...]:
    return ((ROOM_ID, room),) if room else ()


def served(
    test: Callable[[QuorumServer, list[Client]], Coroutine[Any, Any, None]],
    settings: QuorumSettings,
    save: Callable[[RoomsRecord], None] | None = None,
) -> None:
    """Run the test with a server of two ports, the second one with a room of its own."""

    async def main() -> None:
        server = QuorumServer(TorchftRooms(settings), save)
        ports = [server.add_port().bind("127.0.0.1", 0), server.add_port("b").bind("127.0.0.1", 0)]
        await server.start()
        clients = [Client(port) for port in ports]
        try:
            await test(server, clients)
        finally:
            for client in clients:
                await client.channel.close()  # type: ignore[call-arg]
            await server.stop()

    asyncio.run(asyncio.wait_for(main(), 5 * TIMEOUT_S))


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def test_members_get_one_quorum_with_all_that_they_told() -> None:
    async def test(server: QuorumServer, clients: list[Client]) -> None:
        client = clients[0]
        facts: dict[str, Any] = {
            "address": "http://h:1", "store_address": "h:2", "step": 7, "world_size": 2,
            "data": '{"x": 1}', "commit_failures": 1, "reconfigure_handles": ["p", "q"],
        }  # fmt: skip
        await client.heartbeat("b")
        both = await asyncio.gather(client.quorum("a", **facts), client.quorum("b"))
        quorum = both[0].quorum
        assert quorum == both[1].quorum and quorum.quorum_id == 1
        assert quorum.participants[0] == wire.QuorumMember(replica_id="a", **facts)
        assert [member.replica_id for member in quorum.participants] == ["a", "b"]
        assert quorum.created.seconds > 1_700_000_000

    served(test, QuorumSettings(2, 30.0, 30.0))


def test_rooms_are_apart_by_port_and_by_metadata() -> None:
    async def test(server: QuorumServer, clients: list[Client]) -> None:
        await clients[0].quorum("a")
        await clients[1].quorum("b")
        await clients[0].quorum("c", room="third")
        await clients[1].heartbeat("d", room="third")
        rooms = server.rooms.rooms
        assert {name: room.last for name, room in rooms.items()} == {
            "default": ("a",),
            "b": ("b",),
            "third": ("c",),
        }

    served(test, QuorumSettings(1, 30.0, 30.0))


def test_what_no_client_of_torchft_sends_is_refused_with_words() -> None:
    async def test(server: QuorumServer, clients: list[Client]) -> None:
        bad = grpc.StatusCode.INVALID_ARGUMENT
        assert await refusal(clients[0].ask_nothing()) == (bad, "missing requester")
        code, words = await refusal(clients[0].quorum("x" * (NAME_BYTES_MAX + 1)))
        assert code is bad and "replica_id" in words
        code, words = await refusal(clients[0].heartbeat("a\nb"))
        assert code is bad and "printed" in words
        code, words = await refusal(clients[0].heartbeat("a", room="r" * 600))
        assert code is bad and "room-id" in words
        for method in ("Quorum", "Heartbeat"):
            damaged = clients[0].channel.unary_unary(f"/{SERVICE}/{method}")  # type: ignore[call-arg]
            code, words = await refusal(damaged(b"\xff", timeout=TIMEOUT_S))
            assert code is bad and "no Lighthouse" in words
        kill = clients[0].channel.unary_unary("/torchft.ManagerService/Kill")  # type: ignore[call-arg]
        code, _ = await refusal(kill(b"", timeout=TIMEOUT_S))
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert not server.rooms.rooms

    served(test, QuorumSettings(1, 30.0, 30.0))


def test_a_call_that_gets_no_quorum_ends_as_torchfts_do_and_counts_no_more() -> None:
    async def test(server: QuorumServer, clients: list[Client]) -> None:
        for timeout_s in (0.5, 4.0, 32.0):  # the server ends a call shortly before the client does
            code, words = await refusal(clients[0].quorum("a", timeout_s))
            if code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                break
        assert (code, words) == (grpc.StatusCode.CANCELLED, "Timeout expired")
        assert not server.rooms.rooms["default"].calls
        waiting = asyncio.ensure_future(clients[0].quorum("a"))
        while not server.rooms.rooms["default"].calls:
            await asyncio.sleep(0)
        waiting.cancel()
        while server.rooms.rooms["default"].calls:
            await asyncio.sleep(0)

    served(test, QuorumSettings(2, 30.0, 30.0))


def test_a_full_room_refuses_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftrun.core.torchft_quorum.records.REPLICAS_MAX", 1)

    async def test(server: QuorumServer, clients: list[Client]) -> None:
        await clients[0].heartbeat("a")
        for call in (clients[0].heartbeat("b"), clients[0].quorum("b")):
            code, words = await refusal(call)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and "replicas" in words

    served(test, QuorumSettings(1, 30.0, 30.0))


def test_an_answer_is_sent_only_once_its_record_is_on_the_disk() -> None:
    saved: list[RoomsRecord] = []

    def save(record: RoomsRecord) -> None:
        if len(saved) == 1:
            raise OSError("the disk is full")
        saved.append(record)

    async def test(server: QuorumServer, clients: list[Client]) -> None:
        await clients[0].quorum("a")
        assert saved[0].rooms["default"].quorum_id == 1
        await clients[0].quorum("a")
        assert len(saved) == 1 and not server.failed.done()
        code, _ = await refusal(clients[0].quorum("a", 1.0, commit_failures=1))
        # Its deadline is noticed here or there first.
        assert code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
        assert isinstance(server.failed.exception(), OSError)

    served(test, QuorumSettings(1, 30.0, 30.0), save)
