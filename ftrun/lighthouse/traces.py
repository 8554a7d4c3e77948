"""OpenTelemetry spans of incidents, heals and changes of membership; off unless OTEL_* is set.

An incident's span lasts from its failure until it is over. Spans of other events in that time are
its children. The SDK's own thread exports. A span that does not fit its bounded queue is dropped,
and the SDK logs it. docs/METRICS.md has names and attributes. Not here: when something happens
(occurrences.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ftrun import __version__
from ftrun.core.books.history import Change
from ftrun.core.messages import Healed

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

OPEN_MAX = 64
"""Incidents with an open span. Further ones get theirs when they are over."""
CLOSE_S = 3.0
"""How long the end of a lighthouse waits for the last export."""
REMEDY = "pip install 'ftrun[otel]'"
EXTRAS = "the OpenTelemetry SDK with its OTLP exporter"

log = logging.getLogger(__name__)


class Traces:
    """Makes spans of past events. Every call returns at once."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("ftrun.lighthouse", __version__)
        self._open: dict[tuple[str, int], Span] = {}

    def change(self, job_id: str, change: Change, now: float) -> None:
        began_ns = time.time_ns() - _ns(now - change.began_at)
        facts = {
            "ftrun.job.id": job_id,
            "ftrun.change.reason": "; ".join(change.reasons),
            "ftrun.change.cost_s": change.cost_s,
            "ftrun.quorum.id": change.quorum,
            "ftrun.quorum.size": len(change.members),
            "ftrun.step": change.step,
        }
        duration_s = (change.ended_at if change.ended_at is not None else now) - change.began_at
        self._whole(f"quorum {change.kind}", job_id, facts, began_ns, began_ns + _ns(duration_s))

    def healed(self, job_id: str, replica_id: str, healed: Healed) -> None:
        ended_ns = time.time_ns()
        facts = {
            "ftrun.job.id": job_id,
            "ftrun.replica.id": replica_id,
            "ftrun.step": healed.step,
            "ftrun.heal.bytes": healed.nbytes,
            "ftrun.heal.donors": list(healed.donors),
        }
        self._whole("heal", job_id, facts, ended_ns - _ns(healed.duration_s), ended_ns)

    def incident(self, document: Mapping[str, Any]) -> None:
        """An incident is open, or over. Called again as more of it is known."""
        from opentelemetry.trace import Status, StatusCode

        key = (str(document["job_id"]), int(document["number"]))
        span = self._open.pop(key, None)
        if span is None:
            span = self._tracer.start_span("incident", start_time=_wall_ns(document["time"]))
        first = document["first_cause"]
        facts = {
            "ftrun.job.id": document["job_id"],
            "ftrun.incident.number": document["number"],
            "ftrun.incident.kind": first["kind"],
            "ftrun.incident.verdict": document["verdict"],
            "ftrun.incident.steps_lost": document["cost"]["steps"],
            "ftrun.incident.cost_s": document["cost"]["replica_seconds"],
            "ftrun.incident.back_after_s": first["back_after_s"],
            "ftrun.replica.id": first["replica_id"],
            "ftrun.step": document["step"],
            "host.name": first["host"],
        }
        span.set_attributes(_known(facts))
        span.set_status(Status(StatusCode.ERROR, str(first["cause"])))
        if document["is_open"] and len(self._open) < OPEN_MAX:
            self._open[key] = span
        elif not document["is_open"]:
            span.end()

    def close(self) -> None:
        """End the open spans, and export them within ``CLOSE_S`` or not at all."""
        for span in self._open.values():
            span.end()
        self._open.clear()
        # A collector that does not answer must not delay the lighthouse's end.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSE_S)
        if ending.is_alive():
            log.warning("the last spans were not exported: the collector did not answer in time")

    def _whole(
        self, name: str, job_id: str, facts: Mapping[str, Any], began_ns: int, ended_ns: int
    ) -> None:
        """Add a finished span, as a child of the latest open incident of the job."""
        from opentelemetry.trace import set_span_in_context

        around = [span for (job, _), span in self._open.items() if job == job_id]
        inside = set_span_in_context(around[-1]) if around else None
        span = self._tracer.start_span(name, inside, start_time=began_ns)
        span.set_attributes(_known(facts))
        span.end(ended_ns)


def start_traces(environ: Mapping[str, str] = os.environ) -> Traces | None:
    """Traces as set by the standard OTEL_* variables; None: off, or the SDK is missing.

    OTEL_TRACES_EXPORTER (``otlp``, ``console``, ``none``) or an OTLP endpoint turns them on.
    """
    endpoints = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    wanted = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if not wanted:
        wanted = "otlp" if any(environ.get(name) for name in endpoints) else "none"
    if wanted == "none" or environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    try:
        exporter = _exporter(wanted, environ)
        if exporter is None:
            return None
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning(
            "OTEL_* asks for traces, and %s is not installed (%s): there are none. %s",
            EXTRAS, error, REMEDY,
        )  # fmt: skip
        return None
    named = environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create({} if named else {"service.name": "ftrun"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Traces(provider)


def _exporter(wanted: str, environ: Mapping[str, str]) -> SpanExporter | None:
    """The exporter of this name; None: it is not available here, which is logged."""
    if wanted == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    if wanted != "otlp" or protocol != "http/protobuf":
        log.warning(
            "OTEL_TRACES_EXPORTER=%s with the protocol %s is not offered: there are no traces. "
            "Give otlp with http/protobuf, console or none.",
            wanted, protocol,
        )  # fmt: skip
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _wall_ns(iso: str) -> int:
    return round(datetime.fromisoformat(iso).timestamp() * 1e9)
