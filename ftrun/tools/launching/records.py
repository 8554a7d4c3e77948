"""The lines that the host writes for the launching program: one JSON object each.

| event    | further keys                                                                     |
|----------|----------------------------------------------------------------------------------|
| settled  | job_id, workers: the settings are known; ``workers`` of each replica             |
| refused  | exit_code, text: nothing was started                                             |
| ended    | exit_code, reason: the last line                                                 |

Between the first and the last come those of agent/facts.py. All have ``at``, seconds since the
epoch. Not here: the writer (reporter.py), the readers (job.py, story.py).
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]


def to_line(record: Record) -> bytes:
    return json.dumps(record).encode() + b"\n"


class Lines:
    """Splits the data from the pipe into records."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Record]:
        """The records that ``data`` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]
