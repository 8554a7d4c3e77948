"""Feeds a server: the code common to all kinds, over sockets.

Not here: the list of servers (servers.py).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from random import Random

import psutil

ANSWER_S = 10.0
SILENCE_S = 0.05
TRIES = 100
TOGETHER = 16
"""The number of inputs in flight at the same time."""
FINDINGS_MAX = 100


class Server:
    """A process and one way to feed it. ``feed`` counts what was accepted and refused."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wrong: list[str] = []

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process."""

    def stop(self) -> None:
        """End it."""

    def pid(self) -> int:
        """The pid of the server."""
        raise NotImplementedError

    def one(self, rng: Random) -> bool:
        """Feed one input; True if it was accepted."""
        raise NotImplementedError

    def is_well(self) -> str:
        """Its present fault; empty: it serves valid clients."""
        raise NotImplementedError

    def feed(self, numbers: Iterable[int], seed: int) -> tuple[int, int]:
        """Feed the inputs with these numbers; returns how many were accepted and refused."""

        def feed_one(number: int) -> bool | None:
            if len(self.wrong) > FINDINGS_MAX:
                return None
            try:
                return self.one(Random(f"{seed}/{number}"))
            except (OSError, AssertionError) as error:
                self.wrong.append(f"input {seed}/{number}: {error!r}")
                return None

        with ThreadPoolExecutor(TOGETHER) as pool:
            found = list(pool.map(feed_one, numbers))
        return found.count(True), found.count(False)

    def rss(self) -> int:
        """Its resident memory; 0 if it has ended."""
        try:
            return int(psutil.Process(self.pid()).memory_info().rss)
        except psutil.NoSuchProcess:
            return 0

    def findings(self) -> list[str]:
        """Behaviour that was not as declared."""
        why = self.is_well()
        return [*self.wrong, *([why] if why else [])]


def words(known: bool) -> str:
    """The words of a server's name."""
    return "with the token" if known else "without"


def connected(address: str) -> socket.socket:
    """A connection; it is retried while a server's port is handed over to its successor, like
    agents do."""
    host, port = address.split(":")
    for _ in range(TRIES):
        with contextlib.suppress(ConnectionError):
            return socket.create_connection((host, int(port)), ANSWER_S)
        time.sleep(SILENCE_S)
    return socket.create_connection((host, int(port)), ANSWER_S)


def listen(sock: socket.socket, data: bytes) -> bytes:
    """Send all, and read until the server is silent: these servers close after our end does."""
    answer = bytearray()
    with contextlib.suppress(ConnectionError, TimeoutError):
        sock.sendall(data)
        sock.settimeout(SILENCE_S)
        while found := sock.recv(65536):
            answer += found
    return bytes(answer)


def exchange(sock: socket.socket, data: bytes) -> bytes:
    """Send all, shut down the sending side, and read to the end."""
    answer = bytearray()
    sock.settimeout(ANSWER_S)
    try:
        sock.sendall(data)
        socket.socket.shutdown(sock, socket.SHUT_WR)  # Of a TLS socket, too: it can still read.
        while found := sock.recv(65536):
            answer += found
    except TimeoutError:
        raise AssertionError("no answer") from None
    except OSError:
        pass  # the server has ended the connection before
    return bytes(answer)
