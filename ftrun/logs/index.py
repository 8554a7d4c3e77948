"""The index of a log: at which byte each stream's output begins, and when it was read.

Each record is one line of text: ``OFFSET STREAM SECONDS``. The stream is ``o`` for stdout, ``e``
for stderr and ``f`` for ftrun's own lines; seconds are since 1970 in UTC. A record is made when the
stream changes, and otherwise at most every ``INTERVAL_S``, which is the precision of the times. It
is written before the bytes that it describes. Not here: the log itself (disk.py, reading.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 0.1
TAIL_BYTES = 1 << 16
OUT, ERR, OWN = "o", "e", "f"
STREAMS = frozenset({OUT, ERR, OWN})


@dataclass(frozen=True, slots=True)
class Record:
    """From byte ``offset`` on, the log contains ``stream``, read at ``time_s``."""

    offset: int
    stream: str
    time_s: float

    def line(self) -> bytes:
        """The record as written to the file."""
        return f"{self.offset} {self.stream} {self.time_s:.3f}\n".encode()


class IndexMaker:
    """Determines which bytes of a log need a record."""

    def __init__(self) -> None:
        self._last: Record | None = None

    def note(self, offset: int, stream: str, time_s: float) -> Record | None:
        """The record for bytes written at ``offset``, if they need one."""
        last = self._last
        is_new = last is None or last.stream != stream
        if not is_new and last is not None and abs(time_s - last.time_s) < INTERVAL_S:
            return None
        self._last = Record(offset, stream, time_s)
        return self._last


def parse_record(line: bytes) -> Record | None:
    """The record of one line; None for an invalid line, which a full disk may have cut."""
    try:
        offset, stream, time_s = line.decode("ascii").split()
        record = Record(int(offset), stream, float(time_s))
    except ValueError:
        return None
    return record if stream in STREAMS else None


def offset_since(index: Path, time_s: float) -> int:
    """The first byte of the log that was read since then.

    0 if that is before the indexed end; beyond the log if nothing was read since.
    """
    data = b""
    with contextlib.suppress(OSError), index.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        data = file.read(TAIL_BYTES)
    records = [record for record in map(parse_record, data.splitlines()) if record is not None]
    if not records or records[0].time_s >= time_s:
        return 0
    return next((one.offset for one in records if one.time_s >= time_s), sys.maxsize)
