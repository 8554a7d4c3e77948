"""torchft's coordination classes, each with our own counterpart. With torchft's: tests/torchft."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import grpc
import pytest

from ftrun.compat.torchft_wire import torchft_pb2 as wire
from ftrun.core.torchft_quorum.results import QuorumResult
from ftrun.torchft import coordination
from ftrun.torchft.coordination import (
    LighthouseClient,
    LighthouseServer,
    ManagerClient,
    ManagerServer,
)

SOON = timedelta(seconds=60)
BEAT = timedelta(milliseconds=50)


@pytest.fixture
def lighthouse() -> Iterator[LighthouseServer]:
    server = LighthouseServer("[::]:0", 1, join_timeout_ms=60_000)
    yield server
    server.shutdown()


def manager(address: str, name: str = "a", world_size: int = 1, **facts: Any) -> ManagerServer:
    return ManagerServer(
        name, address, "localhost", "[::]:0", f"store-{name}", world_size,
        facts.get("heartbeat_interval", BEAT), facts.get("connect_timeout", SOON),
        facts.get("quorum_retries", 0),
    )  # fmt: skip


def ask(client: ManagerClient, rank: int = 0, timeout: timedelta = SOON) -> QuorumResult:
    return client._quorum(rank, 5, f"meta{rank}", False, True, 0, timeout, f"h{rank}")


def test_a_client_gets_what_it_told(lighthouse: LighthouseServer) -> None:
    client = LighthouseClient(lighthouse.address(), SOON)
    client.heartbeat("a")
    found = client.quorum("a", SOON, "http://h:1", "h:2", 3, 4, True, {"x": [1, None]})
    (member,) = found.participants
    assert (found.quorum_id, member.step, member.world_size) == (1, 3, 4)
    assert (member.address, member.store_address) == ("http://h:1", "h:2")
    assert member.shrink_only and member.data == {"x": [1, None]}
    assert abs(found.created.seconds - time.time()) < 3600
    again = client.quorum("a", timeout=SOON)
    assert again.quorum_id == 1 and again.participants[0].data is None


def test_rooms_are_apart(lighthouse: LighthouseServer) -> None:
    for room in ("x", "y"):
        client = LighthouseClient(lighthouse.address(), SOON, room=room)
        names = [member.replica_id for member in client.quorum(room, SOON).participants]
        assert names == [room]


def test_data_that_is_no_json_is_an_error(lighthouse: LighthouseServer) -> None:
    client = LighthouseClient(lighthouse.address(), SOON)
    with pytest.raises(TypeError):
        client.quorum("a", SOON, data={"x": object()})
    with grpc.insecure_channel(lighthouse.address().removeprefix("http://")) as channel:
        join = channel.unary_unary(
            "/torchft.LighthouseService/Quorum",
            wire.LighthouseQuorumRequest.SerializeToString,
            wire.LighthouseQuorumResponse.FromString,
        )
        stranger = wire.QuorumMember(replica_id="b", data="{" * 5000)
        for known in "ab":  # whoever joins first waits for the other
            client.heartbeat(known)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(
                join, wire.LighthouseQuorumRequest(requester=stranger), timeout=60.0
            )
            with pytest.raises(RuntimeError, match="no JSON"):
                client.quorum("a", SOON)
            other.result(60.0)


def test_all_ranks_get_the_quorum_and_the_vote(lighthouse: LighthouseServer) -> None:
    server = manager(lighthouse.address(), world_size=2)

    def rank(number: int) -> tuple[QuorumResult, bool, bool]:
        client = ManagerClient(server.address(), SOON)
        found = ask(client, number)
        votes = [client.should_commit(number, 5, vote, SOON) for vote in (True, number == 0)]
        return found, votes[0], votes[1]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rank, (0, 1))
    assert first[1:] == second[1:] == (True, False)
    assert first[0].store_address == "store-a" and first[0].replica_ids == ["a"]
    assert (first[0].reconfigure_handles, second[0].reconfigure_handles) == (["h0"], ["h1"])
    assert not first[0].heal and first[0].recover_src_replica_rank is None
    client = ManagerClient(server.address(), SOON)
    assert client._checkpoint_metadata(1, SOON) == "meta1"
    with pytest.raises(RuntimeError, match="rank not found"):
        client._checkpoint_metadata(2, SOON)
    server.shutdown()
    server.shutdown()


def test_a_heartbeat_alone_keeps_a_replica_healthy(lighthouse: LighthouseServer) -> None:
    """A healthy replica that has not joined is waited for, which shows that it beats."""
    server = manager(lighthouse.address(), "beats")
    client = LighthouseClient(lighthouse.address(), SOON)
    for _ in range(200):
        try:
            client.quorum("a", timedelta(milliseconds=300))
        except TimeoutError:
            break
    else:
        raise AssertionError("no heartbeat has come")
    server.shutdown()


def test_a_lighthouse_that_dies_is_an_error_for_all_ranks_at_once() -> None:
    lighthouse = LighthouseServer("[::]:0", 2)
    server = manager(lighthouse.address(), world_size=2)
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(ask, ManagerClient(server.address(), SOON), number) for number in (0, 1)
        ]
        rooms = lighthouse._close.peek()[2][1].rooms  # type: ignore[attr-defined]
        while not any(room.calls for room in rooms.rooms.values()):
            time.sleep(0.01)
        began = time.monotonic()
        lighthouse.shutdown()
        for call in calls:
            with pytest.raises((RuntimeError, TimeoutError)):
                call.result(60.0)
    assert time.monotonic() - began < 50.0, "the ranks waited for their own timeouts"
    server.shutdown()


def test_a_request_is_sent_again_as_often_as_was_wanted() -> None:
    lighthouse = LighthouseServer("127.0.0.1:0", 2)
    port = int(lighthouse.address().rpartition(":")[2])
    address = f"http://127.0.0.1:{port}"
    server = manager(address, quorum_retries=200)
    client = ManagerClient(server.address(), SOON)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(ask, client)
        rooms = lighthouse._close.peek()[2][1].rooms  # type: ignore[attr-defined]
        while not any(room.calls for room in rooms.rooms.values()):
            time.sleep(0.01)
        lighthouse.shutdown()
        again = LighthouseServer(f"127.0.0.1:{port}", 1)
        assert call.result(60.0).replica_ids == ["a"]
    server.shutdown()
    again.shutdown()


def test_nobody_is_killed_by_a_call(lighthouse: LighthouseServer) -> None:
    server = manager(lighthouse.address())
    with grpc.insecure_channel(server.address().removeprefix("http://")) as channel:
        kill = channel.unary_unary(
            "/torchft.ManagerService/Kill",
            wire.KillRequest.SerializeToString,
            wire.KillResponse.FromString,
        )
        with pytest.raises(grpc.RpcError) as caught:
            kill(wire.KillRequest(msg="now"), timeout=60.0)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        quorum = channel.unary_unary("/torchft.ManagerService/Quorum")  # type: ignore[call-arg]
        with pytest.raises(grpc.RpcError) as caught:
            quorum(b"")
        assert caught.value.details() == "missing timeout"
    server.shutdown()


def test_what_cannot_be_is_refused() -> None:
    for wrong in ({"min_replicas": 0}, {"join_timeout_ms": -1}, {"heartbeat_timeout_ms": -1}):
        facts: dict[str, Any] = {"min_replicas": 1, **wrong}
        with pytest.raises(ValueError, match=next(iter(wrong))):
            LighthouseServer("[::]:0", **facts)
    with pytest.raises(RuntimeError, match="host:port"):
        LighthouseServer("nowhere", 1)
    with pytest.raises(RuntimeError, match="http://HOST:PORT"):
        LighthouseClient("nowhere", SOON)
    with pytest.raises(RuntimeError, match="nothing answers"):
        ManagerClient("http://127.0.0.1:1", timedelta(seconds=0.2))
    with pytest.raises(RuntimeError, match="no lighthouse answers"):
        manager("http://127.0.0.1:1", connect_timeout=timedelta(seconds=0.2))
    with pytest.raises(ValueError, match="timeout"):
        LighthouseClient("http://127.0.0.1:1", timedelta(seconds=-1))


def test_nothing_is_left_of_a_server() -> None:
    before = threading.active_count()
    lighthouse = LighthouseServer("[::]:0", 1)
    manager(lighthouse.address()).shutdown()
    lighthouse.shutdown()
    names = [x.name for x in threading.enumerate() if x.name.startswith("torchft")]
    assert not names and threading.active_count() <= before + 2  # gRPC's own pollers


def test_each_class_tells_its_arguments() -> None:
    for name in coordination.__all__:
        assert "Args:" in (inspect.getdoc(getattr(coordination, name)) or ""), name
