"""torchft's ManagerService: the manager of one replica group, for the ranks of the group.

It sends heartbeats to the lighthouse and requests quorums from it. ``Kill`` is refused. Not here:
rounds and results (core/torchft_quorum/group.py), the class that scripts import
(torchft/coordination.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from ftrun.base import clock
from ftrun.base.errors import ProtocolError
from ftrun.compat.torchft_wire import torchft_pb2 as wire
from ftrun.compat.torchft_wire.clients import CHANNEL_OPTIONS, TIMEOUTS, method_of, target_of
from ftrun.compat.torchft_wire.quorum_server import EXPIRED, SERVER_OPTIONS, patience_s
from ftrun.compat.torchft_wire.quorum_server import SERVICE as LIGHTHOUSE
from ftrun.compat.torchft_wire.records import (
    member_message,
    parsed,
    quorum_of,
    record_of,
    result_message,
)
from ftrun.core.torchft_quorum.group import (
    AskLighthouse,
    CallRefused,
    GroupInstruction,
    QuorumAnswer,
    QuorumAsked,
    ReplicaGroup,
    VoteAnswer,
)
from ftrun.protocol.grpc_port import GrpcPort
from ftrun.protocol.rpc import end_call

SERVICE = wire.DESCRIPTOR.services_by_name["ManagerService"].full_name
RETRY_PAUSE_S = 0.1
CALLS_MAX = 4096
NO_KILL = "ftrun ends no process at the word of a caller who has shown no token"

log = logging.getLogger(__name__)


class GroupServer:
    """The server of one group's manager, and its client of the lighthouse.

    Args:
        make_group: makes the core, once the port is known.
        heartbeat_interval_s: between two heartbeats.
        connect_timeout_s: for the connection to the lighthouse; ``start`` waits for the first one.
        quorum_retries: how often a failed request is retried.
    """

    def __init__(
        self,
        replica_id: str,
        lighthouse: str,
        *,
        heartbeat_interval_s: float,
        connect_timeout_s: float,
        quorum_retries: int,
    ) -> None:
        self._replica_id = replica_id
        self._lighthouse = lighthouse
        self._heartbeat_interval_s = heartbeat_interval_s
        self._connect_timeout_s = connect_timeout_s
        self._quorum_retries = quorum_retries
        self._group: ReplicaGroup | None = None
        self._port = GrpcPort(self._make)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._calls = 0
        self._channel: grpc.aio.Channel | None = None
        self._heart: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def start(
        self, host: str, port: int, make_group: Callable[[int], ReplicaGroup]
    ) -> ReplicaGroup:
        """Connect to the lighthouse, bind the port, serve. Returns the core.

        Raises:
            RuntimeError: the lighthouse does not answer, or the port is taken.
        """
        self._channel = grpc.aio.insecure_channel(
            target_of(self._lighthouse), options=CHANNEL_OPTIONS
        )
        try:
            await asyncio.wait_for(self._channel.channel_ready(), self._connect_timeout_s)
        except asyncio.TimeoutError:
            await self._channel.close(None)
            raise RuntimeError(
                f"no lighthouse answers at {self._lighthouse} within the connect timeout of "
                f"{self._connect_timeout_s:g} s. Check TORCHFT_LIGHTHOUSE, and that it runs."
            ) from None
        self._group = make_group(self._port.bind(host, port))
        await self._port.start()
        self._heart = asyncio.ensure_future(self._beat())
        return self._group

    async def stop(self) -> None:
        """End all calls and heartbeats, and release the port."""
        for task in (self._heart, self._asking):
            if task is not None:
                task.cancel()
        await self._port.stop()
        if self._channel is not None:
            await self._channel.close(None)

    def _make(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        methods = {
            "Quorum": self._quorum,
            "CheckpointMetadata": self._metadata,
            "ShouldCommit": self._vote,
            "Kill": self._kill,
        }
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(partial(_answered, method))
            for name, method in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        return server

    # ------------------------------------------------------------ calls of the ranks

    async def _quorum(self, data: bytes, context: Any) -> Message | None:
        request = parsed(wire.ManagerQuorumRequest, data)
        timeout_s = context.time_remaining()
        if timeout_s is None:
            raise ProtocolError("missing timeout")
        asked = record_of(QuorumAsked, request, timeout_s=timeout_s)
        answer = await self._round(context, lambda group, call: group.ask(call, asked))
        return result_message(answer.result) if isinstance(answer, QuorumAnswer) else None

    async def _vote(self, data: bytes, context: Any) -> Message | None:
        request = parsed(wire.ShouldCommitRequest, data)
        rank, vote = request.group_rank, request.should_commit
        answer = await self._round(context, lambda group, call: group.vote(call, rank, vote))
        if not isinstance(answer, VoteAnswer):
            return None
        return wire.ShouldCommitResponse(should_commit=answer.should_commit)

    async def _metadata(self, data: bytes, _context: Any) -> Message | None:
        assert self._group is not None
        found = self._group.metadata(parsed(wire.CheckpointMetadataRequest, data).rank)
        if found is None:
            raise ProtocolError("rank not found")
        return wire.CheckpointMetadataResponse(checkpoint_metadata=found)

    async def _kill(self, _data: bytes, context: Any) -> Message | None:
        end_call(context, grpc.StatusCode.PERMISSION_DENIED, NO_KILL)
        return None

    async def _round(
        self, context: Any, begin: Callable[[ReplicaGroup, int], list[GroupInstruction]]
    ) -> Any:
        """Wait for the end of a round. Returns its answer; None after an error was set on the
        call."""
        assert self._group is not None
        self._calls += 1
        call = self._calls
        self._waiting[call] = asyncio.get_running_loop().create_future()
        try:
            self._carry_out(begin(self._group, call))
            answer = await asyncio.wait_for(self._waiting[call], patience_s(context))
        except asyncio.TimeoutError:
            end_call(context, grpc.StatusCode.CANCELLED, EXPIRED)
            return None
        finally:
            del self._waiting[call]
            self._group.ended(call)
        if isinstance(answer, CallRefused):
            code = "DEADLINE_EXCEEDED" if answer.is_timeout else "INTERNAL"
            end_call(context, grpc.StatusCode[code], answer.reason)
            return None
        return answer

    def _carry_out(self, instructions: list[GroupInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case AskLighthouse():
                    if self._asking is not None:
                        self._asking.cancel()
                    self._asking = asyncio.ensure_future(self._ask(instruction))
                case QuorumAnswer(call) | VoteAnswer(call) | CallRefused(call):
                    if not self._waiting[call].done():
                        self._waiting[call].set_result(instruction)

    # ------------------------------------------------------------ the lighthouse

    async def _ask(self, ask: AskLighthouse) -> None:
        """Send a request to the lighthouse, with the configured number of retries."""
        assert self._group is not None
        deadline = clock.now() + ask.timeout_s
        tries = self._quorum_retries + 1
        reason, is_timeout = "", False
        for number in range(tries):
            try:
                quorum = await self._try(ask, ask.timeout_s)
                self._carry_out(self._group.answered(quorum))
                return
            except grpc.aio.AioRpcError as error:
                is_timeout = error.code() in TIMEOUTS
                reason = f"lighthouse {self._lighthouse}: {error.code().name}: {error.details()}"
            except ProtocolError as error:
                is_timeout, reason = False, f"lighthouse {self._lighthouse}: {error}"
            log.warning(
                "replica %s: %s (try %d of %d)", self._replica_id, reason, number + 1, tries
            )
            if number + 1 < tries:
                pause_s = RETRY_PAUSE_S if is_timeout else max(RETRY_PAUSE_S, ask.timeout_s / tries)
                await asyncio.sleep(pause_s)
        if clock.now() >= deadline:
            is_timeout = True
        self._carry_out(self._group.failed(reason, is_timeout))

    async def _try(self, ask: AskLighthouse, timeout_s: float) -> Any:
        assert self._channel is not None
        method = method_of(self._channel, LIGHTHOUSE, "Quorum")
        request = wire.LighthouseQuorumRequest(requester=member_message(ask.member))
        return quorum_of((await method(request, timeout=timeout_s)).quorum)

    async def _beat(self) -> None:
        """Send heartbeats until the end. A failed one is followed by the next."""
        assert self._channel is not None
        method = method_of(self._channel, LIGHTHOUSE, "Heartbeat")
        request = wire.LighthouseHeartbeatRequest(replica_id=self._replica_id)
        has_failed = False
        while True:
            try:
                await method(request, timeout=max(1.0, self._heartbeat_interval_s))
                has_failed = False
            except grpc.aio.AioRpcError as error:
                if not has_failed:
                    log.warning(
                        "replica %s: no heartbeat reaches the lighthouse %s (%s: %s); the next "
                        "ones are tried, and the next quorum waits for it",
                        self._replica_id, self._lighthouse, error.code().name, error.details(),
                    )  # fmt: skip
                has_failed = True
            await asyncio.sleep(self._heartbeat_interval_s)


async def _answered(
    method: Callable[[bytes, Any], Awaitable[Message | None]], data: bytes, context: Any
) -> bytes:
    """The answer's bytes; empty, if the method has set an error. A malformed request is the
    caller's fault."""
    try:
        answer = await method(data, context)
    except ProtocolError as error:
        end_call(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return b""
    return b"" if answer is None else answer.SerializeToString()
