"""The status as Prometheus metrics; docs/METRICS.md has their meaning.

Counters start at zero in each lighthouse, except those of the account, which outlive it. The sets
of label values are bounded: replicas, uses, kinds of failures and of changes. Not here: counting
(the status, occurrences.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ftrun.core.lighthouse.status import ReplicaStatus, Status
from ftrun.lighthouse.occurrences import SECONDS, Histogram, Totals

CONTENT_TYPE = CONTENT_TYPE_LATEST
SCALARS_MAX = 32
"""The most values of ``manager.log`` that are exported per replica."""


def render_metrics(status: Status, totals: Totals) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StatusCollector(status, totals))
    return generate_latest(registry)


class _StatusCollector(Collector):
    """One status, as metrics."""

    def __init__(self, status: Status, totals: Totals) -> None:
        self._status, self._totals = status, totals

    def collect(self) -> Iterable[Metric]:
        yield from _service(self._status)
        yield from _job(self._status)
        yield from _account(self._status)
        yield from _totals(self._totals)
        yield from _replicas(self._status["replicas"])


def _service(status: Status) -> Iterator[Metric]:
    service = status["lighthouse"]
    version = [([service["version"]], 1)]
    yield _gauges("build_info", "1; which ftrun this is.", ["version"], version)
    yield _gauge("uptime_seconds", "Since this lighthouse was started.", service["uptime_s"])
    yield _gauge("epoch", "Rises at every start of a lighthouse.", status["epoch"])
    yield _gauge("agents_attached", "Agents with a stream.", service["agents_attached"])
    received = status["messages_received"]
    yield _counters("messages_received", "Messages from agents and workers.", "kind", received)
    yield _counter("journal_writes", "Records written to the journal.", service["journal_writes"])
    yield _counter(
        "journal_write_seconds", "Time spent on writing the journal.", service["journal_write_s"]
    )


def _job(status: Status) -> Iterator[Metric]:
    quorum = status["quorum"]
    members, live = (quorum["members"], quorum["live"]) if quorum is not None else ([], [])
    phase = [([status["phase"]], 1)]
    yield _gauges("phase", "1 for the phase of the membership.", ["phase"], phase)
    yield _gauge("phase_age_seconds", "Since the phase began.", status["phase_age_s"])
    yield _gauge("replicas_wanted", "Slots of the job.", status["job"]["replicas"])
    yield _gauge("quorum_members", "Replicas in the quorum.", len(members))
    yield _gauge("quorum_members_live", "Replicas in the quorum that are not lost.", len(live))
    yield _gauge("step", "The highest step known.", status["step"])
    yield _counter("restarts", "Restarts of replica groups.", status["restarts"])


def _account(status: Status) -> Iterator[Metric]:
    account, rate, quorum = status["account"], status["rate"], status["quorum"]
    spent = account["seconds"]
    yield _counters("time_seconds", "Replica-seconds of the job by their use.", "phase", spent)
    yield _counter("committed_steps", "Steps that were committed.", account["steps"])
    yield _counter(
        "lost_seconds", "Replica-seconds in which replicas could not train.", account["lost_s"]
    )
    if account["goodput"] is not None:
        text = "The share of training in all replica-seconds that count."
        yield _gauge("goodput_ratio", text, account["goodput"])
    if rate["now"] is not None:
        yield _gauge("steps_per_second", "Over the last half minute.", rate["now"])
    if quorum is not None:
        yield _gauge("quorum_age_seconds", "Since the quorum came.", quorum["age_s"])
    open_count = sum(incident["is_open"] for incident in status["incidents"])
    yield _gauge("incidents_open", "Failures that are not over.", open_count)
    waits = [] if status["waiting"] is None else [([status["waiting"]["for"]], 1)]
    yield _gauges("waiting", "1 while the job waits.", ["for"], waits)


def _totals(totals: Totals) -> Iterator[Metric]:
    failures, changes = dict(sorted(totals.failures.items())), dict(sorted(totals.changes.items()))
    yield _counters("failures", "Incidents by first cause.", "kind", failures)
    yield _counters("membership_changes", "Changes of membership.", "kind", changes)
    yield _counter("heal_bytes", "Bytes of state that healing workers read.", totals.heal_bytes)
    yield _histogram(
        "recovery", "From a failure until its replica trained again.", totals.recoveries
    )
    yield _histogram("heal", "Heals of a replica's first rank.", totals.heals)
    yield _histogram("membership_change", "Changes of membership.", totals.change_times)


def _replicas(replicas: list[ReplicaStatus]) -> Iterator[Metric]:
    name, text = ["replica"], "1 for the phase of the replica."
    steps = [([x["replica_id"]], x["step"]) for x in replicas if x["step"] is not None]
    yield _gauges("replica_step", "The replica's step.", name, steps)
    phases = [([x["replica_id"], x["phase"]], 1) for x in replicas]
    yield _gauges("replica_phase", text, [*name, "phase"], phases)
    restarts = {x["replica_id"]: x["restarts"] for x in replicas}
    yield _counters("replica_restarts", "Restarts of the replica.", "replica", restarts)
    scalars = [
        ([x["replica_id"], key], math.nan if value is None else value)
        for x in replicas
        for key, value in list(x["scalars"].items())[:SCALARS_MAX]
    ]
    yield _gauges("replica_scalar", "What the script logged.", [*name, "name"], scalars)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"ftrun_{name}", text, value=value)


def _gauges(
    name: str, text: str, labels: list[str], rows: Sequence[tuple[list[str], float]]
) -> Metric:
    found = GaugeMetricFamily(f"ftrun_{name}", text, labels=labels)
    for values, number in rows:
        found.add_metric(values, number)
    return found


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"ftrun_{name}", text, value=value)


def _counters(name: str, text: str, label: str, counts: Mapping[str, float]) -> Metric:
    found = CounterMetricFamily(f"ftrun_{name}", text, labels=[label])
    for value, count in counts.items():
        found.add_metric([value], count)
    return found


def _histogram(name: str, text: str, found: Histogram) -> Metric:
    bounds = [*(f"{bound:g}" for bound in SECONDS), "+Inf"]
    buckets = [(bound, sum(found.counts[: i + 1])) for i, bound in enumerate(bounds)]
    full = f"ftrun_{name}_seconds"
    return HistogramMetricFamily(full, text, buckets=buckets, sum_value=found.total_s)
