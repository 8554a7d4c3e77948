"""How the ranks of one build find each other through a TCPStore, and how the search is ended.

Gloo publishes one record per rank in a store and waits for the others'. ``Rendezvous`` is that
store: it hands the records on to the TCPStore under the build's prefix, remembers the addresses in
them (an abort knows the group's connections by those), and can be cancelled from another thread.

A cancelled build writes empty records for all ranks it still waits for: that wakes its own waiter
and tells the others that this try is dead. Empty records never reach Gloo.

Not here: connecting, and what is done with the addresses (gloo.py, sockets.py).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import DistError

from ftrun import clock
from ftrun.errors import PeerError
from ftrun.process_groups.base import AbortSignal, GroupAborted
from ftrun.process_groups.sockets import Address

_LENGTH = struct.Struct("=Q")
_SEQUENCE = struct.Struct("=q")
_CANCELLED = b""


@dataclass(frozen=True)
class RankRecord:
    """What a rank publishes: where its Gloo device listens, and how each peer shall name itself.

    ``greetings[i]`` is what rank i sends first on its connection to this rank.
    """

    address: Address
    greetings: tuple[int, ...]


class Rendezvous(Store):
    """The store that one Gloo build sees."""

    def __init__(
        self,
        store_addr: str,
        prefix: str,
        rank: int,
        world_size: int,
        deadline: float,
        signal: AbortSignal,
    ) -> None:
        super().__init__()
        self.records: dict[int, RankRecord] = {}
        self._rank = rank
        self._world_size = world_size
        self._prefix = prefix
        self._deadline = deadline
        self._signal = signal
        self._lock = threading.Lock()
        self._store: Any = connect_store(store_addr, deadline)
        # A TCPStore client that waits is deaf, so cancelling has one of its own.
        self._canceller: Any = connect_store(store_addr, deadline)

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]  # bytes it is.
        """Publish a record. Called by Gloo."""
        self._signal.check()
        self._remember(key, value)
        self._client().set(self._name(key), bytes(value))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for records. Called by Gloo."""
        for key in keys:
            self.get(key)

    def get(self, key: str) -> bytes:
        """A record, as soon as it is there. Called by Gloo."""
        self._signal.check()
        remaining_s = self._deadline - clock.now()
        if remaining_s <= 0:
            raise PeerError(f"no word from rank {_rank_of(key)} within the build's deadline")
        store = self._client()
        store.set_timeout(timedelta(seconds=remaining_s))
        try:
            value: bytes = store.get(self._name(key))
        except DistError as error:
            raise PeerError(f"no word from rank {_rank_of(key)}: {error}") from error
        self._signal.check()
        if value == _CANCELLED:
            raise GroupAborted("a peer has given this build up")
        self._remember(key, value)
        return value

    def cancel(self) -> None:
        """Wake the waiter of this build and of all its peers. From any thread."""
        with self._lock, contextlib.suppress(DistError):
            for rank in range(self._world_size):
                if rank not in self.records and self._canceller is not None:
                    self._canceller.set(self._name(f"0/{rank}"), _CANCELLED)

    def close(self, failed: bool) -> None:
        """Remove this rank's record, or all of them when the build has failed; hang up."""
        ranks = range(self._world_size) if failed else (self._rank,)
        with self._lock:
            canceller, self._canceller, self._store = self._canceller, None, None
            with contextlib.suppress(DistError):
                for rank in ranks:
                    if canceller is not None:
                        canceller.delete_key(self._name(f"0/{rank}"))

    def _client(self) -> Any:
        if self._store is None:
            raise PeerError("the build is over; its store is closed")
        return self._store

    def _name(self, key: str) -> str:
        return f"ftrun/{self._prefix}/{key}"

    def _remember(self, key: str, value: bytes) -> None:
        self.records[_rank_of(key)] = parse_record(bytes(value))


def connect_store(store_addr: str, deadline: float) -> TCPStore:
    """A fresh client of the TCPStore at ``host:port``.

    Raises:
        PeerError: nobody listens there, or the deadline has passed.
    """
    host, _, port = store_addr.rpartition(":")
    host = host.strip("[]")
    remaining_s = max(deadline - clock.now(), 0.001)
    try:
        # TCPStore would retry a refused connection and fill stderr with stack traces.
        socket.create_connection((host, int(port)), timeout=remaining_s).close()
        return TCPStore(
            host,
            int(port),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=remaining_s),
        )
    except (OSError, DistError) as error:
        raise PeerError(f"the store at {store_addr} cannot be reached: {error}") from error


def local_address(store_addr: str) -> str:
    """The numeric address of the interface that leads to ``store_addr``."""
    host, _, port = store_addr.rpartition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # A datagram socket: nothing is sent.
        return str(probe.getsockname()[0])


def parse_record(value: bytes) -> RankRecord:
    """Read the record that Gloo publishes for a rank: host name, socket address, greetings.

    Layout of gloo's tcp transport: a 64-bit length and the host name, a 64-bit length and the
    address (``sockaddr_storage`` and a sequence number), then a 64-bit number for each rank.

    Raises:
        PeerError: it has another layout.
    """
    try:
        (name_length,) = _LENGTH.unpack_from(value, 0)
        offset = _LENGTH.size + name_length
        (address_length,) = _LENGTH.unpack_from(value, offset)
        offset += _LENGTH.size
        address = _parse_socket_address(value[offset : offset + address_length])
        greetings = [
            number for (number,) in _SEQUENCE.iter_unpack(value[offset + address_length :])
        ]
    except (struct.error, ValueError) as error:
        raise PeerError(f"a Gloo rank record cannot be read: {error}") from error
    return RankRecord(address, tuple(greetings))


def _parse_socket_address(value: bytes) -> Address:
    family, port = struct.unpack("=H", value[:2])[0], struct.unpack("!H", value[2:4])[0]
    if family == socket.AF_INET:
        return socket.inet_ntop(family, value[4:8]), port
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, value[8:24]), port
    raise ValueError(f"address family {family}")


def _rank_of(key: str) -> int:
    return int(key.rpartition("/")[2])
