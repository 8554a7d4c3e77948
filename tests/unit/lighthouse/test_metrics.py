"""The metrics' names: served, in docs/METRICS.md, on the dashboard, in the alert rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.lighthouse.metrics import render_metrics
from ftrun.lighthouse.occurrences import Histogram, Totals
from tests.transcripts.replay import Replay
from tests.unit.lighthouse.test_web import status

DOCS = Path(__file__).parents[3] / "docs"
PROMTOOL = shutil.which("promtool")
SUFFIXES = ("_bucket", "_count", "_sum")


def served() -> dict[str, str]:
    """The type of each metric that a lighthouse serves, by its documented name."""
    replay = Replay()
    for line in ("job replicas=2 workers=1", "start", "A attached", "+0.2", "A says started 0a",
                 "A says started 1a", "0a 1a: report 0/x", "0a 1a: built 1.1#1",
                 "0a: progress 3 step: 3 steps of 0.1 s", "+1"):  # fmt: skip
        replay.line(line)
    core: Lighthouse = replay.lighthouse  # type: ignore[assignment]
    whole = {**status(), **core.snapshot(replay.now)}
    text = render_metrics(whole, Totals()).decode()  # type: ignore[arg-type]
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = family.type
    return found


def documented() -> dict[str, str]:
    """The type of each metric in the table of docs/METRICS.md."""
    table, _, _ = (DOCS / "METRICS.md").read_text().partition("## Traces")
    rows = re.findall(r"^\| `(\w+)` \| (\w+)", table, re.MULTILINE)
    return dict(rows)


def plain(name: str) -> str:
    """A series' metric: histograms have several series."""
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def test_every_metric_is_documented_with_its_type() -> None:
    assert served() == documented()


def test_the_names_follow_prometheus_conventions() -> None:
    for name, kind in documented().items():
        assert name.startswith("ftrun_")
        assert name.endswith("_total") == (kind == "counter"), name
        if kind == "histogram":
            assert name.endswith("_seconds")


def test_the_dashboard_and_the_alerts_name_metrics_that_are_served() -> None:
    dashboard = json.loads((DOCS / "monitoring" / "dashboard.json").read_text())
    expressions = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    alerts = (DOCS / "monitoring" / "alerts.yml").read_text()
    expressions += re.findall(r"^ +expr: (.+)$", alerts, re.MULTILINE)
    assert len(expressions) > 20
    used = {plain(name) for text in expressions for name in re.findall(r"\bftrun_\w+", text)}
    assert used <= documented().keys()
    rules = re.findall(
        r"- alert: (\w+)\n +expr: .+\n(?: +for: \w+\n)? +annotations:\n +summary", alerts
    )
    assert len(rules) == alerts.count("- alert:")


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on this machine")
@pytest.mark.parametrize("words", ["check rules alerts.yml", "test rules alerts_test.yml"])
def test_prometheus_accepts_the_alerts_and_they_fire(words: str) -> None:
    done = subprocess.run(
        [str(PROMTOOL), *words.split()], cwd=DOCS / "monitoring", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_histogram_counts_each_duration_in_its_bucket_and_in_all_above() -> None:
    totals = Totals(recoveries=Histogram())
    for seconds in (0.01, 0.3, 0.5, 1000.0):
        totals.recoveries.add(seconds)
    text = render_metrics(status(), totals).decode()
    found = {
        sample.labels.get("le", sample.name): sample.value
        for family in text_string_to_metric_families(text)
        if family.name == "ftrun_recovery_seconds"
        for sample in family.samples
    }
    assert (found["0.01"], found["0.25"], found["0.5"], found["+Inf"]) == (1, 1, 3, 4)
    assert found["ftrun_recovery_seconds_sum"] == 1000.81
