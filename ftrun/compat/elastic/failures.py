"""Failed workers in torchelastic's terms: one ProcessFailure each, and one exception for all.

Not here: how a failure is found (launching/story.py).
"""

from __future__ import annotations

import json
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from ftrun.base.worker_failure import WorkerFailure


class WorkerGroupFailureException(ChildFailedError):
    """Raised by ``elastic_launch``; ``failures``: a ProcessFailure by global rank."""

    def get_worker_exceptions(self) -> dict[int, ProcessFailure]:
        """``failures``, under its name in the first torchelastic."""
        return self.failures


def process_failures(
    failures: tuple[WorkerFailure, ...], directory: Path | None
) -> dict[int, ProcessFailure]:
    """The failures by global rank, the first failure first.

    ``directory``: each exception is also written there, as the error file that a program under
    ``record`` passes to its own parent; None: no file is kept.
    """
    return {failure.rank: _process_failure(failure, directory) for failure in failures}


def _process_failure(failure: WorkerFailure, directory: Path | None) -> ProcessFailure:
    content = _content(failure)
    path = ""
    if directory is not None and failure.error_type:
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"rank_{failure.rank}.json"
        file.write_text(json.dumps(content))
        path = str(file)
    found = ProcessFailure(failure.group_rank, failure.pid, failure.status, path)
    found.timestamp = int(failure.at)
    if failure.error_type:
        found.error_file_data = content
        found.message = content["message"]  # type: ignore[assignment]  # torch has a dict there too
    elif failure.reason:
        found.message = failure.reason
    return found


def _content(failure: WorkerFailure) -> dict[str, object]:
    """An error file's content, in the form of torch's own error handler."""
    return {
        "message": {
            "message": f"{failure.error_type}: {failure.message}",
            "extraInfo": {
                "py_callstack": failure.traceback,
                "timestamp": str(int(failure.at)),
            },
        }
    }
