"""The register as two keys of etcd: one for everything but the journal, one for the journal.

The version is the first key's mod_revision, compared and written in one transaction. So a write
without a journal is small. Only etcd's own gRPC is used, through an excerpt of its messages. Keys
have no lease, because leadership is lost by silence (core/register/). TLS uses a client certificate
if etcd wants one; passwords are not supported. Not here: when anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import grpc
import grpc.aio

from ftrun.base.addresses import parse_address
from ftrun.base.errors import ProtocolError, UserError
from ftrun.core.register.events import Accepted, Answered, Refused, Value
from ftrun.lighthouse.register import etcd_pb2 as pb
from ftrun.lighthouse.register.store import (
    StoreError,
    decode_head,
    encode_head,
    pack_journal,
    unpack_journal,
)
from ftrun.protocol.limits import MESSAGE_BYTES_MAX
from ftrun.protocol.tls import PLAINTEXT, TlsFiles

CALL_TIMEOUT_S = 1.0
PREFIX = "ftrun/"
TLS_FILES = ("cert", "key", "cacert")
"""As etcdctl calls them, in the order of ``TlsFiles``."""
OPTIONS: Sequence[tuple[str, Any]] = [
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
]
TXN = "/etcdserverpb.KV/Txn"


def parse_etcd(text: str) -> tuple[list[str], str, TlsFiles]:
    """The members' addresses, the job's name and TLS's files.

    The form is ``HOST:PORT,…/JOB`` or ``HOST:PORT,…/JOB?cacert=FILE&cert=FILE&key=FILE``.

    Raises:
        UserError: it has another form, or a file cannot be read.
    """
    where, _, query = text.partition("?")
    members, _, job = where.partition("/")
    if not members or not job or not job.isprintable():
        raise UserError(
            f"--state etcd://{text}: must be etcd://HOST:PORT,HOST:PORT/JOB, where JOB is a name "
            "of your choice that only this job's lighthouses use."
        )
    for member in members.split(","):
        parse_address(member, "--state")
    return members.split(","), job, _tls(f"--state etcd://{text}", query)


def _tls(option: str, query: str) -> TlsFiles:
    found = parse_qsl(query, keep_blank_values=True)
    named = dict(found)
    if query and sorted(name for name, _ in found) not in (["cacert"], sorted(TLS_FILES)):
        raise UserError(
            f"{option}: TLS needs ?cacert=FILE, the authority of etcd's certificates, and where "
            "etcd wants to see a certificate (--client-cert-auth) also &cert=FILE&key=FILE."
        )
    for name, path in named.items():
        try:
            open(path, "rb").close()
        except OSError as error:
            raise UserError(
                f"{option}: {name} {path!r} cannot be read: {error.strerror}. Nothing was started."
            ) from None
    return TlsFiles(*(Path(named[name]) if name in named else None for name in TLS_FILES))


class EtcdStore:
    """One register in etcd. After a failed call the next one goes to another member.

    TLS's files are read at each connection, so that they can be renewed.
    """

    def __init__(self, members: Sequence[str], job: str, tls: TlsFiles = PLAINTEXT) -> None:
        self.place = f"etcd://{','.join(members)}/{job}"
        self._members = members
        self._tls = tls
        self._turn = 0
        self._channel: Any = None
        self._key = f"{PREFIX}{job}".encode()
        self._journal_key = self._key + b"/journal"

    async def read(self, *, with_journal: bool) -> Answered:
        """See ``Store``. Both keys are read at one revision."""
        keys = [self._key, *([self._journal_key] if with_journal else [])]
        answer = await self._txn([], [_range(key) for key in keys])
        found = [response.response_range.kvs for response in answer.responses]
        if not found or not found[0]:
            return Answered(0, None)
        head = found[0][0]
        try:
            packed = found[1][0].value if with_journal and found[1] else b""
            journal = unpack_journal(packed) if with_journal else None
            value, _ = decode_head(head.value, journal)
        except ProtocolError as error:
            raise StoreError(
                f"the key {self._key.decode()} has something else than a register ({error}): "
                "remove it, or give another JOB in --state"
            ) from error
        return Answered(head.mod_revision, value)

    async def swap(self, version: int, value: Value) -> Accepted | Refused:
        compare = pb.Compare(
            result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=self._key, mod_revision=version
        )
        puts = [_put(self._key, encode_head(value))]
        if value.journal is not None:
            puts.append(_put(self._journal_key, pack_journal(value.journal)))
        answer = await self._txn([compare], puts)
        return Accepted(answer.header.revision) if answer.succeeded else Refused()

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def _txn(
        self, compare: Sequence[pb.Compare], success: Sequence[pb.RequestOp]
    ) -> pb.TxnResponse:
        member = self._members[self._turn % len(self._members)]
        self._channel = self._channel or self._connection(member)
        call = self._channel.unary_unary(
            TXN,
            request_serializer=pb.TxnRequest.SerializeToString,
            response_deserializer=pb.TxnResponse.FromString,
        )
        request = pb.TxnRequest(compare=compare, success=success)
        try:
            answer: pb.TxnResponse = await call(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self._turn += 1
            await self.close()
            why = error.details() or error.code().name
            raise StoreError(f"etcd at {member}: {why}") from None
        return answer

    def _connection(self, member: str) -> Any:
        if not self._tls:
            return grpc.aio.insecure_channel(member, options=OPTIONS)
        files = self._tls.ca, self._tls.key, self._tls.cert
        try:
            read = [None if file is None else file.read_bytes() for file in files]
        except OSError as error:
            raise StoreError(f"{error.filename}: {error.strerror}") from None
        credentials = grpc.ssl_channel_credentials(*read)
        return grpc.aio.secure_channel(member, credentials, options=OPTIONS)


def _range(key: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key))


def _put(key: bytes, value: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value))
