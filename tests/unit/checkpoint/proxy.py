"""A network between donor and receiver that can be made to misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

Pass = Callable[[int, bytes], bytes | None]
"""(bytes sent before, bytes sent now) → the bytes that arrive; None cuts the connection."""


def unchanged(_sent: int, data: bytes) -> bytes:
    """An honest network."""
    return data


def cut_after(nbytes: int) -> Pass:
    """The connection breaks once this number of bytes has passed."""
    return lambda sent, data: data if sent + len(data) <= nbytes else None


def flip_at(position: int) -> Pass:
    """One bit of the byte at ``position`` of a connection arrives flipped."""

    def flip(sent: int, data: bytes) -> bytes:
        at = position - sent
        if not 0 <= at < len(data):
            return data
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return flip


@dataclass
class Tap:
    """An eavesdropper: its two methods are a proxy's ``requests`` and ``answers``."""

    heard: bytearray = field(default_factory=bytearray)
    asked: bytearray = field(default_factory=bytearray)
    answered: threading.Event = field(default_factory=threading.Event)

    def requests(self, data: bytes) -> bytes:
        """Record a receiver's bytes."""
        self.heard += data
        self.asked += data
        return data

    def answers(self, _sent: int, data: bytes) -> bytes:
        """Record a donor's bytes."""
        self.heard += data
        self.answered.set()
        return data


@dataclass
class Proxy:
    """Forwards connections to ``target``; ``answers`` may change the bytes that come back."""

    target: str
    answers: Pass = unchanged
    requests: Callable[[bytes], bytes] = bytes
    sent: int = 0
    _sockets: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._run(self._accept)

    def close(self) -> None:
        """Close everything and wait for the threads."""
        self._end(self._listener)
        self._threads[0].join(
            10
        )  # The thread that accepts: all sockets are known when it has ended.
        for sock in self._sockets:
            self._end(sock)
        for thread in self._threads:
            thread.join(10)

    @staticmethod
    def _end(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def _run(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        host, port = self.target.split(":")
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(inner)
            try:
                outer = socket.create_connection((host, int(port)))
            except OSError:
                inner.close()
                continue
            self._sockets.append(outer)
            self._run(self._upward, inner, outer)
            self._run(self._downward, outer, inner)

    def _upward(self, inner: socket.socket, outer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := inner.recv(65536):
                outer.sendall(self.requests(data))
            outer.shutdown(socket.SHUT_WR)

    def _downward(self, outer: socket.socket, inner: socket.socket) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := outer.recv(65536):
                passed = self.answers(sent, data)
                if passed is None:
                    break
                inner.sendall(passed)
                sent += len(data)
                self.sent += len(data)
        for sock in (outer, inner):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
