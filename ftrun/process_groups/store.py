"""A client of torch's TCPStore on a plain socket.

torch's client resolves the name of every address that it connects to (5 s if no name server
answers), prints stack traces if a connection is refused, and cannot be woken. This client does none
of that. It implements the part of TCPStore's protocol that a build needs: one byte for the
request's kind, then strings and lists, each after a 64-bit length, in the host's byte order.

Not here: the server (torch's, in the launcher's store process), what is stored (rendezvous.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from ftrun.base import addresses, clock
from ftrun.base.errors import PeerError

_VALIDATE, _SET, _GET, _CHECK, _WAIT, _DELETE, _PING = 0, 1, 3, 5, 6, 8, 13
_MAGIC = 0x3C85F7CE
_SIZE = struct.Struct("=Q")
_WORD = struct.Struct("=I")
_VALUE_BYTES_MAX = 1 << 20
CONNECT_TIMEOUT_S = 5.0
"""A node that is cut off will not answer later either. Use the time to try other stores."""


WORLD_KEYS = ("default_pg/0//cpu//0/0", "default_pg/0//cuda//0")
"""Keys that rank 0 of a world writes to its store, first with Gloo, then with NCCL."""


class StoreClient:
    """One connection, for one thread; any thread may call ``interrupt``.

    Args:
        address: ``host:port``.
        deadline: on ftrun's clock; every call ends by then.

    Raises:
        PeerError: the connection is refused, the deadline has passed, or it is no TCPStore.
    """

    def __init__(self, address: str, deadline: float) -> None:
        self._address = address
        self._deadline = deadline
        try:
            self._socket = socket.create_connection(
                split_address(address), timeout=min(self._remaining_s(), CONNECT_TIMEOUT_S)
            )
        except OSError as error:
            failure = PeerError(f"the store at {address} cannot be reached: {error}")
            failure.unreached = split_address(address)[0]
            raise failure from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet()
        except BaseException:
            self._socket.close()
            raise

    def set(self, key: str, value: bytes) -> None:
        """Store ``value``, and wake the clients that wait for it."""
        self._send(bytes([_SET]) + _text(key) + _sized(value))

    def get(self, key: str) -> bytes:
        """Wait for the value, and return it."""
        name = _text(key)
        self._send(bytes([_WAIT]) + _SIZE.pack(1) + name)
        self._receive(1)
        self._send(bytes([_GET]) + name)
        (size,) = _SIZE.unpack(self._receive(_SIZE.size))
        if size > _VALUE_BYTES_MAX:
            raise PeerError(f"the store at {self._address} sends {size} bytes for {key!r}")
        return self._receive(size)

    def has(self, key: str) -> bool:
        self._send(bytes([_CHECK]) + _SIZE.pack(1) + _text(key))
        return self._receive(1) == b"\0"

    def delete(self, key: str) -> bool:
        """Remove a key. False: there was no such key."""
        self._send(bytes([_DELETE]) + _text(key))
        return self._receive(_SIZE.size) != _SIZE.pack(0)

    def interrupt(self) -> None:
        """Make the current call, and every later one, raise PeerError at once."""
        with contextlib.suppress(OSError):  # closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _greet(self) -> None:
        nonce = os.urandom(_WORD.size)
        self._send(bytes([_VALIDATE]) + _WORD.pack(_MAGIC) + bytes([_PING]) + nonce)
        if self._receive(_WORD.size) != nonce:
            raise PeerError(f"what answers at {self._address} is no TCPStore that ftrun knows")

    def _send(self, request: bytes) -> None:
        try:
            self._socket.settimeout(self._remaining_s())
            self._socket.sendall(request)
        except OSError as error:
            raise self._lost(error) from error

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                self._socket.settimeout(self._remaining_s())
                part = self._socket.recv(size - len(received))
            except OSError as error:
                raise self._lost(error) from error
            if not part:
                raise self._lost("it closed the connection")
            received += part
        return bytes(received)

    def _remaining_s(self) -> float:
        remaining_s = self._deadline - clock.now()
        if remaining_s <= 0:
            raise PeerError(f"the store at {self._address} did not answer within the deadline")
        return remaining_s

    def _lost(self, cause: object) -> PeerError:
        return PeerError(f"the store at {self._address} did not answer: {cause}")


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``. The host of an IPv6 address may be in brackets.

    Raises:
        PeerError: ``address`` has another form.
    """
    try:
        return addresses.split_address(address)
    except ValueError as error:
        raise PeerError(str(error)) from None


def _sized(value: bytes) -> bytes:
    return _SIZE.pack(len(value)) + value


def _text(key: str) -> bytes:
    # TCPStore marks ordinary keys by a slash; without it torch's own clients would not find them.
    return _sized(f"/{key}".encode())
