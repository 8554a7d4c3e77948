"""Lines that a set-up prints: a newcomer, which runs it again, does not print them again.

A worker leaves the lines that it has printed before its first step to its successor, in a file of
its slot: a checksum of each, by its words alone, because times and other numbers differ. What a
newcomer prints on its way to its place is compared with them as it comes, a line at a time, and
dropped if its predecessor had printed it, so often at most. What that had not printed is
shown, and a notice says so once. If the newcomer begins at the beginning after all, the lines that
were dropped are shown.

Not here: lines of steps that are repeated (printed.py), files (rewriting.py).
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from typing import TYPE_CHECKING

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.printed import PIECES, Streams
from ftrun.inject.zero_edit.values.journal import Journal, read

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

FILE = "repeated-{replica_id}.{group_rank}"
LINES_MAX = 4_096
"""Of one stream that are left to a successor, if they differ."""
LINE_BYTES_MAX = 64 << 10
DROPPED_BYTES_MAX = 1 << 20
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WORDS = re.compile(r"[^\W_]+")


class Repeated(Streams):
    """The lines of one worker's set-up. It ends when a newcomer stands where its peers are."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        path, self._script = script.file(FILE), script
        self._journal = Journal(path)
        self._own: list[Counter[int]] = [Counter(), Counter()]
        self._theirs: list[Counter[int]] | None = None
        self._held = [b"", b""]  # what there is of a line that may be dropped
        self._dropped: list[tuple[int, bytes]] = []
        self._dropped_bytes = 0
        for (known,), _ in read(path)[:1]:
            self._theirs = [Counter({int(x): n for x, n in one.items()}) for one in known]
        self.begins()

    def are_left(self) -> None:
        """This worker begins at the beginning: its set-up is over, and left to a successor."""
        self.ends()
        for number, piece in self._dropped:
            self.plain[number](piece)
        self._journal.begin([self._own])

    def _write(self, number: int, given: bytes) -> None:
        is_compared = self._theirs is not None and self._script.is_on_its_way()
        if not is_compared:
            self.plain[number](given)
        for piece in PIECES.findall(given):
            line = self._held[number] + piece
            is_line = line.endswith(b"\n") or len(line) > LINE_BYTES_MAX
            self._held[number] = b"" if is_line else line
            if not is_line:
                continue
            key, own = _checksum(line), self._own[number]
            if key in own or len(own) < LINES_MAX:
                own[key] += 1
            if is_compared:
                self._compare(number, line, key)

    def _compare(self, number: int, line: bytes, key: int) -> None:
        assert self._theirs is not None, "it is asked of a successor"
        if self._theirs[number][key]:
            self._theirs[number][key] -= 1
            self._dropped_bytes += len(line)
            if self._dropped_bytes <= DROPPED_BYTES_MAX:
                self._dropped.append((number, line))
            return
        told.once(
            f"rank {self._script.mates.rank} repeats its set-up. Lines that its predecessor had "
            "printed are hidden; those that differ are shown"
        )
        self.plain[number](line)


def _checksum(line: bytes) -> int:
    """Of the words of a line, as a terminal shows it in the end. What has a digit is no word."""
    shown = line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]
    words = (x for x in _WORDS.findall(_CODES.sub("", shown)) if x.isalpha())
    return zlib.crc32(" ".join(words).encode())
