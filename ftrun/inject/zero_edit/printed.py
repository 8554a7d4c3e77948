"""Lines that a worker prints: its replacement, which repeats some steps, does not print them again.

A worker's lines are counted on its node's board (sent.py), and each generation has how many they
were at its place. What its replacement prints from there on is dropped until it has come to the
same number: where the stream is written to its descriptor, so that the script finds it as it
is. How many lines a step prints may depend on the clock, as of a progress bar below another. So
nothing is dropped any more once it has begun a call that its predecessor had not ended. An error's
lines are never dropped, as the predecessor may not have had it.

Not here: files (appended.py), notices of ftrun's (told.py).
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.sent import Position, Sent
from ftrun.snapshots.board import PRINTED, Board

STREAMS = ("stdout", "stderr")
PIECES = re.compile(rb"[^\n]*\n|[^\n]+")
"""A line, or what there is of one."""


class Streams:
    """Stands where a worker's standard output and standard error are written to their descriptors:
    gets what the worker itself writes there, but for notices of ftrun's.

    ``raws``: the streams; ``plain``: by number, what writes to them.
    """

    def __init__(self) -> None:
        self._process, self._lock, self._is_busy = os.getpid(), threading.RLock(), False
        # bootstrap.py: Descriptor
        self.raws: list[Any] = [getattr(getattr(sys, x), "buffer", None) for x in STREAMS]
        self.plain: list[Callable[[bytes], int]] = [getattr(x, "write", len) for x in self.raws]

    def begins(self) -> None:
        """Be asked from now on."""
        self._put([self._writer(number) for number in range(len(self.raws))])

    def ends(self) -> None:
        """Be asked no more."""
        self._put(self.plain)

    def _put(self, writers: Sequence[Callable[[bytes], int]]) -> None:
        for raw, writer in zip(self.raws, writers, strict=True):
            if hasattr(raw, "__dict__"):
                raw.write = writer

    def _writer(self, number: int) -> Callable[[bytes], int]:
        plain = self.plain[number]

        def write(given: bytes) -> int:
            rest = bytes(given)
            if not rest or os.getpid() != self._process or rest.startswith(told.BEGIN.encode()):
                return plain(given)
            with self._lock:
                if self._is_busy:  # a signal's handler, in the middle of another line
                    return plain(given)
                self._is_busy = True
                try:
                    self._write(number, rest)
                finally:
                    self._is_busy = False
            return len(given)

        return write

    def _write(self, number: int, given: bytes) -> None:
        """What is written to a stream."""
        raise NotImplementedError


class Printed(Streams):
    """The lines of one worker, on its standard output and its standard error.

    Attributes:
        at_place: where the streams stood at the last place.
    """

    def __init__(self, board: Board, rank: int) -> None:
        super().__init__()
        self._repeats: Callable[[], bool] | None = None
        self.at_place: Sequence[Position] = ((0, 0), (0, 0))
        self._own: list[Position] = [*self.at_place]
        words = PRINTED[:3], PRINTED[3:]
        self._sent = [
            Sent(board, rank, of_stream, _descriptor_of(raw), plain)
            for of_stream, raw, plain in zip(words, self.raws, self.plain, strict=True)
        ]
        self._until = [sent.position() for sent in self._sent]
        self.begins()

    def counts(self) -> tuple[Position, ...]:
        """Where the streams stand now, counted from this worker's first line."""
        return tuple(self._own)

    def goes_on(self, counts: Sequence[Sequence[int]], repeats: Callable[[], bool]) -> None:
        """This worker stands at its place, at which its predecessor's streams stood there.

        ``repeats``: whether it still does what its predecessor has done.
        """
        self._own = [(lines, within) for lines, within in counts]
        self._repeats = repeats

    def _drops(self) -> bool:
        if self._repeats is not None and not self._repeats():
            self._repeats, self._until = None, [*self._own]
            for sent, (lines, _) in zip(self._sent, self._own, strict=True):
                sent.stands_at(lines)
        return self._repeats is not None and sys.exc_info()[0] is None

    def _write(self, number: int, given: bytes) -> None:
        drops = self._drops()
        sent, (until, within) = self._sent[number], self._until[number]
        for piece in PIECES.findall(given):
            before = lines, own = self._own[number]
            is_line = piece.endswith(b"\n")
            self._own[number] = (lines + 1, 0) if is_line else (lines, own + len(piece))
            if before >= (until, within):
                if sent.position() != before:
                    sent.stands_at(lines)
                sent.write(piece)
            elif not drops:
                self.plain[number](piece)
            elif lines == until and (rest := piece[within - own :] or piece[-1:] * is_line):
                sent.write(rest)  # its predecessor has written the begin of this line


def _descriptor_of(raw: Any) -> int | None:
    try:
        found: int = raw.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return found
