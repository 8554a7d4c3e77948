"""Gloo groups that can be aborted: torch's own cannot wake a waiter.

An abort shuts down the group's connections, so that all waits on them fail, here and at the peers.
There is one exception: a message that Gloo had begun to send or to receive (``tx_`` and ``rx_`` of
its pair.cc) gets no error, and its collective ends only at its timeout. That is rare, but it
happens, so a thread that waits for a collective must also check for an abort.

An abort finds the connections by their addresses: every Gloo pair connects to the listening port of
one member's device, and the members' records (rendezvous.py) contain these ports.

Not here: the records (rendezvous.py), sockets (sockets.py), when to abort (training/groups.py).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ftrun.base.errors import PeerError, UserError
from ftrun.process_groups.base import Place, ProcessGroup
from ftrun.process_groups.built import DEFAULT_TIMEOUT, AbortSignal, BuiltGroup
from ftrun.process_groups.quantized_messages import MessageGroup
from ftrun.process_groups.rendezvous import RankRecord, Rendezvous
from ftrun.process_groups.sockets import (
    count_established,
    find_connections,
    is_listening,
    keep_little_unread,
    shut_down,
)
from ftrun.process_groups.spinning import LOOP, Loop
from ftrun.process_groups.writers import BUILDS, Build, all_sleep, foreign_threads, wait_for_sleep

PIECE_BYTES = 4 << 20
"""Sending this much takes 34 ms at 1 Gbit/s; copying it takes less than 2 ms."""
_WORKER_THREADS = 2
_THREADS = frozenset({LOOP, "pt_gloo_runloop"})
_Native: Any = dist.ProcessGroupGloo  # torch's stub lacks most of it
_GREETING = struct.Struct("=q")
_GREETING_TIMEOUT_S = 1.0
_LATE_S = 0.1
"""After the deadline. Gloo gives up on a silent peer only after five times the limit."""
PROBE_TIMEOUT_S, PROBES_MAX = 1.0, 64
"""Limits for probing peers after a failed build."""


class ProcessGroupGloo(ProcessGroup):
    """Collectives on CPU tensors over TCP. ``timeout`` bounds each collective.

    ``pg`` is torchft's argument for a group to wrap.

    Raises:
        UserError: ``pg`` is given: this class wraps no group.
    """

    def __init__(
        self, timeout: timedelta = DEFAULT_TIMEOUT, pg: dist.ProcessGroup | None = None
    ) -> None:
        if pg is not None:
            raise UserError(
                f"{type(self).__name__}(pg={type(pg).__name__}): it connects groups of its own and "
                "wraps none. Give the group to ProcessGroupWrapper(pg=…)"
            )
        super().__init__(timeout)

    def getBackendName(self) -> str:
        return "ftrun-gloo"

    def _connect(self, place: Place) -> BuiltGroup:
        rendezvous = Rendezvous(
            place.store_addr, place.prefix, place.world_size, place.deadline, place.signal
        )
        unsubscribe = place.signal.subscribe(lambda: _abort_build(rendezvous, place.rank))
        limit_s = place.remaining().total_seconds() + _LATE_S
        timer = threading.Timer(limit_s, _abort_build, (rendezvous, place.rank))
        timer.daemon = True
        timer.start()
        try:
            with BUILDS.build() as build:
                before = foreign_threads()
                native = _connect_pairs(rendezvous, place)
                timer.cancel()  # the rest of the limit bounds the all-reduce
                tids = frozenset(foreign_threads() - before)
                build.is_built = True
            _try_out(native, place)
        except (RuntimeError, PeerError) as error:
            rendezvous.fail()
            if not place.signal.triggered:
                raise _naming(error, rendezvous.records, place.rank) from error
            raise
        finally:
            timer.cancel()
            unsubscribe()
        rendezvous.succeed(place.rank)
        native._set_default_timeout(self.timeout)
        return GlooGroup(
            place.rank, place.world_size, native, place.signal, rendezvous.records, tids, build
        )


class GlooGroup(MessageGroup):
    """One quorum's Gloo connections."""

    piece_bytes = PIECE_BYTES

    def __init__(
        self,
        rank: int,
        world_size: int,
        native: Any,
        signal: AbortSignal,
        records: dict[int, RankRecord],
        tids: frozenset[int],
        build: Build,
    ) -> None:
        super().__init__(rank, world_size, native, signal)
        self._tids, self._build = tids, build
        peers = frozenset(record.address for peer, record in records.items() if peer != rank)
        self._connections = find_connections(records[rank].address, peers)
        # A process with several ranks may have more connections; fewer mean that one is already
        # lost.
        self._count = max(count_established(self._connections), world_size - 1)
        keep_little_unread(self._connections)
        self._loop = Loop(tids, self._connections)
        signal.subscribe(lambda: shut_down(self._connections))

    def is_connected(self) -> bool | None:
        return count_established(self._connections) == self._count

    def shutdown(self) -> None:
        self.abort()
        wait_for_sleep(self.threads_sleep)  # first: some collectives only time out
        super().shutdown()

    def threads_sleep(self) -> bool | None:
        asleep = all_sleep(self._tids, _THREADS)
        if asleep is False and self.aborted and self._loop.spins():
            asleep = all_sleep(self._tids - {self._loop.tid}, _THREADS - {LOOP})
        return asleep if asleep or self._build.has_own_threads else None


def _connect_pairs(rendezvous: Rendezvous, place: Place) -> Any:
    """Let Gloo connect all pairs. Blocks until every peer has come, or the deadline."""
    options = _Native._Options()
    options._timeout = place.remaining()
    options._threads = _WORKER_THREADS
    options._devices = [_Native.create_device(hostname=place.host, lazy_init=False)]
    native = _Native(rendezvous, place.rank, place.world_size, options)
    address = rendezvous.records[place.rank].address
    if not is_listening(address):
        raise PeerError(f"Gloo published {address}, at which this process does not listen")
    return native


def _try_out(native: Any, place: Place) -> None:
    """All-reduce once. When that ends, all ranks have read all records, and connections are
    warm."""
    native.allreduce([torch.ones(1)]).wait(place.remaining())


def _naming(error: Exception, records: dict[int, RankRecord], rank: int) -> PeerError:
    """A PeerError for a failed build, with the host of an unreachable peer if there is one.

    A peer that refuses a connection does not count: it may have given up the build too.
    """
    failure = PeerError(str(error))
    failure.unreached = error.unreached if isinstance(error, PeerError) else ""
    peers = [record.address for peer, record in records.items() if peer != rank]
    for address in [] if failure.unreached else peers[:PROBES_MAX]:
        try:
            socket.create_connection(address, timeout=PROBE_TIMEOUT_S).close()
        except ConnectionRefusedError:
            continue
        except OSError:
            failure.unreached = address[0]
            break
    return failure


def _abort_build(rendezvous: Rendezvous, rank: int) -> None:
    """End a build, whether it waits for a record, a connection or a peer's call."""
    rendezvous.interrupt()
    records = dict(rendezvous.records)
    own = records.pop(rank, None)
    peers = frozenset(record.address for record in records.values())
    shut_down(find_connections(own.address if own is not None else None, peers))
    if own is not None:
        _greet_in_place_of_peers(own)


def _greet_in_place_of_peers(own: RankRecord) -> None:
    """Connect to this rank's device as each peer would, and close.

    A pair that waits for its peer's connection has no connection yet that could be shut down.
    """
    for greeting in own.greetings:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(own.address, timeout=_GREETING_TIMEOUT_S) as caller,
        ):
            caller.sendall(_GREETING.pack(greeting))
