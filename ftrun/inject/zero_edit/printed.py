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


class Printed:
    """The lines of one worker, on its standard output and its standard error.

    Attributes:
        at_place: where the streams stood at the last place.
    """

    def __init__(self, board: Board, rank: int) -> None:
        self._process, self._lock, self._is_busy = os.getpid(), threading.RLock(), False
        self._repeats: Callable[[], bool] | None = None
        self.at_place: Sequence[Position] = ((0, 0), (0, 0))
        self._own: list[Position] = [*self.at_place]
        self._sent: list[Sent] = []
        for name, words in zip(STREAMS, (PRINTED[:3], PRINTED[3:]), strict=True):
            raw: Any = getattr(getattr(sys, name), "buffer", None)  # bootstrap.py: Descriptor
            sent = Sent(board, rank, words, _descriptor_of(raw), getattr(raw, "write", len))
            if hasattr(raw, "__dict__"):
                raw.write = self._writer(len(self._sent), raw.write)
            self._sent.append(sent)
        self._until = [sent.position() for sent in self._sent]

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

    def _writer(self, number: int, plain: Callable[[bytes], int]) -> Callable[[bytes], int]:
        def write(given: bytes) -> int:
            rest = bytes(given)
            if os.getpid() != self._process or rest.startswith(told.BEGIN.encode()):
                return plain(given)
            with self._lock:
                if self._is_busy:  # a signal's handler, in the middle of another line
                    return plain(given)
                self._is_busy = True
                try:
                    self._write(number, rest, plain, drops=self._drops())
                finally:
                    self._is_busy = False
            return len(given)

        return write

    def _write(
        self, number: int, given: bytes, plain: Callable[[bytes], int], *, drops: bool
    ) -> None:
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
                plain(piece)
            elif lines == until and (rest := piece[within - own :] or piece[-1:] * is_line):
                sent.write(rest)  # its predecessor has written the begin of this line


def _descriptor_of(raw: Any) -> int | None:
    try:
        found: int = raw.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return found
