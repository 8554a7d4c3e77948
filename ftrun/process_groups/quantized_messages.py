"""A quantized all-reduce in the background, by messages between the ranks of one group.

The parts are those of quantized.py. An owner sends its part when its peers' messages have come, at
a different time on each rank. A collective there could pair with another collective of a peer.
Messages with unique tags cannot. A thread of the group waits for the messages, adds them up, and
sends the sums. It never touches the script's tensors, so an abort need not wait for it.

Not here: the use of the result (training/quantized_reductions.py).
"""

from __future__ import annotations

import queue
import threading
from collections import deque

import torch
from torch.distributed import Work

from ftrun.base.errors import PeerError
from ftrun.process_groups import built
from ftrun.process_groups.codec import ROW_BYTES, Codec, rows_of
from ftrun.process_groups.quantized import add_up

FIRST_TAG = 1 << 30
"""Lower tags are the script's, for its own messages on the same connections."""
TAGS = 1 << 30
JOIN_TIMEOUT_S = 2.0
PIECE_VALUES = 1 << 20
UNDER_WAY_MAX = 8
"""Pieces whose sums are sent before the thread waits for the sums of the first of them."""


class MessageGroup(built.BuiltGroup):
    """A group whose messages have tags, so that it can reduce in the background."""

    _messages: QuantizedMessages | None = None

    def allreduce_quantized(self, tensor: torch.Tensor, factor: float, codec: Codec) -> Work:
        if self._messages is None:
            self._messages = QuantizedMessages(self, self._signal)
        return self._messages.allreduce(tensor, factor, codec)

    def shutdown(self) -> None:
        super().shutdown()
        if self._messages is not None:
            self._messages.join()


class QuantizedMessages:
    """The quantized all-reduces of one group. All ranks must start the same ones in the same
    order."""

    def __init__(self, group: built.BuiltGroup, signal: built.AbortSignal) -> None:
        self._group = group
        self._signal = signal
        self._started = 0
        self._queue: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def allreduce(self, tensor: torch.Tensor, factor: float, codec: Codec) -> Work:
        """Begin to sum ``tensor`` times ``factor``. Returns a QuantizedWork, or a Work with an
        error."""
        if self._signal.triggered:
            return built.FinishedWork(error=built.GroupAborted("the process group was aborted"))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ftrun-quantized", daemon=True)
            self._thread.start()
            self._signal.subscribe(lambda: self._queue.put(None))
        parts = [tensor]
        if tensor.is_contiguous() and tensor.numel() > PIECE_VALUES:
            parts = list(torch.split(tensor.view(-1), PIECE_VALUES))
        whole = _Whole(len(parts))
        for part in parts:
            tag = FIRST_TAG + (2 * self._started) % TAGS
            self._started += 1
            piece = _Piece(self._group, part, factor, codec, tag, whole)
            whole.sums.append(piece.sums.view(-1, ROW_BYTES))
            piece.send_rows()
            self._queue.put(piece)
        return whole

    def join(self) -> None:
        """After the abort, wait for the thread, which must not outlive the interpreter."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        waiting: deque[_Piece] = deque()
        while not self._signal.triggered:
            try:
                work = self._queue.get(block=not waiting)
            except queue.Empty:
                waiting.popleft().finish()
                continue
            if work is None:
                break
            if work.send_sums():
                waiting.append(work)
            if len(waiting) >= UNDER_WAY_MAX:
                waiting.popleft().finish()
        self._fail_all(waiting)

    def _fail_all(self, waiting: deque[_Piece]) -> None:
        while not self._queue.empty():
            work = self._queue.get()
            if work is not None:
                waiting.append(work)
        for work in waiting:
            work.fail(built.GroupAborted("the process group was aborted"))


class _Whole(built.QuantizedWork):
    """One all-reduce of several pieces. The group's thread completes them in order."""

    def __init__(self, pieces: int) -> None:
        super().__init__([], PIECE_VALUES)
        self._left = pieces
        self._ending = threading.Lock()  # a piece may fail in either thread

    def piece_ended(self) -> None:
        """Note that one more piece has its sums."""
        self._left -= 1
        if self._left == 0:
            self.future.set_result([])

    def fail(self, error: Exception) -> None:
        """End with ``error``, unless it has ended."""
        with self._ending:
            if not self.future.done():
                built.fail(self.future, RuntimeError(f"a quantised all-reduce: {error}"))


class _Piece:
    """A part of an all-reduce, so that some parts are encoded and added while others are sent."""

    def __init__(
        self,
        group: built.BuiltGroup,
        tensor: torch.Tensor,
        factor: float,
        codec: Codec,
        tag: int,
        whole: _Whole,
    ) -> None:
        size = group.world_size
        rows = rows_of(tensor, size)
        if factor != 1.0:
            rows = rows * factor
        self._group, self._codec, self._tag = group, codec, tag
        self._own = rows.view(size, -1, rows.shape[1])[group.rank].to("cpu")
        self._sent = codec.encode(rows).to("cpu").view(size, -1, ROW_BYTES)
        self._received = torch.empty_like(self._sent)
        self.sums = torch.empty_like(self._sent)
        self._whole = whole
        self._failed = False
        peers = [peer for peer in range(size) if peer != group.rank]
        self._peers = [*peers[group.rank :], *peers[: group.rank]]  # spread the first sends
        self._sending: list[Work] = []
        self._receiving: list[Work] = []

    def send_rows(self) -> None:
        """Send each owner its part. Messages raise at once if a connection is broken."""
        group, tag = self._group, self._tag
        try:
            self._sending = [group.send([self._sent[p]], p, tag) for p in self._peers]
            self._receiving = [group.recv([self._received[p]], p, tag) for p in self._peers]
        except RuntimeError as error:
            self.fail(error)

    def send_sums(self) -> bool:
        """Wait for the peers' rows of this rank's part, and send their sum. Returns False if it
        failed."""
        if self._failed:
            return False
        group, tag = self._group, self._tag + 1
        try:
            _wait(self._receiving)
            parts = list(self._received.unbind(0))
            total = add_up(self._own, parts, group.rank, self._codec)
            self.sums[group.rank] = self._codec.encode(total)
            own = self.sums[group.rank]
            self._sending += [group.send([own], peer, tag) for peer in self._peers]
            self._receiving = [group.recv([self.sums[p]], p, tag) for p in self._peers]
        except (RuntimeError, ValueError, PeerError, TimeoutError) as error:
            self.fail(error)
            return False
        return True

    def finish(self) -> None:
        """Wait for the peers' sums, which completes the piece."""
        try:
            _wait(self._receiving)
            _wait(self._sending)
        except (RuntimeError, ValueError, PeerError, TimeoutError) as error:
            self.fail(error)
            return
        self._drop()
        self._whole.piece_ended()

    def fail(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            self._drop()
            self._whole.fail(error)

    def _drop(self) -> None:
        """Free the memory that no message uses any more."""
        self._sending, self._receiving = [], []
        del self._own, self._sent, self._received


def _wait(works: list[Work]) -> None:
    for work in works:
        work.wait()
