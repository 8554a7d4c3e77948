"""``events.jsonl``: the history of a job, one JSON object per line, oldest first.

It is not needed to run a job: a full disk loses lines, which are counted, and causes one warning. A
file that reaches its limit becomes ``events.old.jsonl``, so a long job keeps its last two files.
docs/EVENTS.md has the fields. Not here: which events there are (occurrences.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ftrun.base import clock

EVENTS_FILE = "events.jsonl"
SCHEMA = "ftrun.event/1"
FILE_BYTES_MAX = 16 * 1024 * 1024

log = logging.getLogger(__name__)


class EventFile:
    """Appends to ``events.jsonl`` in each of these directories.

    A line is in the file when ``write`` returns, so a killed lighthouse leaves whole lines except
    possibly the last one. Readers skip a line that is no JSON.
    """

    def __init__(self, directories: Iterable[Path] = (), limit_bytes: int = FILE_BYTES_MAX) -> None:
        paths = dict.fromkeys(path / EVENTS_FILE for path in directories)
        self._unwritten = dict.fromkeys(paths, 0)  # events that each file lacks
        self._limit_bytes = limit_bytes

    def write(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Append one event with the current date."""
        time = clock.wall().isoformat(timespec="milliseconds")
        event: dict[str, Any] = {"schema": SCHEMA, "time": time, "event": kind, **facts}
        for path, lacks in self._unwritten.items():
            is_written = self._append(path, event | ({"unwritten": lacks} if lacks else {}))
            self._unwritten[path] = 0 if is_written else lacks + 1

    def _append(self, path: Path, event: Mapping[str, Any]) -> bool:
        try:
            data = (json.dumps(event, separators=(",", ":"), allow_nan=False) + "\n").encode()
            with open(path, "ab") as file:
                is_full = file.tell() + len(data) > self._limit_bytes
                if not is_full:
                    file.write(data)
            if is_full:
                path.replace(path.with_name("events.old.jsonl"))
                path.write_bytes(data)
        except (OSError, ValueError) as error:  # ValueError: a number that JSON does not have
            if not self._unwritten[path]:
                log.warning("%s cannot be written, and lacks events until it can: %s", path, error)
            return False
        return True
