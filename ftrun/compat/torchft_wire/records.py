"""torchft's messages ↔ the records of core/torchft_quorum/, with limits on what strangers send.

Not here: calls (quorum_server.py, manager_server.py, clients.py).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError, Message

from ftrun.base.errors import ProtocolError
from ftrun.compat.torchft_wire import torchft_pb2 as wire
from ftrun.core.torchft_quorum.group import QuorumAsked
from ftrun.core.torchft_quorum.records import DEFAULT_ROOM, QuorumMember, TorchftQuorum
from ftrun.core.torchft_quorum.results import RankQuorum

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T", bound=Message)

NAME_BYTES_MAX = 512
HANDLES_MAX = 65_536
ROOM_ID = "room-id"
"""The metadata by which a client of torchft's git names its room; the nightly's sends none."""


def parsed(kind: type[T], data: bytes) -> T:
    """The message in a call's bytes. (gRPC's own parsing logs a traceback for damaged ones.)

    Raises:
        ProtocolError: they are no such message.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"no {kind.__name__}: {error}") from None


def member_of(message: wire.QuorumMember) -> QuorumMember:
    """The member that a message describes.

    Raises:
        ProtocolError: a name is no name, or something is over its limit.
    """
    if len(message.reconfigure_handles) > HANDLES_MAX:
        raise ProtocolError(f"reconfigure_handles: over {HANDLES_MAX}")
    return QuorumMember(
        replica_id=checked_name("replica_id", message.replica_id),
        address=message.address,
        store_address=message.store_address,
        step=message.step,
        world_size=message.world_size,
        shrink_only=message.shrink_only,
        data=message.data,
        commit_failures=message.commit_failures,
        reconfigure_handles=tuple(message.reconfigure_handles),
    )


def member_message(member: QuorumMember) -> wire.QuorumMember:
    """The member as a message."""
    return wire.QuorumMember(
        replica_id=member.replica_id,
        address=member.address,
        store_address=member.store_address,
        step=member.step,
        world_size=member.world_size,
        shrink_only=member.shrink_only,
        data=member.data,
        commit_failures=member.commit_failures,
        reconfigure_handles=member.reconfigure_handles,
    )


def quorum_of(message: wire.Quorum) -> TorchftQuorum:
    """The quorum in a message.

    Raises:
        ProtocolError: as ``member_of``.
    """
    return TorchftQuorum(message.quorum_id, tuple(map(member_of, message.participants)))


def quorum_message(quorum: TorchftQuorum, created: datetime) -> wire.Quorum:
    """The quorum as a message."""
    message = wire.Quorum(
        quorum_id=quorum.quorum_id,
        participants=[member_message(member) for member in quorum.participants],
    )
    message.created.FromDatetime(created)
    return message


def asked_of(message: wire.ManagerQuorumRequest, timeout_s: float) -> QuorumAsked:
    """What a rank asks its manager for."""
    return QuorumAsked(
        group_rank=message.group_rank,
        step=message.step,
        checkpoint_metadata=message.checkpoint_metadata,
        shrink_only=message.shrink_only,
        init_sync=message.init_sync,
        commit_failures=message.commit_failures,
        reconfigure_handle=message.reconfigure_handle,
        timeout_s=timeout_s,
    )


def result_message(result: RankQuorum) -> wire.ManagerQuorumResponse:
    """A rank's view of a quorum as a message."""
    return wire.ManagerQuorumResponse(
        quorum_id=result.quorum_id,
        recover_src_manager_address=result.recover_src_manager_address,
        recover_src_replica_rank=result.recover_src_replica_rank,
        recover_dst_replica_ranks=result.recover_dst_replica_ranks,
        store_address=result.store_address,
        max_step=result.max_step,
        max_replica_rank=result.max_replica_rank,
        max_world_size=result.max_world_size,
        replica_rank=result.replica_rank,
        replica_world_size=result.replica_world_size,
        heal=result.heal,
        commit_failures=result.commit_failures,
        replica_ids=result.replica_ids,
        reconfigure_handles=result.reconfigure_handles,
    )


def checked_name(field: str, name: str) -> str:
    """``name``, which goes into tables, logs and the journal.

    Raises:
        ProtocolError: it is too long, or cannot be printed.
    """
    if len(name.encode()) > NAME_BYTES_MAX:
        raise ProtocolError(f"{field} is over {NAME_BYTES_MAX} bytes")
    if not name.isprintable():
        raise ProtocolError(f"{field} has characters that cannot be printed")
    return name


def room_of(metadata: Iterable[tuple[str, str | bytes]], default: str = DEFAULT_ROOM) -> str:
    """The room that a call's metadata names.

    Raises:
        ProtocolError: as ``checked_name``.
    """
    for key, value in metadata:
        if key == ROOM_ID and isinstance(value, str) and value:
            return checked_name(ROOM_ID, value)
    return default
