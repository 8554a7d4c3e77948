"""The lines that the host writes for the launching program: one JSON object each.

| event    | further keys                                                                     |
|----------|----------------------------------------------------------------------------------|
| settled  | job_id, workers: the settings are known; ``workers`` of each replica             |
| life     | replica, incarnation, restart: a replica group is started                        |
| worker   | incarnation, rank, pid: one of its workers runs                                  |
| raised   | incarnation, rank, type, message, traceback: its script has raised               |
| exited   | incarnation, rank, pid, status, reason                                           |
| stopping | incarnation, asked: the agent asks it to stop, or signals it                     |
| lost     | incarnation, reason, killed: the agent has reported its loss                     |
| finished | incarnation: all of its workers have ended well                                  |
| notice   | kind, text: a line for people                                                    |
| refused  | exit_code, text: nothing was started                                             |
| ended    | exit_code, reason: the last line                                                 |

``rank`` is the rank in the group. All have ``at``, seconds since the epoch. Not here: who writes
(reporter.py), who reads (job.py, story.py).
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]


def to_line(record: Record) -> bytes:
    """One record as a line."""
    return json.dumps(record).encode() + b"\n"


class Lines:
    """Splits what is read from the pipe into records."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Record]:
        """The records that are complete with ``data``."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]
