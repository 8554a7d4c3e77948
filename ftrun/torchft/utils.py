"""torchft.utils: streams and events of the machine's accelerator."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def get_stream_context(stream: torch.Stream | None) -> AbstractContextManager[Any]:
    """A context in which ``stream`` is the current one; does nothing without a stream or device."""
    kind: Any = _accelerator()
    if stream is None or kind is None:
        return nullcontext()
    context: AbstractContextManager[Any] = kind.stream(stream)
    return context


def record_event() -> Any:
    """An event in the current stream, for which another process may wait.

    Raises:
        RuntimeError: there is no accelerator here.
    """
    kind: Any = _accelerator()
    if kind is None:
        raise RuntimeError("record_event: this machine has neither CUDA nor XPU")
    event = kind.Event(interprocess=True) if kind is torch.cuda else kind.Event()
    kind.current_stream().record_event(event)
    return event


def synchronize() -> None:
    """Wait until the current stream is empty."""
    kind: Any = _accelerator()
    if kind is not None:
        kind.current_stream().synchronize()


def _accelerator() -> Any:
    """``torch.cuda`` or ``torch.xpu``, whichever has a device; None: neither."""
    if torch.cuda.is_available():
        return torch.cuda
    return torch.xpu if torch.xpu.is_available() else None
