"""A collective in a child, as its owner sees it. Not here: what ends it (group.py)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from ftrun.compat.child_groups.memory import Staging
from ftrun.process_groups.built import fail
from ftrun.process_groups.collectives import tensors_in


class ChildWork(Work):
    """A collective in a child.

    Args:
        deadline: when the owner ends it, and the child.
        result: the value of its future.
        staging: its tensors, if they are in blocks; they are copied back before it ends.
        outputs: the number of tensors in ``result`` that it writes to.
    """

    def __init__(
        self,
        deadline: float,
        result: Any,
        staging: Staging | None = None,
        outputs: int = 0,
    ) -> None:
        super().__init__()
        self.deadline = deadline
        self._result = result
        self._staging = staging
        self._outputs = outputs
        self._done = threading.Event()
        self._error = ""
        devices: Any = sorted({str(t.device) for t in tensors_in(result) if t.is_cuda}) or None
        self._future: torch.futures.Future[Any] = torch.futures.Future(devices=devices)

    def finish(self, error: str) -> None:
        """End it, with an error unless ``error`` is empty.

        After an error nothing is copied: the child may still write to the blocks.
        """
        if self._staging is not None and not error:
            try:
                self._staging.collect(self._outputs)
            except RuntimeError as failed:
                error = f"its result could not be copied: {failed}"
        self._staging = None
        self._error = error
        self._done.set()
        if error:
            fail(self._future, RuntimeError(error))
        else:
            self._future.set_result(self._result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end.

        Raises:
            RuntimeError: it failed, or its process is gone.
            TimeoutError: it has not ended within ``timeout``.
        """
        if not self._done.wait(timeout.total_seconds() if timeout is not None else None):
            raise TimeoutError(f"a collective timed out after {timeout}")
        if self._error:
            raise RuntimeError(self._error)
        return True

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        """Whether it has ended without an error."""
        return self._done.is_set() and not self._error

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future
