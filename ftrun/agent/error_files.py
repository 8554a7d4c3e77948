"""The error file of one worker's attempt: torch's ``@record`` writes it, ftrun reads it.

Its path is in the worker's TORCHELASTIC_ERROR_FILE. It is evidence for a worker that ends with an
exit code and without a report of its own: a command that is not Python, a script that leaves by
``os._exit``, or one that hands on the exit code of a process of its own. The cause of a worker that
dies of a signal is that signal, whatever it had recorded before.

Not here: the worker's own report, which counts before the file (inject/report.py).
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

from ftrun.core.messages import FailureReport

FILE_BYTES_MAX = 1 << 20
UNNAMED = "Error"
_TYPE = re.compile(r"[A-Za-z_][\w.]*")


def error_path(log: Path) -> Path:
    """Where a worker with this log leaves its error. Absolute, because scripts change directory."""
    return log.absolute().with_suffix(".error.json")


def clear_error_file(path: Path) -> None:
    """Remove the file of a former job of the same name, and make its directory."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)


def read_error_file(path: Path) -> FailureReport | None:
    """The exception in an error file; None: there is none, or not in torch's form.

    The message is an object with torch's fields, or a text alone.
    """
    # Read only after a failure, so that no start waits for this import.
    from ftrun.inject.bootstrap import MESSAGE_CHARS_MAX, TRACEBACK_CHARS_MAX

    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        content: Any = json.loads(data) if len(data) <= FILE_BYTES_MAX else None
    except (OSError, ValueError, RecursionError):
        return None
    message = content.get("message") if isinstance(content, dict) else None
    trace: Any = ""
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        trace = extra.get("py_callstack") if isinstance(extra, dict) else ""
        message = message.get("message")
    if not isinstance(message, str) or not message:
        return None
    kind, colon, words = message.partition(": ")
    if not colon or _TYPE.fullmatch(kind) is None:
        kind, words = UNNAMED, message
    text = trace if isinstance(trace, str) else ""
    return FailureReport(kind, words[:MESSAGE_CHARS_MAX], text[-TRACEBACK_CHARS_MAX:])
