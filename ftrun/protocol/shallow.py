"""The messages of ftrun.proto, with fields of shared message types as plain bytes.

On the wire a nested message is a length and its bytes, so both forms are the same to a peer. A
record that very many messages share (an attempt, a member, an endpoint) is then recognised by its
bytes: it is validated and decoded once, not a thousand times.

Not here: records (records.py), the caches (shared_records.py). The classes are derived from
ftrun_pb2, so there is one schema.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ftrun.protocol import ftrun_pb2

PACKAGE = "ftrun.shallow"


class ShallowMessages:
    """The classes by name. ``shared``: the message types whose fields are bytes."""

    def __init__(self, shared: Collection[str]) -> None:
        self._pool: Any = DescriptorPool()
        self._pool.Add(_shallow_file(frozenset(shared)))

    def of(self, name: str) -> type[Message]:
        """The shallow form of a message of ftrun.proto.

        Raises:
            KeyError: there is no such message.
        """
        return GetMessageClass(self._pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def _shallow_file(shared: frozenset[str]) -> FileDescriptorProto:
    file = FileDescriptorProto()
    ftrun_pb2.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = "ftrun/protocol/shallow.proto", PACKAGE
    del file.service[:]
    for message in file.message_type:
        for field in message.field:
            kind = field.type_name.rpartition(".")[2]
            if kind in shared:
                _leave_as_bytes(message, field)
            elif kind:
                field.type_name = f".{PACKAGE}.{kind}"
    return file


def _leave_as_bytes(message: DescriptorProto, field: FieldDescriptorProto) -> None:
    """Make a field plain bytes. A single one is ``optional``, because an empty message differs from
    none."""
    field.type = FieldDescriptorProto.TYPE_BYTES
    field.ClearField("type_name")
    is_single = field.label == FieldDescriptorProto.LABEL_OPTIONAL
    if is_single and not field.HasField("oneof_index"):
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")
