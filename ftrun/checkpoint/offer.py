"""One state on offer: live tensors at first, a host copy once the optimizer is about to run.

A sender is inside the offer's gate only while it hashes a chunk or passes bytes to the kernel,
never while it waits for a receiver. ``retire`` waits at most as long as the copy would take, if the
receivers can finish in that time. Then it closes the gate and makes the copy. So a receiver delays
a donor's step by at most twice the time of a memory copy. Each request lists the chunks that the
receiver lacks from all donors, and only those are copied.

Not here: the requests (requests.py), the server (serve.py).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xxhash

from ftrun.base import clock
from ftrun.checkpoint.gate import Gate
from ftrun.checkpoint.layout import CHUNK_BYTES, Layout, allocate, chunk_hasher, digest_seed
from ftrun.core.ids import StateId, Tag

COPY_IDLE_S = 30.0
"""How long a copy is kept for receivers that send no request."""

COPY_BYTES_PER_S = 4e9
"""The approximate speed of copying into memory that was not used before."""

RECEIVERS_MAX = 4096


@dataclass(slots=True)
class _Receiver:
    """The progress of one receiver. ``served``: a flag per chunk; ``position``: its next chunk.

    ``began``: when it first reported the chunks it lacked, and how many it had then.
    """

    served: bytearray
    position: int = 0
    finished: bool = False
    began: tuple[float, int] | None = None

    @property
    def came(self) -> int:
        """How many chunks it has."""
        return self.served.count(1)

    def finishes_within(self, seconds: float) -> bool:
        """Whether it will have everything within ``seconds``, at its present pace."""
        if self.began is None or self.finished:
            return self.finished
        when, had = self.began
        came = self.came
        pace = (came - had) / max(clock.now() - when, 1e-6)
        return len(self.served) - came <= pace * seconds


class Offer:
    """A state under its tag (S4).

    Attributes:
        gate: a thread that touches the layout's memory is inside it.
        generation: rises when the memory changes, which invalidates earlier views.
        kept: only receivers that catch up get it.
    """

    def __init__(
        self,
        tag: Tag,
        state_id: StateId,
        header: bytes,
        layout: Layout,
        expected: int,
        *,
        kept: bool = False,
    ) -> None:
        self.tag = tag
        self.kept = kept
        self.header = header
        self.gate = Gate()
        self.generation = 0
        self._layout = layout
        self._seed = digest_seed(tag, state_id)
        self._expected = expected
        self._copied: bytearray | None = None
        self._retired = False
        self._receivers: dict[str, _Receiver] = {}
        self._heard_from_at = clock.now()
        self._finished = threading.Event()

    @property
    def nbytes(self) -> int:
        """The size of the state without its header."""
        return self._layout.nbytes

    @property
    def is_retired(self) -> bool:
        """Whether ``retire`` was called: at most a copy is left."""
        return self._retired

    def admit(self, receiver: str) -> bool:
        """Register a receiver; False if the offer was retired without it."""
        with self.gate.inside():
            self._heard_from_at = clock.now()
            if receiver in self._receivers:
                self._receivers[receiver].finished = False
                return not self._retired or self._copied is not None
            late = self._retired and (self._copied is None or self._unseen() <= 0)
            if late or len(self._receivers) >= RECEIVERS_MAX:
                return False
            self._receivers[receiver] = _Receiver(bytearray(self._layout.chunks))
            return True

    def views(self, chunk: int) -> list[memoryview] | None:
        """The chunk's memory, or None if it is no longer offered. Only inside the gate."""
        if self._retired and (self._copied is None or not self._copied[chunk]):
            return None
        return self._layout.views(*self._layout.span(chunk))

    def hasher(self, chunk: int) -> xxhash.xxh3_64:
        """The hasher for the digest that follows a chunk."""
        return chunk_hasher(self._seed, chunk)

    def served(self, receiver: str, chunk: int) -> None:
        """Note that ``receiver`` has been sent ``chunk`` in full."""
        known = self._receivers[receiver]
        known.served[chunk] = 1
        known.position = chunk + 1
        self._heard_from_at = clock.now()

    def lacks(self, receiver: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Note that ``receiver`` lacks only these chunks, because other donors have sent some."""
        known = self._receivers[receiver]
        came, end = known.served, 0
        for first, stop in [*sorted(ranges), (len(came), len(came))]:
            if first > end:
                came[end:first] = b"\x01" * (first - end)
            end = max(end, stop)
        if known.began is None:
            known.began = clock.now(), known.came

    def finish(self, receiver: str) -> None:
        """Note that ``receiver`` is done; the last one frees the copy."""
        known = self._receivers.get(receiver)
        if known is not None:
            known.finished = True
        if not self._outstanding():
            self._finished.set()
        self.release_if_done()

    def wait(self, timeout_s: float) -> bool:
        """Wait until every receiver has finished; False at the timeout."""
        return not self._outstanding() or self._finished.wait(timeout_s)

    def retire(self, copy_bytes_max: int) -> int:
        """Keep a copy of the chunks that receivers still need, as the tensors are about to change.

        Returns the number of bytes copied. Takes at most twice the time of that copy, whatever a
        receiver does.
        """
        copy_s = min(self._lacking_bytes(), copy_bytes_max) / COPY_BYTES_PER_S
        if self._finish_within(copy_s):
            self.wait(copy_s)
        with self.gate.closed():
            if self._retired:
                return 0
            is_wanted = self._outstanding()
            copied = self._copy(copy_bytes_max) if is_wanted else 0
            if not copied and not (is_wanted and self._layout.nbytes == 0):
                self._free()  # a state without a leaf stays: its header holds all of it
            self._retired = True
            self.generation += 1
            return copied

    def release_if_done(self) -> None:
        """Free the copy if every receiver is done, or none has sent a request for long."""
        with self.gate.closed():
            quiet = clock.now() - self._heard_from_at > COPY_IDLE_S
            if self._retired and (quiet or not self._outstanding()):
                self._free()

    def withdraw(self) -> None:
        """End the offer: stop serving it, and free its memory."""
        with self.gate.closed():
            self._retired = True
            self._free()

    def _unseen(self) -> int:
        return self._expected - len(self._receivers)

    def _outstanding(self) -> bool:
        return self._unseen() > 0 or any(not r.finished for r in self._receivers.values())

    def _finish_within(self, seconds: float) -> bool:
        with self.gate.inside():
            each = all(r.finishes_within(seconds) for r in self._receivers.values())
            return each and self._unseen() <= 0

    def _lacking_bytes(self) -> int:
        """The bytes that receivers still lack, as far as this donor knows."""
        with self.gate.inside():
            return min(len(self._wanted_chunks()) * CHUNK_BYTES, self.nbytes)

    def _free(self) -> None:
        self._copied = None
        self._layout = Layout([])
        self.generation += 1

    def _copy(self, copy_bytes_max: int) -> int:
        # Pages of the copy that are never written take no memory.
        layout = Layout([allocate(self._layout.nbytes)])
        flags, copied = bytearray(layout.chunks), 0
        for chunk in self._wanted_chunks():
            start, stop = layout.span(chunk)
            if copied + stop - start > copy_bytes_max:
                break
            [into] = layout.views(start, stop)
            _fill(into, self._layout.views(start, stop))
            flags[chunk] = 1
            copied += stop - start
        self._layout, self._copied = layout, flags
        return copied

    def _wanted_chunks(self) -> list[int]:
        """The chunks that a receiver lacks, starting at the receivers' position, then from the
        beginning."""
        active = [r for r in self._receivers.values() if not r.finished]
        first = min((r.position for r in active), default=0)
        count = self._layout.chunks
        order = [(first + i) % count for i in range(count)]
        return [c for c in order if self._unseen() > 0 or not all(r.served[c] for r in active)]


def _fill(into: memoryview, views: Sequence[memoryview]) -> None:
    """Copy ``views`` end to end; a tensor's memory with all of torch's threads."""
    start = 0
    for view in views:
        part = into[start : start + view.nbytes]
        if view.readonly:
            part[:] = view
        else:
            source = torch.frombuffer(view, dtype=torch.uint8)
            torch.frombuffer(part, dtype=torch.uint8).copy_(source)
        start += view.nbytes
