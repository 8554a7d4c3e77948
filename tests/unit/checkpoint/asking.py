"""A receiver made of the standard library, which can send a state server any request and proof.

HTTP and TLS are Python's own, and any text can be the token, so that servers meet another
implementation than the receiver's in ftrun/checkpoint.
"""

from __future__ import annotations

import hmac
import http.client
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from ftrun.checkpoint.proof import PROOF_FIELD, Proofs, read_challenge

WAIT_S = 60.0


def key_of(token: str) -> bytes:
    """The key of proofs; also of an empty token."""
    return hmac.digest(token.encode(), b"ftrun heal 1", "sha256")


@dataclass(frozen=True)
class Answer:
    """An answer. Names of fields are in lower case."""

    status: int
    fields: dict[str, str]
    body: bytes


class Caller:
    """One connection to a state server, with TLS if it is to show ``certificate``.

    ``binding``: the certificate in the proofs, if it is to be another.
    """

    def __init__(
        self, address: str, token: str, certificate: str = "", binding: str | None = None
    ) -> None:
        host, port = address.split(":")
        self.sock = socket.create_connection((host, int(port)), WAIT_S)
        if certificate:
            self.sock = _any_server().wrap_socket(self.sock)
        self.address = address
        self.proofs: Proofs | None = None
        self._key = key_of(token)
        self._binding = certificate if binding is None else binding

    def __enter__(self) -> Caller:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sock.close()

    def head(self, method: str, target: str, fields: Mapping[str, str]) -> bytes:
        """A proved request as bytes; asks for the challenge first if there is none."""
        if self.proofs is None:
            refused = self.send(_head(f"{method} {target} HTTP/1.1", fields))
            assert refused.status == 401
            self.proofs = Proofs(self._key, read_challenge(refused.fields), self._binding)
        line = f"{method} {target} HTTP/1.1"
        return _head(line, {**fields, PROOF_FIELD: self.proofs.next(line, fields)})

    def ask(self, target: str, method: str = "GET", **fields: str) -> Answer:
        """Send a proved request; returns the answer. ``_`` in fields' names is ``-``."""
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        return self.send(self.head(method, target, named))

    def send(self, data: bytes) -> Answer:
        """Send these bytes; returns the answer."""
        self.sock.sendall(data)
        return self.receive()

    def receive(self) -> Answer:
        """The next answer."""
        answer = http.client.HTTPResponse(self.sock)
        try:
            answer.begin()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, fields, answer.read())
        finally:
            answer.close()

    def is_ended(self) -> bool:
        """Wait until the server closes the connection; False if it sends something instead."""
        return not self.sock.recv(1)


def _head(line: str, fields: Mapping[str, str]) -> bytes:
    return "\r\n".join([line, *(f"{n}: {v}" for n, v in fields.items()), "", ""]).encode()


def _any_server() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
