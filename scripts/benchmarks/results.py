"""The results of a benchmark: samples by peer, kept as JSON, shown as a table.

Not here: measuring, plots (plots.py), the page (report.py).
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.table import Table

Samples = dict[str, list[float]]
PEERS_MAX = 3
"""With more peers, and fewer rows than this, a table has a line for each peer."""


@dataclass(frozen=True)
class Row:
    """One measured quantity: a key for the report, words and unit for people, samples by peer.

    ``is_count``: each sample is 1 or 0, and the number of 1s is shown.
    """

    key: str
    what: str
    unit: str
    samples: Samples
    higher_is_better: bool = False
    digits: int = 1
    is_count: bool = False


@dataclass(frozen=True)
class Result:
    """The results of one benchmark. ``traces``: the data of its plot."""

    name: str
    title: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    traces: dict[str, Any] = field(default_factory=dict)
    machine: str = ""
    when: str = ""
    commit: str = ""

    def row(self, key: str) -> Row | None:
        """The row called ``key``."""
        return next((row for row in self.rows if row.key == key), None)

    @property
    def peers(self) -> list[str]:
        """All peers that a row has, ftrun first."""
        names = dict.fromkeys(peer for row in self.rows for peer in row.samples)
        return sorted(names, key=lambda name: name != "ftrun")


def save(result: Result, directory: Path) -> Path:
    """Write ``<directory>/<name>.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{result.name}.json"
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    facts = {"machine": machine(), "when": when, "commit": _commit()}
    path.write_text(json.dumps({**asdict(result), **facts}) + "\n")
    return path


def load(path: Path) -> Result:
    """Read a file of ``save``."""
    data = json.loads(path.read_text())
    return Result(**{**data, "rows": [Row(**row) for row in data["rows"]]})


def quantile(samples: Sequence[float], share: float) -> float:
    """The median, or otherwise the nearest-rank quantile: a real sample; of a few samples, the
    worst."""
    if share == 0.5:
        return statistics.median(samples)
    ordered = sorted(samples)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def trimmed(ratios: Sequence[float], share: float = 0.1) -> tuple[float, float]:
    """The trimmed geometric mean of the ratios, and its standard error.

    A ``share`` of the ratios at each end is left out, so a disturbed block counts no more than any
    other. The error is Tukey's and McLaughlin's, from the winsorized ratios.
    """
    logs = sorted(map(math.log, ratios))
    cut = int(share * len(logs))
    kept = logs[cut : len(logs) - cut]
    drawn_in = [kept[0]] * cut + kept + [kept[-1]] * cut
    mean = math.exp(statistics.fmean(kept))
    error = statistics.stdev(drawn_in) / (len(kept) / len(logs) * math.sqrt(len(logs)))
    return mean, mean * error


def worst(row: Row, peer: str) -> float:
    """The 99th percentile on the bad side; of fewer than a hundred samples, the worst."""
    samples = row.samples[peer]
    if row.higher_is_better:
        return -quantile([-sample for sample in samples], 0.99)
    return quantile(samples, 0.99)


def ratio(row: Row, peer: str) -> float | None:
    """How many times better ftrun's median is than the median of ``peer``."""
    ours, theirs = row.samples.get("ftrun"), row.samples.get(peer)
    if not ours or not theirs or row.is_count:
        return None
    a, b = statistics.median(ours), statistics.median(theirs)
    above, below = (a, b) if row.higher_is_better else (b, a)
    return above / below if below > 0 else None


def cells(row: Row, peers: Sequence[str]) -> list[str]:
    """The row as texts: what, count, median and worst of each peer, ftrun's advantage."""
    texts = [f"{row.what}, {row.unit}"]
    for peer in peers:
        samples = row.samples.get(peer)
        if not samples:
            texts += ["-", "-"]
            continue
        if row.is_count:
            texts += [counted(samples), ""]
            continue
        texts.append(f"{statistics.median(samples):.{row.digits}f}")
        texts.append(f"{worst(row, peer):.{row.digits}f} of {len(samples)}")
    for peer in peers[1:]:
        times = ratio(row, peer)
        texts.append("-" if times is None else f"{times:.3g}×")
    return texts


def headings(peers: Sequence[str]) -> list[str]:
    """The headings of ``cells``."""
    medians = [text for peer in peers for text in (f"{peer} median", "p99 or worst")]
    return ["", *medians, *(f"times better than {peer}" for peer in peers[1:])]


def grid(result: Result) -> tuple[list[str], list[list[str]]]:
    """The table: its head and its lines, one per row, or one per peer if there are many."""
    peers = result.peers
    if len(peers) <= PEERS_MAX or len(peers) < len(result.rows):
        return headings(peers), [cells(row, peers) for row in result.rows]
    lines = [[peer, *(_brief(row, peer) for row in result.rows)] for peer in peers]
    return ["", *(f"{row.what}, {row.unit}" for row in result.rows)], lines


def table(result: Result) -> Table:
    """For the terminal."""
    shown = Table(title=f"{result.title}\n{machine()}", title_justify="left")
    head, lines = grid(result)
    for index, heading in enumerate(head):
        shown.add_column(heading, justify="left" if index == 0 else "right")
    for line in lines:
        shown.add_row(*line)
    return shown


def counted(samples: Sequence[float]) -> str:
    """How many of all samples are 1."""
    return f"{sum(samples):.0f}/{len(samples)}"


def _brief(row: Row, peer: str) -> str:
    """The samples of ``peer`` in one cell."""
    samples = row.samples.get(peer)
    if not samples:
        return "-"
    if row.is_count:
        return counted(samples)
    bad, digits = worst(row, peer), row.digits
    return f"{statistics.median(samples):.{digits}f} ({bad:.{digits}f} of {len(samples)})"


def machine() -> str:
    """The machine, in one line."""
    versions = (f"{name} {_version(name)}" for name in ("torch", "torchft-nightly", "grpcio"))
    return (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        + ", ".join(versions)
    )


def _commit() -> str:
    """The commit that was measured, ``-dirty`` if the tree differed from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10
        )
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
