"""Assigns chunks to streams: stripes are assigned, split and returned.

Streams of all donors take stripes from one supply, so a fast donor delivers more than a slow one.
When the supply is empty, an idle stream takes over the second half of another stream's stripe. If a
stream of another donor has delivered no chunk for ``SLOW_CHUNK_S``, it is cut, and its chunks go to
others. A chunk belongs to one stream at a time, so no two streams write to the same memory.

Not here: connections (donor.py), the fetch itself (heal.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ftrun.base import clock

STRIPE_CHUNKS = 8
SPLIT_FROM_CHUNKS = 4
SLOW_CHUNK_S = 1.0
LOOK_AGAIN_S = 0.05


@dataclass(slots=True, eq=False)
class Stripe:
    """Chunks ``next`` to ``stop`` (exclusive) that one stream of ``donor`` is fetching.

    ``stop`` may fall while the stream fetches; the stream checks it before each chunk. ``cut``
    breaks the stream's connection. ``since``: when it was claimed, or its last chunk came.
    """

    next: int
    stop: int
    donor: str = ""
    cut: Callable[[], None] = field(default=lambda: None)
    since: float = 0.0


class Stripes:
    """The chunks of one state, and the streams that fetch them."""

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks
        self._untouched = 0  # from here on no chunk has been claimed yet
        self._returned: deque[Stripe] = deque()
        self._active: set[Stripe] = set()
        self._missing = chunks
        self._ended = False
        self._changed = threading.Condition()

    @property
    def complete(self) -> bool:
        return self._missing == 0

    @property
    def arrived_chunks(self) -> int:
        return self._chunks - self._missing

    def lacking(self) -> list[tuple[int, int]]:
        """The chunks that have not arrived, as ranges (end exclusive), disjoint, in no order."""
        with self._changed:
            ranges = [(s.next, s.stop) for s in (*self._active, *self._returned)]
            return [*ranges, (self._untouched, self._chunks)]

    def claim(self, donor: str, cut: Callable[[], None]) -> Stripe | None:
        """A stripe for a stream of ``donor``. Waits for one; None when there is nothing to do."""
        with self._changed:
            while not (self._ended or self.complete):
                stripe = self._take() or self._split()
                if stripe:
                    stripe.donor, stripe.cut, stripe.since = donor, cut, clock.now()
                    self._active.add(stripe)
                    return stripe
                self._cut_slow(donor)
                self._changed.wait(LOOK_AGAIN_S)
            return None

    def arrived(self, stripe: Stripe) -> None:
        """Note that the stripe's next chunk has come and is verified."""
        with self._changed:
            stripe.next += 1
            stripe.since = clock.now()
            self._missing -= 1
            if stripe.next >= stripe.stop:
                self._active.discard(stripe)
            if self.complete:
                self._changed.notify_all()

    def give_back(self, stripe: Stripe) -> None:
        """Free the chunks of the stripe that have not arrived."""
        with self._changed:
            self._active.discard(stripe)
            if stripe.next < stripe.stop:
                self._returned.append(Stripe(stripe.next, stripe.stop))
            self._changed.notify_all()

    def resume(self) -> None:
        """Assign stripes again after ``end``, without the chunks that have arrived."""
        with self._changed:
            self._ended = False

    def end(self) -> None:
        """Assign no more stripes."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _take(self) -> Stripe | None:
        if self._returned:
            return self._returned.popleft()
        first, self._untouched = self._untouched, min(self._untouched + STRIPE_CHUNKS, self._chunks)
        return Stripe(first, self._untouched) if first < self._untouched else None

    def _split(self) -> Stripe | None:
        longest = max(self._active, key=lambda s: s.stop - s.next, default=None)
        if longest is None or longest.stop - longest.next < SPLIT_FROM_CHUNKS:
            return None
        middle = (longest.next + longest.stop + 1) // 2
        stripe = Stripe(middle, longest.stop)
        longest.stop = middle
        return stripe

    def _cut_slow(self, donor: str) -> None:
        now = clock.now()
        for stripe in list(self._active):
            if stripe.donor != donor and now - stripe.since > SLOW_CHUNK_S:
                stripe.since = now
                stripe.cut()
