"""A TCP proxy that delays, stalls, loses and breaks connections on request.

It has two threads per connection. Bytes are never reordered or altered, as TCP promises. Not here:
when it misbehaves (campaign.py).
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time

CHUNK_BYTES = 65536
CONNECTIONS_MAX = 64
TICK_S = 0.02
RESET = struct.pack("ii", 1, 0)
BACKWARD, FORWARD = "backward", "forward"


class Proxy:
    """A proxy between agents and a lighthouse. Faults can be set at any time, from any thread.

    Attributes:
        delay_s: how long each chunk is delayed.
        stalled: the directions in which nothing passes while connections stay open (half-open).
        loss: the probability that a chunk breaks its connection.
    """

    def __init__(self, target: str, seed: int, listen: str = "127.0.0.1:0") -> None:
        host, port = target.rsplit(":", 1)
        here, at = listen.rsplit(":", 1)
        self._target = host, int(port)
        self._rng = random.Random(seed)
        self._listener = socket.create_server((here, int(at)))
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.delay_s = 0.0
        self.loss = 0.0
        self.stalled: frozenset[str] = frozenset()
        self.address = f"{here}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True, name="proxy").start()

    def behave(self) -> None:
        """Clear all faults. Stalled connections continue."""
        self.delay_s, self.loss, self.stalled = 0.0, 0.0, frozenset()

    def reset(self) -> None:
        """Break every connection."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._break(pair)

    def close(self) -> None:
        """Stop."""
        self._closed = True
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target, timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            pair = near, far
            with self._lock:
                full = len(self._pairs) >= CONNECTIONS_MAX
                self._pairs.add(pair)
            if full:
                self._break(pair)
                continue
            for source, sink, way in ((near, far, FORWARD), (far, near, BACKWARD)):
                threading.Thread(
                    target=self._pump, args=(source, sink, way, pair), daemon=True
                ).start()

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        way: str,
        pair: tuple[socket.socket, socket.socket],
    ) -> None:
        try:
            while data := source.recv(CHUNK_BYTES):
                time.sleep(self.delay_s)
                while way in self.stalled and pair in self._pairs:
                    time.sleep(TICK_S)
                if self.loss and self._rng.random() < self.loss:
                    break
                sink.sendall(data)
        except OSError:
            pass
        self._break(pair)

    def _break(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            if pair not in self._pairs:
                return
            self._pairs.discard(pair)
        for sock in pair:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
