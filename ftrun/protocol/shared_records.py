"""Caches for the records that thousands of messages share (``SHARED``).

At a death all workers report the same attempt, state and quorum. Their bytes are left undecoded
inside the message (shallow.py), so equal bytes are decoded and validated once, and decode to the
same object. This is only an optimisation: without these caches the protocol is the same, but too
slow for more than some 100 replica groups.

A cache is an LRU cache of fixed size. When a quorum passes, the records of workers that are gone
are dropped (Q8). Not here: how a record is encoded (records.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ftrun.core import ids, messages
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.protocol.shallow import ShallowMessages

QUORUMS_KEPT = 8
WORKERS_KEPT = 16_384
"""Records kept of a class with one record per worker: enough for a job of that size."""
GONE_KEPT = 512
GONE_PER_WORKER = 3
"""Records of dead workers may stay: ``GONE_KEPT`` + ``GONE_PER_WORKER`` × workers (Q8)."""
ATTEMPTS_KEPT = 256
"""Records kept of a class that all workers send alike, with a new value per attempt or step."""

SHARED: dict[type, int] = {
    ids.Attempt: ATTEMPTS_KEPT,
    ids.Tag: ATTEMPTS_KEPT,
    ids.StateId: ATTEMPTS_KEPT,
    Quorum: QUORUMS_KEPT,
    messages.Built: ATTEMPTS_KEPT,
    messages.InForce: ATTEMPTS_KEPT,
    messages.Promised: ATTEMPTS_KEPT,
    ids.WorkerKey: WORKERS_KEPT,
    Endpoint: WORKERS_KEPT,
    Member: WORKERS_KEPT,
    messages.RunningReplica: WORKERS_KEPT,
}
"""The classes whose records recur, and how many records of each are kept."""

_SHALLOW = ShallowMessages({cls.__name__ for cls in SHARED})

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


def shallow_class(name: str) -> Any:
    """The protobuf class of this name, in which fields of ``SHARED`` classes are bytes."""
    return _SHALLOW.of(name)


class SharedRecords:
    """The caches of a process: for each class, recently encoded and decoded records."""

    def __init__(self) -> None:
        self._of_workers: list[Any] = []

    def cached(self, cls: type, encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
        """``encode`` and ``decode`` of a class in ``SHARED``, with a cache each."""
        if cls is Quorum:
            return self._cached_quorums(encode, decode)
        kept = SHARED[cls]
        caches = functools.lru_cache(kept)(encode), functools.lru_cache(kept)(decode)
        if kept == WORKERS_KEPT:
            self._of_workers += caches
        return caches

    def _cached_quorums(self, encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
        """Cache quorums, by far the largest record: every agent sends and receives the same one.

        Comparing or hashing two of them takes as long as encoding one. So encoding caches only the
        last quorum, by identity; decoding caches the last few, by their bytes.
        """
        last: tuple[Quorum | None, bytes] = (None, b"")

        def encode_cached(quorum: Quorum) -> bytes:
            nonlocal last
            known, data = last
            if known is not quorum:
                data = encode(quorum)
                self._forget_the_gone(quorum)
                last = (quorum, data)  # one assignment: other threads see both or neither
            return data

        @functools.lru_cache(QUORUMS_KEPT)
        def decode_cached(data: bytes) -> Quorum:
            quorum: Quorum = decode(data)
            self._forget_the_gone(quorum)
            return quorum

        return encode_cached, decode_cached

    def _forget_the_gone(self, quorum: Quorum) -> None:
        """Clear the caches of workers' records that hold more than this quorum accounts for.

        Each incarnation leaves records that are no longer used, and brings a new quorum. Records
        that are still in use return to the cache soon.
        """
        workers = sum(max(1, len(member.endpoints)) for member in quorum.members)
        count = GONE_KEPT + (1 + GONE_PER_WORKER) * workers
        for cache in self._of_workers:
            if cache.cache_info().currsize > count:
                cache.cache_clear()
