"""Lines that a worker prints: its replacement, which repeats some steps, does not print them again.

A worker counts on its node's board the lines that it has printed, and each generation has how many
they were at its place. What its replacement prints from there on is dropped until it has come to
the same number: where the stream is written to its descriptor, so that the script finds it as it
is. How many lines a step prints may depend on the clock, as of a progress bar below another. So
nothing is dropped any more once it has begun a call that its predecessor had not ended. An error's
lines are never dropped, as the predecessor may not have had it.

Not here: files (appended.py), notices of ftrun's (told.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ftrun.inject.zero_edit import told
from ftrun.snapshots.area import Board, Word

STREAMS = ("stdout", "stderr")
WORDS = (Word.PRINTED, Word.PRINTED_ERRORS)


class Printed:
    """The lines of one worker, on its standard output and its standard error.

    Attributes:
        at_place: how many there were at the last place.
    """

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank, self._process = board, rank, os.getpid()
        self._until = [board.read(rank, word) for word in WORDS]
        self._counts = [0 for _ in STREAMS]
        self._repeats: Callable[[], bool] | None = None
        self.at_place: Sequence[int] = (0, 0)
        for number, name in enumerate(STREAMS):
            raw: Any = getattr(getattr(sys, name), "buffer", None)  # bootstrap.py: Descriptor
            if hasattr(raw, "__dict__"):
                raw.write = self._writer(number, raw.write)

    def counts(self) -> tuple[int, ...]:
        """How many lines there are now."""
        return tuple(self._counts)

    def goes_on(self, counts: Sequence[int], repeats: Callable[[], bool]) -> None:
        """This worker stands at its place, at which its predecessor had printed so many.

        ``repeats``: whether it still does what its predecessor has done.
        """
        self._counts, self._repeats = list(counts), repeats

    def _drops(self) -> bool:
        if self._repeats is not None and not self._repeats():
            self._repeats, self._until = None, list(self._counts)
            for word, count in zip(WORDS, self._counts, strict=True):
                self._board.set(self._rank, word, count)
        return self._repeats is not None and sys.exc_info()[0] is None

    def _writer(self, number: int, plain: Callable[[bytes], int]) -> Callable[[bytes], int]:
        def write(given: bytes) -> int:
            rest = bytes(given)
            if os.getpid() != self._process or rest.startswith(told.BEGIN.encode()):
                return plain(given)
            drops, before, until = self._drops(), self._counts[number], self._until[number]
            self._counts[number] += rest.count(b"\n")
            if drops and before < until:
                rest = b"".join(rest.split(b"\n", until - before)[until - before :])
            if rest:
                plain(rest)
            if self._counts[number] > max(before, until):
                self._board.set(self._rank, WORDS[number], self._counts[number])
            return len(given)

        return write
