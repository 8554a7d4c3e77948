"""The bounded queue of one end of a stream: encoded messages that wait for the next batch.

It never blocks its producer. If a peer does not drain its messages the queue overflows, and the
owner then cuts the stream. Not here: Envelopes and batches (streams.py), the call that sends them
(rpc.py, serving.py).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque

from ftrun.protocol.streams import take_batch


class SendQueue:
    """Envelopes in order. Used in one event loop.

    Attributes:
        overflown: set once the queue exceeded its limits; it is empty from then on.
    """

    def __init__(self, messages_max: int, bytes_max: float = math.inf) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._envelopes: deque[bytes] = deque()
        self._nbytes = 0
        self._is_closed = False
        self._changed = asyncio.Event()
        self.overflown = asyncio.Event()

    def put(self, envelope: bytes) -> bool:
        """Queue for sending. False: it was dropped, because the queue is closed or has
        overflowed."""
        if self._is_closed or self.overflown.is_set():
            return False
        self._envelopes.append(envelope)
        self._nbytes += len(envelope)
        if len(self._envelopes) > self._messages_max or self._nbytes > self._bytes_max:
            self._envelopes.clear()
            self.overflown.set()
            return False
        self._changed.set()
        return True

    def close(self) -> None:
        """Accept no more. What is queued can still be sent."""
        self._is_closed = True
        self._changed.set()

    async def next_batch(self) -> bytes | None:
        """The batch to send next; waits for one. None: the queue is closed and empty."""
        while not self._envelopes:
            if self._is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        batch = take_batch(self._envelopes)
        self._nbytes = sum(map(len, self._envelopes))
        return batch
