"""TLS 1.3 between a receiver and a donor, with a certificate that lives as long as the donor.

Each state server makes a key and a self-signed certificate in memory. The certificate's fingerprint
is sent with the server's address through the control plane, which has TLS and the token. A receiver
accepts only that certificate, without a CA, and ignores names and dates.

TLS records are made and read in memory (``ssl.MemoryBIO``), not by Python's SSLSocket: one call
encrypts a whole piece of a state without the interpreter's lock, and no thread waits for a socket
while it reads the donor's memory (offer.py).

Imported only if TLS is used, because the import takes 60 ms. Not here: certificates of lighthouses
and agents (protocol/tls.py), the proof of the token (proof.py).
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import re
import select
import socket
import ssl
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ftrun.base.errors import ProtocolError
from ftrun.checkpoint import wire

RECORD_BYTES = 16 << 10
"""The most plaintext that a TLS record carries."""

SEALED_BYTES = 128 << 10
"""The bytes encrypted at a time; a connection that sends holds about twice as many."""

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_ALWAYS = datetime(2000, 1, 1), datetime(9999, 12, 31, 23, 59, 59)
"""Receivers ignore the dates, so that clocks may be wrong. The last one is RFC 5280's "no end"."""


class ServerIdentity:
    """The fresh key and certificate of a state server.

    Attributes:
        fingerprint: the SHA-256 of the certificate, in hex.
    """

    def __init__(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _self_signed(key)
        self.fingerprint = sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.num_tickets = 0  # no receiver resumes a session
        _load(self._context, key, certificate)

    def accept(self, sock: socket.socket, deadline: float) -> TlsPipe:
        """Shake hands with the receiver that has connected.

        Raises:
            PeerError: the receiver was silent until the deadline.
            OSError: the receiver speaks no TLS 1.3, or is gone.
        """
        pipe = TlsPipe(sock, self._context, is_server=True)
        pipe.shake_hands(deadline)
        return pipe


def connect(sock: socket.socket, address: str, fingerprint: str, deadline: float) -> TlsPipe:
    """Shake hands with the donor at ``address``, to which ``sock`` is connected.

    Raises:
        ProtocolError: the donor speaks no TLS 1.3, or its certificate has another fingerprint.
        PeerTimeout: the donor was silent until the deadline.
        OSError: the donor is gone.
    """
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise ProtocolError(
            f"{address} has announced no certificate ({fingerprint[:80]!r}), and heals of this "
            "job use TLS: it is asked for nothing"
        )
    pipe = TlsPipe(sock, _client_context(), is_server=False)
    try:
        pipe.shake_hands(deadline)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        raise wire.PeerClosed(f"{address} closed the connection instead of speaking TLS") from None
    except ssl.SSLError as why:
        raise ProtocolError(f"{address} does not speak TLS 1.3 as a donor does: {why}") from None
    if not hmac.compare_digest(pipe.peer_fingerprint(), fingerprint):
        raise ProtocolError(
            f"{address} shows another certificate than the donor of that address has announced: "
            "somebody else answers there, and is asked for nothing"
        )
    return pipe


class TlsPipe:
    """A TLS connection with the few methods of a socket that wire.py uses. For one thread.

    It waits as its socket does: not at all, or as long as the socket's own timeout.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        self._buffer = memoryview(bytearray(RECORD_BYTES))
        self._unsent = memoryview(b"")
        self._in_flight = 0

    def fileno(self) -> int:
        """The socket's descriptor. Receive before polling it: decrypted bytes may be here
        already."""
        return self._sock.fileno()

    def shake_hands(self, deadline: float) -> None:
        """Agree on keys.

        Raises:
            PeerTimeout: the peer was silent until the deadline.
            OSError: the peer speaks no TLS 1.3, or is gone.
        """
        is_done = False
        while not is_done:
            try:
                self._session.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                with contextlib.suppress(OSError):  # the alert with the reason
                    self._sock.send(self._outgoing.read())
                raise
            while not self._flush():
                wire.wait_for(self._sock, select.POLLOUT, deadline)
            if not is_done:
                self._await_more(deadline)

    def peer_fingerprint(self) -> str:
        """The SHA-256 of the certificate that the peer has shown and whose key it has."""
        return sha256(self._session.getpeercert(binary_form=True) or b"").hexdigest()

    def recv(self, bytes_max: int, /) -> bytes:
        data = bytearray(bytes_max)
        return bytes(data[: self.recv_into(memoryview(data))])

    def recv_into(self, view: memoryview, _nbytes: int = 0, flags: int = 0, /) -> int:
        """Fill ``view`` with the bytes that are there.

        Returns:
            The number of bytes; 0 if the peer has closed the connection.

        Raises:
            BlockingIOError: there are none yet.
            OSError: the bytes were not sent by the peer.
        """
        filled = 0
        while filled < view.nbytes:
            try:
                # A number, unlike in the type stubs, because a buffer is given.
                got: Any = self._session.read(view.nbytes - filled, view[filled:])
            except ssl.SSLWantReadError:
                if filled and flags != socket.MSG_WAITALL:
                    break
                try:
                    self._receive(view.nbytes - filled)
                except BlockingIOError:
                    if filled:
                        break
                    raise
                continue
            except ssl.SSLEOFError:
                break  # the caller knows how many bytes should have come
            if not got:
                break
            filled += got
        return filled

    def sendmsg(self, views: Sequence[memoryview], /) -> int:
        """Send the beginning of the first view: ``SEALED_BYTES``, or all of it if it is shorter.

        The bytes are encrypted once; after a BlockingIOError the next call must pass them again.

        Returns:
            The number of bytes sent.

        Raises:
            BlockingIOError: the kernel has not taken all of the ciphertext yet.
        """
        if not self._in_flight:
            self._in_flight = self._session.write(views[0][:SEALED_BYTES])
        if not self._flush():
            raise BlockingIOError
        sent, self._in_flight = self._in_flight, 0
        return sent

    def _flush(self) -> bool:
        """Pass ciphertext to the kernel. False if it does not accept all of it now."""
        while self._unsent or self._outgoing.pending:
            try:
                self._unsent = self._unsent or memoryview(self._outgoing.read())
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    def _await_more(self, deadline: float) -> None:
        try:
            self._receive(0)
        except BlockingIOError:
            wire.wait_for(self._sock, select.POLLIN, deadline)

    def _receive(self, wanted: int) -> None:
        """Take ciphertext from the kernel; ``wanted`` bytes of plaintext are certain to come.

        At most one record of them may have arrived in part, so all others can be waited for at
        once: a blocking socket is woken once, not for each packet.
        """
        sure = wanted - RECORD_BYTES
        if sure > self._buffer.nbytes and self._buffer.nbytes < wire.PIECE_BYTES:
            self._buffer = memoryview(bytearray(wire.PIECE_BYTES))
        if sure > RECORD_BYTES:
            got = self._sock.recv_into(self._buffer[:sure], 0, socket.MSG_WAITALL)
        else:
            got = self._sock.recv_into(self._buffer)
        if got:
            self._incoming.write(self._buffer[:got])
        else:
            self._incoming.write_eof()


@functools.cache
def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # ``connect`` compares the certificate itself
    return context


def _self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ftrun worker")])
    begins, ends = _ALWAYS
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .sign(key, hashes.SHA256())
    )


def _load(
    context: ssl.SSLContext, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
) -> None:
    """Load the pair into ``context``, which reads only files: through one that is in memory."""
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    fd = os.memfd_create("ftrun-key")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
