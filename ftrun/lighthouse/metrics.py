"""The status as Prometheus metrics.

Not here: counting; all values come from the status.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ftrun.core.lighthouse.status import ReplicaStatus, Status

CONTENT_TYPE = CONTENT_TYPE_LATEST
SCALARS_MAX = 32
"""The most values of ``manager.log`` that are shown of a replica."""


def render_metrics(status: Status) -> bytes:
    """The text that Prometheus scrapes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StatusCollector(status))
    return generate_latest(registry)


class _StatusCollector(Collector):
    """One status, as metrics."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        yield from _service(self._status)
        yield from _job(self._status)
        yield from _replicas(self._status["replicas"])


def _service(status: Status) -> Iterator[Metric]:
    service = status["lighthouse"]
    yield _gauge("uptime_seconds", "Since this lighthouse was started.", service["uptime_s"])
    yield _gauge("epoch", "Rises at every start of a lighthouse.", status["epoch"])
    yield _gauge("agents_attached", "Agents with a stream.", service["agents_attached"])
    received = CounterMetricFamily(
        "ftrun_messages_received", "Messages from agents and workers.", labels=["kind"]
    )
    for kind, count in status["messages_received"].items():
        received.add_metric([kind], count)
    yield received
    yield _counter("journal_writes", "Records written to the journal.", service["journal_writes"])
    yield _counter(
        "journal_write_seconds", "Time spent on writing the journal.", service["journal_write_s"]
    )


def _job(status: Status) -> Iterator[Metric]:
    quorum = status["quorum"]
    members, live = (quorum["members"], quorum["live"]) if quorum is not None else ([], [])
    phase = GaugeMetricFamily("ftrun_phase", "1 for the phase of the membership.", labels=["phase"])
    phase.add_metric([status["phase"]], 1)
    yield phase
    yield _gauge("phase_age_seconds", "Since the phase began.", status["phase_age_s"])
    yield _gauge("replicas_wanted", "Slots of the job.", status["job"]["replicas"])
    yield _gauge("quorum_members", "Replicas in the quorum.", len(members))
    yield _gauge("quorum_members_live", "Replicas in the quorum that are not lost.", len(live))
    yield _gauge("step", "The highest step known.", status["step"])
    yield _counter("restarts", "Restarts of replica groups.", status["restarts"])


def _replicas(replicas: list[ReplicaStatus]) -> Iterator[Metric]:
    step = GaugeMetricFamily("ftrun_replica_step", "The replica's step.", labels=["replica"])
    state = GaugeMetricFamily(
        "ftrun_replica_phase", "1 for the phase of the replica.", labels=["replica", "phase"]
    )
    restarts = CounterMetricFamily(
        "ftrun_replica_restarts", "Restarts of the replica.", labels=["replica"]
    )
    scalars = GaugeMetricFamily(
        "ftrun_replica_scalar", "What the script logged.", labels=["replica", "name"]
    )
    for replica in replicas:
        name = replica["replica_id"]
        state.add_metric([name, replica["phase"]], 1)
        restarts.add_metric([name], replica["restarts"])
        if replica["step"] is not None:
            step.add_metric([name], replica["step"])
        for key, value in list(replica["scalars"].items())[:SCALARS_MAX]:
            scalars.add_metric([name, key], math.nan if value is None else value)
    return iter((step, state, restarts, scalars))


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"ftrun_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"ftrun_{name}", text, value=value)
