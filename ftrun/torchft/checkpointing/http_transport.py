"""torchft.checkpointing.http_transport: checkpoints over HTTP, without pickle."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ftrun.base import clock
from ftrun.checkpoint.transport import HTTPTransport

__all__ = ["HTTPTransport"]

log = logging.getLogger(__name__)


@contextmanager
def _time(desc: str) -> Iterator[None]:
    """Log how long a block takes. torchft's benchmark of transports uses it."""
    began = clock.now()
    yield
    log.info("%s took %.3f s", desc, clock.now() - began)
