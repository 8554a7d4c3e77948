"""How the ranks of a Gloo build find each other through a TCPStore. It can be interrupted.

Gloo publishes one record per rank in a store and waits for the others' records. ``Rendezvous`` is
that store. It forwards the records under the build's prefix, remembers the addresses in them (by
which an abort finds the group's connections), and can be interrupted from another thread.

Not here: connecting (gloo.py), the use of the addresses (sockets.py).
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import Store

from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.process_groups.built import AbortSignal
from ftrun.process_groups.sockets import Address
from ftrun.process_groups.store import StoreClient

_LENGTH = struct.Struct("=Q")
_NUMBER = struct.Struct("=q")
_CLEAN_UP_S = 2.0


@dataclass(frozen=True)
class RankRecord:
    """The record of one rank: the address of its Gloo device, and each peer's greeting.

    ``greetings[i]``: what rank i sends first on its connection to this rank.
    """

    address: Address
    greetings: tuple[int, ...]


class Rendezvous(Store):
    """The store of one Gloo build. It removes its records from the TCPStore at the end.

    Args:
        store_addr: ``host:port`` of the TCPStore.
        prefix: unique to this build.
        world_size: how many ranks publish.
        deadline: of the whole build, on ftrun's clock.
        signal: makes later calls raise GroupAborted; ``interrupt`` wakes a waiting one.
    """

    def __init__(
        self, store_addr: str, prefix: str, world_size: int, deadline: float, signal: AbortSignal
    ) -> None:
        super().__init__()
        self.records: dict[int, RankRecord] = {}
        self._store_addr = store_addr
        self._prefix = prefix
        self._world_size = world_size
        self._signal = signal
        self._client = StoreClient(store_addr, deadline)

    def set(self, key: str, value: bytes) -> None:  # the stub has str
        """Publish a record. Called by Gloo."""
        self._signal.check()
        self._remember(key, value)
        self._client.set(self._name(_rank_of(key)), bytes(value))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for records. Called by Gloo."""
        for key in keys:
            self.get(key)

    def get(self, key: str) -> bytes:
        """A record, as soon as it is there. Called by Gloo."""
        self._signal.check()
        try:
            value = self._client.get(self._name(_rank_of(key)))
        except PeerError as error:
            self._signal.check()
            raise PeerError(f"no record of rank {_rank_of(key)} came: {error}") from error
        self._remember(key, value)
        return value

    def interrupt(self) -> None:
        """Wake the waiting call of this build. From any thread."""
        self._client.interrupt()

    def succeed(self, rank: int) -> None:
        """Remove this rank's record, which all ranks have read, and close."""
        self._remove((rank,), self._client)

    def fail(self) -> None:
        """Remove all records, because the build has failed for all ranks, and close."""
        self._client.close()
        with contextlib.suppress(PeerError):
            client = StoreClient(self._store_addr, clock.now() + _CLEAN_UP_S)
            self._remove(range(self._world_size), client)

    def _remove(self, ranks: Iterable[int], client: StoreClient) -> None:
        # Failing to remove a record is harmless: a few hundred bytes in a store that is probably
        # gone.
        with contextlib.closing(client), contextlib.suppress(PeerError):
            for rank in ranks:
                client.delete(self._name(rank))

    def _name(self, rank: int) -> str:
        return f"ftrun/{self._prefix}/{rank}"

    def _remember(self, key: str, value: bytes) -> None:
        self.records[_rank_of(key)] = parse_record(bytes(value))


def parse_record(value: bytes) -> RankRecord:
    """Parse the record that Gloo publishes for a rank: host name, socket address, greetings.

    Layout of gloo's tcp transport: a 64-bit length and the host name, a 64-bit length and the
    address (``sockaddr_storage`` and a sequence number), then a 64-bit number for each rank.

    Raises:
        PeerError: the record has another layout.
    """
    try:
        (name_length,) = _LENGTH.unpack_from(value, 0)
        start = _LENGTH.size + name_length
        (address_length,) = _LENGTH.unpack_from(value, start)
        start += _LENGTH.size
        address = _parse_socket_address(value[start : start + address_length])
        greetings = [number for (number,) in _NUMBER.iter_unpack(value[start + address_length :])]
    except (struct.error, ValueError) as error:
        raise PeerError(f"a Gloo rank record cannot be read: {error}") from error
    return RankRecord(address, tuple(greetings))


def _parse_socket_address(value: bytes) -> Address:
    (family,), (port,) = struct.unpack_from("=H", value), struct.unpack_from("!H", value, 2)
    if family == socket.AF_INET:
        return socket.inet_ntop(family, value[4:8]), port
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, value[8:24]), port
    raise ValueError(f"address family {family}")


def _rank_of(key: str) -> int:
    return int(key.rpartition("/")[2])
