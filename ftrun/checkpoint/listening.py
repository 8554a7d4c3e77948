"""A server whose every request proves the job's token (X1): an HTTP server on a thread.

The first request of a connection has no proof, because the challenge comes with the 401 that
answers it (proof.py). If the next request has no valid proof either, the connection is closed.

Imports no torch, because agents use it too. Not here: what is served (serve.py; agents:
agent/team/keeping.py), how heads are read (wire.py), TLS (tls.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftrun.base import clock
from ftrun.base.errors import PeerError, ProtocolError
from ftrun.checkpoint import wire
from ftrun.checkpoint.proof import (
    CHALLENGE_FIELD,
    PROOF_FIELD,
    Proofs,
    challenge_field,
    heal_key,
    new_challenge,
)

if TYPE_CHECKING:
    from ftrun.checkpoint.tls import ServerIdentity

CONNECTIONS_MAX = 256
REQUEST_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 60.0
STALL_TIMEOUT_S = 30.0
SWEEP_INTERVAL_S = 5.0

_log = logging.getLogger(__name__)


class Refusal(PeerError):
    """A request that is answered with ``status``."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class ProvenServer:
    """Serves clients that know the token, on a port that the kernel chooses.

    Attributes:
        address: ``host:port``.
        certificate: the fingerprint by which clients identify this server; empty without TLS.
    """

    def __init__(self, host: str, token: str, *, tls: bool = False) -> None:
        """Bind ``host`` (a numeric address). Requests may come before this returns.

        Raises:
            OSError: the address cannot be bound.
        """
        self._key = heal_key(token)
        self._identity = _new_identity() if tls else None
        self.certificate = self._identity.fingerprint if self._identity else ""
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=CONNECTIONS_MAX)
        self._listener.settimeout(SWEEP_INTERVAL_S)
        port = self._listener.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._thread = threading.Thread(target=self._accept, name="ftrun-state", daemon=True)
        self._thread.start()
        _close_in_forked_children(self)

    def answer(self, pipe: wire.Pipe, head: wire.Head) -> None:
        """Answer a proven request, in its connection's thread.

        Raises:
            Refusal: the request is answered with it, and the connection ends.
        """
        raise NotImplementedError

    def sweep(self) -> None:
        """Called every ``SWEEP_INTERVAL_S`` while no client connects."""

    def close(self) -> None:
        """Close the port and every connection."""
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        for sock in [self._listener, *connections]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        # The thread first: it could accept on a reused descriptor number otherwise.
        self._thread.join(REQUEST_TIMEOUT_S)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                self.sweep()
                continue
            except OSError:
                return
            sock.setblocking(False)
            with self._lock:
                if self._closed or len(self._connections) >= CONNECTIONS_MAX:
                    sock.close()
                    continue
                self._connections.add(sock)
            threading.Thread(
                target=self._serve, args=(sock,), name="ftrun-state-conn", daemon=True
            ).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pipe: wire.Pipe = sock
            if self._identity is not None:
                pipe = self._identity.accept(sock, clock.now() + REQUEST_TIMEOUT_S)
            connection = _Connection(pipe, wire.HeadReader(pipe))
            while self._answer_one(connection):
                pass
        except (OSError, PeerError) as why:
            _log.debug("a receiver's connection ended: %s", why)
        finally:
            with self._lock:
                self._connections.discard(sock)
            sock.close()

    def _answer_one(self, to: _Connection) -> bool:
        """Answer the next request; False if the connection must end."""
        try:
            head = to.reader.read(clock.now() + IDLE_TIMEOUT_S, REQUEST_TIMEOUT_S)
            if head is None:
                return False
            if to.proofs is None or not to.proofs.holds_next(head.line, head.fields):
                return self._ask_for_proof(to, head)
            self.answer(to.pipe, head)
        except Refusal as why:
            send(to.pipe, why.status, str(why).encode())
            return False
        except ProtocolError as why:
            send(to.pipe, "400 Bad Request", str(why).encode())
            return False
        return True

    def _ask_for_proof(self, to: _Connection, head: wire.Head) -> bool:
        """Refuse a request without a valid proof; False if its connection must end."""
        challenge = new_challenge()
        is_first = to.proofs is None and PROOF_FIELD not in head.fields
        to.proofs = Proofs(self._key, challenge, self.certificate)
        text = b"this does not prove the job's token"
        send(to.pipe, "401 Unauthorized", text, {CHALLENGE_FIELD: challenge_field(challenge)})
        return is_first

    def _close_in_child(self) -> None:
        # A data loader's process must not keep a dead donor's connections open.
        for sock in [self._listener, *self._connections]:
            sock.close()


@dataclass(slots=True)
class _Connection:
    """A receiver's connection. ``proofs``: None until the first 401."""

    pipe: wire.Pipe
    reader: wire.HeadReader
    proofs: Proofs | None = None


def _new_identity() -> ServerIdentity:
    from ftrun.checkpoint.tls import ServerIdentity  # Only now: see there.

    return ServerIdentity()


def send(
    sock: wire.Pipe, status: str, body: bytes, fields: dict[str, str | int] | None = None
) -> None:
    """Send a whole answer."""
    head = wire.format_head(f"HTTP/1.1 {status}", {**(fields or {}), "content-length": len(body)})
    wire.send_all(sock, head + body, clock.now() + STALL_TIMEOUT_S)


def _close_in_forked_children(server: ProvenServer) -> None:
    known = weakref.ref(server)

    def close() -> None:
        alive = known()
        if alive is not None:
            alive._close_in_child()

    os.register_at_fork(after_in_child=close)
