"""torchft's messages ↔ the records of core/torchft_quorum/, with limits on untrusted input.

Not here: calls (quorum_server.py, manager_server.py, clients.py).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import DecodeError, Message

from ftrun.base.errors import ProtocolError
from ftrun.compat.torchft_wire import torchft_pb2 as wire
from ftrun.core.torchft_quorum.records import DEFAULT_ROOM, QuorumMember, TorchftQuorum
from ftrun.core.torchft_quorum.results import QuorumResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

R = TypeVar("R")
T = TypeVar("T", bound=Message)

NAME_BYTES_MAX = 512
HANDLES_MAX = 65_536
SCALARS = (str, bool, int)
ROOM_ID = "room-id"
"""The metadata by which a client of torchft's git version names its room. The nightly sends
none."""


def parsed(kind: type[T], data: bytes) -> T:
    """Parse a call's bytes. (gRPC's own parsing would log a traceback for damaged ones.)

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
    checked_name("replica_id", message.replica_id)
    return record_of(QuorumMember, message)


def member_message(member: QuorumMember) -> wire.QuorumMember:
    return wire.QuorumMember(**_fields_of(member))


def quorum_of(message: wire.Quorum) -> TorchftQuorum:
    """The quorum in a message.

    Raises:
        ProtocolError: as ``member_of``.
    """
    return TorchftQuorum(message.quorum_id, tuple(map(member_of, message.participants)))


def quorum_message(quorum: TorchftQuorum, created: datetime) -> wire.Quorum:
    message = wire.Quorum(
        quorum_id=quorum.quorum_id,
        participants=[member_message(member) for member in quorum.participants],
    )
    message.created.FromDatetime(created)
    return message


def result_message(result: QuorumResult) -> wire.ManagerQuorumResponse:
    return wire.ManagerQuorumResponse(**_fields_of(result))


def record_of(
    kind: type[R], message: Message, sequence: Callable[[Any], Any] = tuple, **more: Any
) -> R:
    """The dataclass whose fields have the names of the message's fields.

    An unset optional field becomes None, a repeated one a ``sequence``. ``more``: fields that
    differ from the message's.
    """
    found = dict(more)
    for name in getattr(kind, "__match_args__"):  # noqa: B009  # mypy knows no dataclass here
        if name not in found:
            field = message.DESCRIPTOR.fields_by_name[name]
            value = getattr(message, name)
            if field.has_presence and not message.HasField(name):
                value = None
            found[name] = value if value is None or isinstance(value, SCALARS) else sequence(value)
    return kind(**found)


def _fields_of(record: QuorumMember | QuorumResult) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__match_args__}


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
