"""torchft's coordination classes: lighthouse and manager, servers and clients.

They use torchft's gRPC protocol (compat/torchft_wire/), so each works with torchft's own
counterpart. Errors are torchft's: ``TimeoutError`` for a call without an answer in time,
``RuntimeError`` for any other. Not here: the rules of quorums (core/torchft_quorum/), ftrun's own
lighthouse (lighthouse/).
"""

from __future__ import annotations

import json
import math
import socket
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import timedelta

from ftrun.base import clock
from ftrun.base.addresses import join_address, split_address
from ftrun.compat.background import BackgroundLoop
from ftrun.compat.threads.seat import LighthouseHere
from ftrun.compat.threads.seats import offer, withdraw
from ftrun.compat.torchft_wire import torchft_pb2 as wire
from ftrun.compat.torchft_wire.clients import call, method_of, open_channel, seconds
from ftrun.compat.torchft_wire.manager_server import SERVICE as MANAGER
from ftrun.compat.torchft_wire.manager_server import GroupServer
from ftrun.compat.torchft_wire.quorum_server import SERVICE as LIGHTHOUSE
from ftrun.compat.torchft_wire.quorum_server import QuorumServer
from ftrun.compat.torchft_wire.records import ROOM_ID, record_of
from ftrun.core.torchft_quorum.group import ReplicaGroup
from ftrun.core.torchft_quorum.machine import TorchftRooms
from ftrun.core.torchft_quorum.records import QuorumSettings
from ftrun.core.torchft_quorum.results import QuorumResult

__all__ = [
    "LighthouseClient",
    "LighthouseServer",
    "ManagerClient",
    "ManagerServer",
    "Quorum",
    "QuorumMember",
]

JOIN_TIMEOUT_MS = 100
QUORUM_TICK_MS = 100
HEARTBEAT_TIMEOUT_MS = 5000
HEARTBEAT_CALL_TIMEOUT = timedelta(seconds=5)
START_MARGIN_S = 10.0


class _Served:
    """A server in a thread of this process, and its end."""

    _address: str
    _close: Callable[[], object]

    def address(self) -> str:
        """The address for clients: a lighthouse's, or a manager's for its ranks and for peers.

        Returns:
            str: ``http://HOST:PORT``.
        """
        return self._address

    def shutdown(self) -> None:
        """End heartbeats and calls, and release the port. Idempotent."""
        self._close()


class LighthouseServer(_Served):
    """A torchft lighthouse in this process. ``ftrun lighthouse`` serves a permanent one.

    Managers that threads of this process make with its address form a separate job, by ftrun's
    protocol (compat/threads/); ``min_replicas`` and ``join_timeout_ms`` hold there too. It begins
    with quorum 1 and keeps nothing on disk. Its protocol has no token: any process that reaches the
    port can take part. ``quorum_tick_ms`` is how long torchft's lighthouse may take to notice that
    a timeout has passed. This lighthouse notices at once, so any value is accepted.

    Args:
        bind (str): the address to listen on, ``HOST:PORT``; port 0: any.
        min_replicas (int): the smallest quorum.
        join_timeout_ms (int): how long the first replica to join waits for others; 100 if None.
        quorum_tick_ms (int): see above; 100 if None.
        heartbeat_timeout_ms (int): a replica without a heartbeat for this long is dead; 5000 if
            None.
    """

    def __init__(
        self,
        bind: str,
        min_replicas: int,
        join_timeout_ms: int | None = None,
        quorum_tick_ms: int | None = None,
        heartbeat_timeout_ms: int | None = None,
    ) -> None:
        settings = QuorumSettings(
            min_replicas=_whole("min_replicas", min_replicas, 1),
            join_timeout_s=_ms("join_timeout_ms", join_timeout_ms, JOIN_TIMEOUT_MS),
            heartbeat_timeout_s=_ms(
                "heartbeat_timeout_ms", heartbeat_timeout_ms, HEARTBEAT_TIMEOUT_MS
            ),
        )
        _ms("quorum_tick_ms", quorum_tick_ms, QUORUM_TICK_MS)
        host, port = _bind_address(bind)
        self._loop = BackgroundLoop("torchft lighthouse")
        try:
            server, port = self._loop.run(_start_lighthouse(settings, host, port))
        except BaseException:
            self._loop.close()
            raise
        self._address = f"http://{join_address(socket.gethostname(), port)}"
        self._close = weakref.finalize(self, _stop_lighthouse, self._loop, server, port)
        offer(port, LighthouseHere(settings.min_replicas, settings.join_timeout_s))


class LighthouseClient:
    """A client of a lighthouse, torchft's or ftrun's.

    Args:
        addr (str): the lighthouse's address, ``http://HOST:PORT``.
        connect_timeout (timedelta): how long the lighthouse may take to answer at first.
        room (str): the job, if several share the lighthouse. ftrun's lighthouse keeps them apart.
    """

    def __init__(self, addr: str, connect_timeout: timedelta, room: str = "") -> None:
        self.addr = addr
        self.connect_timeout = connect_timeout
        self._metadata = ((ROOM_ID, room),) if room else ()
        channel = open_channel(addr, seconds(connect_timeout))
        weakref.finalize(self, channel.close)
        self._quorum = method_of(channel, LIGHTHOUSE, "Quorum")
        self._heartbeat = method_of(channel, LIGHTHOUSE, "Heartbeat")

    def quorum(
        self,
        replica_id: str,
        timeout: timedelta,
        address: str | None = None,
        store_address: str | None = None,
        step: int | None = None,
        world_size: int | None = None,
        shrink_only: bool | None = None,
        data: dict[Hashable, object] | None = None,
    ) -> Quorum:
        """Join the next quorum and wait for it.

        Args:
            replica_id (str): the name of this replica.
            timeout (timedelta): how long to wait.
            address (str): of this replica's manager.
            store_address (str): of this replica's store.
            step (int): the step that this replica has.
            world_size (int): the number of ranks of this replica.
            shrink_only (bool): leave out replicas that are not in the last quorum.
            data (dict): for the other members; it must be JSON.

        Returns:
            Quorum: the quorum.
        """
        member = wire.QuorumMember(
            replica_id=replica_id,
            address=address or "",
            store_address=store_address or "",
            step=step or 0,
            world_size=world_size or 0,
            shrink_only=bool(shrink_only),
            data="" if data is None else json.dumps(data),
        )
        request = wire.LighthouseQuorumRequest(requester=member)
        found = call(self._quorum, request, seconds(timeout), self._metadata).quorum
        created = Timestamp(found.created.seconds, found.created.nanos)
        return Quorum(found.quorum_id, [_member(x) for x in found.participants], created)

    def heartbeat(self, replica_id: str, timeout: timedelta = HEARTBEAT_CALL_TIMEOUT) -> None:
        """Send one heartbeat.

        Args:
            replica_id (str): the name of this replica.
            timeout (timedelta): how long to wait for the answer.
        """
        request = wire.LighthouseHeartbeatRequest(replica_id=replica_id)
        call(self._heartbeat, request, seconds(timeout), self._metadata)


class ManagerServer(_Served):
    """The manager of one replica group; its rank 0 has one.

    It sends heartbeats to the lighthouse, requests a quorum when all ranks have asked, and counts
    the ranks' votes. Unlike torchft's it reports a failure of the lighthouse to all ranks at once,
    and refuses ``Kill``, which any process that reaches the port could send.

    Args:
        replica_id (str): the name of the group.
        lighthouse_addr (str): the lighthouse's address, ``http://HOST:PORT``.
        hostname (str): the host name for peers to use.
        bind (str): the address to listen on, ``HOST:PORT``; port 0: any.
        store_addr (str): of the group's store.
        world_size (int): the number of ranks of the group.
        heartbeat_interval (timedelta): between two heartbeats.
        connect_timeout (timedelta): how long the lighthouse may take to answer at first.
        quorum_retries (int): how often a failed request for a quorum is retried.
    """

    def __init__(
        self,
        replica_id: str,
        lighthouse_addr: str,
        hostname: str,
        bind: str,
        store_addr: str,
        world_size: int,
        heartbeat_interval: timedelta,
        connect_timeout: timedelta,
        quorum_retries: int,
    ) -> None:
        host, port = _bind_address(bind)
        _whole("world_size", world_size, 1)
        timeout_s = seconds(connect_timeout)

        def make_group(port: int) -> ReplicaGroup:
            self._address = f"http://{join_address(hostname, port)}"
            return ReplicaGroup(replica_id, self._address, store_addr, world_size)

        async def start() -> GroupServer:
            server = GroupServer(
                replica_id,
                lighthouse_addr,
                heartbeat_interval_s=seconds(heartbeat_interval),
                connect_timeout_s=timeout_s,
                quorum_retries=_whole("quorum_retries", quorum_retries, 0),
            )
            try:
                await server.start(host, port, make_group)
            except BaseException:
                await server.stop()
                raise
            return server

        self._address = ""
        self._loop = BackgroundLoop("torchft manager")
        try:
            server = self._loop.run(start(), timeout_s + START_MARGIN_S)
        except BaseException:
            self._loop.close()
            raise
        self._close = weakref.finalize(self, _stop, self._loop, server)


class ManagerClient:
    """A rank's client of its group's manager, torchft's or ftrun's.

    Args:
        addr (str): the manager's address, ``http://HOST:PORT``.
        connect_timeout (timedelta): how long the manager may take to answer at first.
    """

    def __init__(self, addr: str, connect_timeout: timedelta) -> None:
        channel = open_channel(addr, seconds(connect_timeout))
        weakref.finalize(self, channel.close)
        self._call_quorum = method_of(channel, MANAGER, "Quorum")
        self._call_metadata = method_of(channel, MANAGER, "CheckpointMetadata")
        self._call_vote = method_of(channel, MANAGER, "ShouldCommit")

    def _quorum(
        self,
        group_rank: int,
        step: int,
        checkpoint_metadata: str,
        shrink_only: bool,
        init_sync: bool,
        commit_failures: int,
        timeout: timedelta,
        reconfigure_handle: str,
    ) -> QuorumResult:
        """Request the next quorum. Answered when all ranks of the group have asked."""
        request = wire.ManagerQuorumRequest(
            group_rank=group_rank,
            step=step,
            checkpoint_metadata=checkpoint_metadata,
            shrink_only=shrink_only,
            init_sync=init_sync,
            commit_failures=commit_failures,
            reconfigure_handle=reconfigure_handle,
        )
        found = call(self._call_quorum, request, seconds(timeout))
        return record_of(QuorumResult, found, list)

    def _checkpoint_metadata(self, rank: int, timeout: timedelta) -> str:
        """Where that rank of the manager's group offers its checkpoint."""
        request = wire.CheckpointMetadataRequest(rank=rank)
        found: str = call(self._call_metadata, request, seconds(timeout)).checkpoint_metadata
        return found

    def should_commit(
        self, group_rank: int, step: int, should_commit: bool, timeout: timedelta
    ) -> bool:
        """Vote on the step, and wait for the votes of all ranks of the group.

        Args:
            group_rank (int): the rank that votes.
            step (int): the step.
            should_commit (bool): the vote.
            timeout (timedelta): how long to wait for the others.

        Returns:
            bool: whether all have voted for it.
        """
        request = wire.ShouldCommitRequest(
            group_rank=group_rank, step=step, should_commit=should_commit
        )
        found: bool = call(self._call_vote, request, seconds(timeout)).should_commit
        return found


@dataclass
class Timestamp:
    """A date: seconds since 1970 in UTC, and nanoseconds.

    Args:
        seconds (int): the seconds.
        nanos (int): the nanoseconds beyond them.
    """

    seconds: int
    nanos: int


@dataclass
class QuorumMember:
    """One replica of a quorum.

    Args:
        replica_id (str): its name.
        address (str): of its manager.
        store_address (str): of its store.
        step (int): the step that it has.
        world_size (int): its number of ranks.
        shrink_only (bool): whether it asked to shrink the quorum.
        data (dict): its data for the other members, or None.
    """

    replica_id: str
    address: str
    store_address: str
    step: int
    world_size: int
    shrink_only: bool
    data: dict[Hashable, object] | None = None


@dataclass
class Quorum:
    """The answer of a lighthouse.

    Args:
        quorum_id (int): rises when the members change, or when one of them could not commit.
        participants (list[QuorumMember]): the members, by name.
        created (Timestamp): when it was formed.
    """

    quorum_id: int
    participants: list[QuorumMember]
    created: Timestamp


async def _start_lighthouse(
    settings: QuorumSettings, host: str, port: int
) -> tuple[QuorumServer, int]:
    server = QuorumServer(TorchftRooms(settings, now=clock.now()))
    port = server.add_port().bind(host, port)
    await server.start()
    return server, port


def _stop_lighthouse(loop: BackgroundLoop, server: QuorumServer, port: int) -> None:
    withdraw(port)
    _stop(loop, server)


def _stop(loop: BackgroundLoop, server: QuorumServer | GroupServer) -> None:
    loop.end_with(server.stop)


def _member(message: wire.QuorumMember) -> QuorumMember:
    return record_of(QuorumMember, message, data=_data(message.data))


def _data(text: str) -> dict[Hashable, object] | None:
    """The JSON data that a member sent.

    Raises:
        RuntimeError: it is no JSON.
    """
    try:
        found: dict[Hashable, object] | None = json.loads(text) if text else None
    except (ValueError, RecursionError) as error:
        raise RuntimeError(f"a member's data is no JSON: {error}") from None
    return found


def _bind_address(bind: str) -> tuple[str, int]:
    try:
        return split_address(bind)
    except ValueError as error:
        raise RuntimeError(f"bind: {error}") from None


def _whole(name: str, value: int, least: int) -> int:
    if value < least:
        raise ValueError(f"{name} is {value}, and must be {least} or more")
    return value


def _ms(name: str, value: float | None, default: int) -> float:
    """Milliseconds as seconds."""
    found = default if value is None else value
    if not (math.isfinite(found) and found >= 0):
        raise ValueError(f"{name} is {found}, and must be 0 or more")
    return found / 1000
