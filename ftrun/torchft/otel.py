"""torchft.otel: the loggers ``torchft_quorums``, ``torchft_commits`` and ``torchft_errors``.

ftrun writes to these loggers as torchft does. It has no OpenTelemetry exporter: with
TORCHFT_USE_OTEL it logs a warning, and any handler that a script adds to the loggers gets the
records.
"""

from __future__ import annotations

import logging
import os

TORCHFT_OTEL_RESOURCE_ATTRIBUTES_JSON = "TORCHFT_OTEL_RESOURCE_ATTRIBUTES_JSON"
USE_OTEL = "TORCHFT_USE_OTEL"

log = logging.getLogger(__name__)


def setup_logger(name: str) -> None:
    """Does nothing without TORCHFT_USE_OTEL; with it, warns that no exporter is attached."""
    if os.environ.get(USE_OTEL, "false") != "false":
        log.warning(
            "%s: ftrun attaches no OpenTelemetry exporter to the logger %r. Add a handler of "
            "opentelemetry-sdk to it, or read ftrun's own metrics (docs/METRICS.md)",
            USE_OTEL,
            name,
        )


def shutdown() -> None:
    """Does nothing: there is no exporter to flush."""
