"""Spans of what happens, by the SDK's own exporter in memory; the variables that turn them on."""

from __future__ import annotations

import builtins
import logging
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ftrun.core.books.history import Change
from ftrun.core.ids import Attempt
from ftrun.core.messages import Healed
from ftrun.lighthouse.traces import OPEN_MAX, Traces, start_traces

BEGAN = "2026-01-02T03:04:05.000+00:00"


def made() -> tuple[Traces, InMemorySpanExporter]:
    memory, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    return Traces(provider), memory


def incident(number: int, *, is_open: bool) -> dict[str, Any]:
    first: dict[str, Any] = {
        "kind": "signal",
        "cause": "died: SIGKILL",
        "replica_id": "1",
        "host": "h",
    }
    first |= {"back_after_s": None if is_open else 0.5}
    cost = {"steps": 0, "replica_seconds": 0.7}
    return {
        "job_id": "job", "number": number, "time": BEGAN, "is_open": is_open, "step": 7,
        "verdict": "" if is_open else "restarted", "cost": cost, "first_cause": first,
    }  # fmt: skip


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_an_incident_has_the_heal_and_the_change_that_happen_in_it() -> None:
    traces, memory = made()
    traces.incident(incident(1, is_open=True))
    traces.change("job", Change("shrink", ["replica 1 died"], 10.0, 10.2, "1.2#1", ("0",), 8), 12.0)
    traces.healed("job", "1", Healed(Attempt(1, 2), 9, ("0",), 1000, 0.25))
    traces.healed("another", "1", Healed(Attempt(1, 2), 9, ("0",), 1000, 0.25))
    assert [span.name for span in memory.get_finished_spans()] == ["quorum shrink", "heal", "heal"]
    traces.incident(incident(1, is_open=False))
    change, heal, other, whole = memory.get_finished_spans()
    assert whole.name == "incident" and whole.status.description == "died: SIGKILL"
    assert facts(whole)["ftrun.incident.cost_s"] == 0.7
    assert facts(whole)["ftrun.incident.back_after_s"] == 0.5
    assert whole.start_time == 1_767_323_045_000_000_000
    for part in (change, heal):
        assert part.parent is not None and part.parent.span_id == whole.context.span_id
    assert other.parent is None, "an incident of another job is not around it"
    assert facts(change)["ftrun.quorum.size"] == 1 and facts(heal)["ftrun.heal.bytes"] == 1000
    assert heal.end_time is not None and heal.start_time is not None
    assert heal.end_time - heal.start_time == 250_000_000
    assert change.end_time is not None and change.start_time is not None
    assert change.end_time - change.start_time == pytest.approx(200_000_000, abs=1000)


def test_incidents_that_never_end_are_bounded_and_end_with_the_lighthouse() -> None:
    traces, memory = made()
    for number in range(OPEN_MAX + 5):
        traces.incident(incident(number, is_open=True))
    traces.incident(incident(OPEN_MAX + 4, is_open=False))
    assert len(memory.get_finished_spans()) == 1
    traces.close()
    assert len(memory.get_finished_spans()) == OPEN_MAX + 1


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"},
    ],
)
def test_traces_are_off_unless_they_are_asked_for(environ: dict[str, str]) -> None:
    assert start_traces(environ) is None


def test_what_is_not_offered_is_named(caplog: pytest.LogCaptureFixture) -> None:
    grpc = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    for environ, words in ((grpc, "grpc"), ({"OTEL_TRACES_EXPORTER": "zipkin"}, "zipkin")):
        with caplog.at_level(logging.WARNING):
            assert start_traces(environ) is None
        assert words in caplog.text and "is not offered" in caplog.text


def test_without_the_extra_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = builtins.__import__

    def lacking(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", lacking)
    assert start_traces({"OTEL_TRACES_EXPORTER": "otlp"}) is None
    assert "pip install 'ftrun[otel]'" in caplog.text
