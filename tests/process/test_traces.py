"""OTLP spans of a real job with a kill, received by a server of the test's own; and none there."""

from __future__ import annotations

import gzip
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.jobs import Job
from tests.process.test_events import SCRIPT

pytestmark = pytest.mark.timeout(300)


class Collector(BaseHTTPRequestHandler):
    """Keeps the spans that it is sent, with their services."""

    spans: list[tuple[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            values = {x.key: x.value.string_value for x in of_resource.resource.attributes}
            for scope in of_resource.scope_spans:
                self.spans.extend((values["service.name"], span) for span in scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def run_a_job(directory: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Two replicas, and a kill."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    with Job(directory, SCRIPT, "--replicas", "2", "--device", "cpu") as job:
        job.expect(r"^\[[01]\.0\] step 5$", 2)
        os.kill(job.worker(1), signal.SIGKILL)
        job.expect(r"Replica 1 healed")
        (directory / "over").touch()
        assert job.end() == 0
        assert job.left() == []
    return job


def test_a_collector_has_the_spans_of_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Collector.spans = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        run_a_job(tmp_path, f"http://127.0.0.1:{server.server_port}", monkeypatch)
        server.shutdown()
    assert {service for service, _ in Collector.spans} == {"ftrun"}
    found = {span.name: span for _, span in Collector.spans}
    assert {"incident", "heal", "quorum form"} <= found.keys(), found.keys()
    incident, heal = found["incident"], found["heal"]
    assert heal.trace_id == incident.trace_id and heal.parent_span_id == incident.span_id
    assert incident.start_time_unix_nano <= heal.start_time_unix_nano < heal.end_time_unix_nano
    assert incident.status.message == "died: SIGKILL"


def test_a_collector_that_is_not_there_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run_a_job(tmp_path, "http://127.0.0.1:9", monkeypatch)
    assert job.output.count("127.0.0.1:9") <= 3, job.output
