"""torchft's LighthouseService on one port: calls become events of the rooms, answers end calls.

Not here: any decision (core/torchft_quorum/), threads (compat/background.py), the journal's file
(service.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio

from ftrun.base import clock
from ftrun.base.errors import ProtocolError
from ftrun.base.timer import DeadlineTimer
from ftrun.base.words import first_of
from ftrun.compat.torchft_wire import torchft_pb2 as wire
from ftrun.compat.torchft_wire.records import (
    checked_name,
    member_of,
    parsed,
    quorum_message,
    room_of,
)
from ftrun.core.torchft_quorum import records as r
from ftrun.core.torchft_quorum.machine import TorchftRooms
from ftrun.protocol.grpc_port import GrpcPort
from ftrun.protocol.rpc import end_call

SERVICE = wire.DESCRIPTOR.services_by_name["LighthouseService"].full_name
CALL_S_MAX = 86_400.0
"""A call without a deadline ends after this time."""
ANSWER_S = 0.01
"""A call is answered this long before its deadline."""
EXPIRED = "Timeout expired"
"""The text of torchft's servers, with CANCELLED; scripts and tests look for it."""
CALLS_MAX = 16_384
TIMER_DELAY_MIN_S = 0.001

SERVER_OPTIONS: Sequence[tuple[str, Any]] = [
    # As with torchft's own servers a longer request is refused. Answers grow with all ranks'
    # handles.
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_concurrent_streams", 256),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A rank calls its manager once a step, and a step may take minutes.
    ("grpc.max_connection_idle_ms", 3_600_000),
    # torchft's clients ping every 60 s, even without a call, for which gRPC would disconnect them.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.so_reuseport", 0),
]

NAMES_LOGGED_MAX = 16
_EMPTY = b""

log = logging.getLogger(__name__)


class QuorumServer:
    """Serves the rooms in one event loop. Each port has a room for clients that name none.

    Args:
        rooms: the core.
        save: writes the record to the disk, before the answers that need it are sent.

    ``failed`` is set to the error after which no call is answered any more.
    """

    def __init__(
        self, rooms: TorchftRooms, save: Callable[[r.RoomsRecord], None] | None = None
    ) -> None:
        self.rooms = rooms
        self._save = save
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._last: tuple[r.TorchftQuorum | None, bytes] = (None, _EMPTY)
        self._saved = rooms.record()
        self._ports: list[GrpcPort] = []
        self._timer = DeadlineTimer(self._on_time, TIMER_DELAY_MIN_S)
        self._calls = 0
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add_port(self, room: str = r.DEFAULT_ROOM) -> GrpcPort:
        """A port that the caller binds. Its clients are in ``room`` unless they name another
        one."""
        port = GrpcPort(partial(self._make, room))
        self._ports.append(port)
        return port

    async def start(self) -> None:
        self._on_time()
        for port in self._ports:
            await port.start()

    async def stop(self) -> None:
        """End all calls and release the ports."""
        self._timer.close()
        for port in self._ports:
            await port.stop()

    def _make(self, room: str) -> grpc.aio.Server:
        server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        server.add_generic_rpc_handlers((self._service(room),))
        return server

    def _service(self, room: str) -> Any:
        quorum: Any = grpc.unary_unary_rpc_method_handler(partial(self._quorum, room))
        heartbeat: Any = grpc.unary_unary_rpc_method_handler(partial(self._heartbeat, room))
        handlers = {"Quorum": quorum, "Heartbeat": heartbeat}
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _quorum(self, default_room: str, data: bytes, context: Any) -> bytes:
        try:
            request = parsed(wire.LighthouseQuorumRequest, data)
            if not request.HasField("requester"):
                raise ProtocolError("missing requester")
            member = member_of(request.requester)
            room = room_of(context.invocation_metadata(), default_room)
        except ProtocolError as error:
            end_call(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return _EMPTY
        self._calls += 1
        call = self._calls
        self._waiting[call] = asyncio.get_running_loop().create_future()
        self._feed(r.Joined(call, room, member))
        try:
            return await asyncio.wait_for(self._waiting[call], patience_s(context))
        except asyncio.TimeoutError:
            end_call(context, grpc.StatusCode.CANCELLED, EXPIRED)
            return _EMPTY
        except _RefusedError as error:
            end_call(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            return _EMPTY
        finally:
            del self._waiting[call]
            self._feed(r.CallEnded(call))

    async def _heartbeat(self, default_room: str, data: bytes, context: Any) -> bytes:
        try:
            request = parsed(wire.LighthouseHeartbeatRequest, data)
            room = room_of(context.invocation_metadata(), default_room)
            name = checked_name("replica_id", request.replica_id)
        except ProtocolError as error:
            end_call(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        else:
            for refused in self._feed(r.HeartbeatReceived(room, name)):
                end_call(context, grpc.StatusCode.RESOURCE_EXHAUSTED, refused.reason)
        return _EMPTY  # the bytes of a response without fields

    def _on_time(self) -> None:
        self._feed(r.TimerFired())

    def _feed(self, event: r.QuorumEvent) -> list[r.Refuse]:
        """Pass the event to the core and carry out its instructions. Returns the refusals of
        heartbeats."""
        if self.failed.done():
            return []
        try:
            found = self.rooms.handle(event, clock.now())
            for instruction in found:
                self._carry_out(instruction)
            self._timer.set(self.rooms.next_deadline())
        except Exception as error:  # noqa: BLE001 - the shell's edge: the service ends with it.
            self.failed.set_exception(error)
            return []
        return [x for x in found if isinstance(x, r.Refuse) and x.call is None]

    def _carry_out(self, instruction: r.QuorumInstruction) -> None:
        match instruction:
            case r.SaveRooms(record):
                if self._save is not None:
                    self._save(record)
                self._log_changes(record)
            case r.Answer(call, quorum):
                if not self._waiting[call].done():
                    self._waiting[call].set_result(self._response(quorum))
            case r.Refuse(call, reason):
                if call is not None:
                    self._waiting[call].set_exception(_RefusedError(reason))

    def _response(self, quorum: r.TorchftQuorum) -> bytes:
        """The answer to all members of a quorum: encoded once, with one date."""
        if self._last[0] is not quorum:
            message = quorum_message(quorum, clock.wall())
            response = wire.LighthouseQuorumResponse(quorum=message)
            self._last = (quorum, response.SerializeToString())
        return self._last[1]

    def _log_changes(self, record: r.RoomsRecord) -> None:
        for name, room in record.rooms.items():
            if self._saved.rooms.get(name) != room:
                members = first_of(room.replica_ids, NAMES_LOGGED_MAX)
                log.info("torchft, room %s: quorum %d: %s", name, room.quorum_id, members)
        self._saved = record


def patience_s(context: Any) -> float:
    """How long a call may wait, so that it is answered before gRPC itself ends it."""
    remaining_s: float | None = context.time_remaining()
    if remaining_s is None:
        return CALL_S_MAX
    return max(0.0, min(CALL_S_MAX, remaining_s - min(ANSWER_S, remaining_s / 4)))


class _RefusedError(Exception):
    """The core refuses a call."""
