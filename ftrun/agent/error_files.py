"""Error files: torch's ``@record`` writes one for each start of a worker, and ftrun reads it.

Its path is in the worker's TORCHELASTIC_ERROR_FILE. It is evidence for a worker that ends with an
exit code and without a report: a command that is not Python, a script that leaves by ``os._exit``,
or one that returns the exit code of a child process. The cause of a worker that dies of a signal is
that signal, whatever it had recorded before.

A scheduler that starts ftrun may ask for the job's error in the same way; ftrun writes it as
torchrun does.

Not here: the worker's own report, which counts before the file (inject/report.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

from ftrun.base import clock
from ftrun.base.errors import naming
from ftrun.core.messages import FailureReport

FILE_BYTES_MAX = 1 << 20
UNNAMED = "Error"
VARIABLE = "TORCHELASTIC_ERROR_FILE"
_TYPE = re.compile(r"[A-Za-z_][\w.]*")


def error_path(log: Path) -> Path:
    """The path of the error file of a worker with this log.

    Absolute, because scripts change directory.
    """
    return log.absolute().with_suffix(".error.json")


def clear_error_file(path: Path) -> None:
    """Remove the file of a former job of the same name, and create its directory."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)


def read_error_file(path: Path) -> FailureReport | None:
    """The exception in an error file; None if the file has no exception in torch's form.

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


def hand_on(incident: dict[str, Any] | None, exit_code: int) -> OSError | None:
    """Write a job's first cause to the error file that ftrun's own environment names, if it names
    one.

    ``incident``: the last one, if the job failed. Returns the error, if the file cannot be written.
    """
    path = os.environ.get(VARIABLE)
    worker = ((incident or {}).get("first_cause") or {}).get("worker") or {}
    if not path or not worker or not exit_code:
        return None
    kind, words = worker.get("error_type"), worker.get("message", "")
    message = {
        "message": f"{kind}: {words}" if kind else worker.get("cause", ""),
        "errorCode": exit_code,
        "extraInfo": {
            "py_callstack": worker.get("traceback", ""),
            "timestamp": str(int(clock.wall().timestamp())),
        },
    }
    try:
        with naming(path):
            Path(path).write_text(json.dumps({"message": message}), encoding="utf-8")
    except OSError as error:
        return error
    return None
