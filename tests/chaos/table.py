"""The table of many chaos runs: fault × runs × passed × recovery. Not here: the runs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.chaos.faults import FAULTS
from tests.chaos.run import Outcome


@dataclass
class _Row:
    runs: int = 0
    passed: int = 0
    skipped: int = 0
    recoveries_s: list[float] = field(default_factory=list)


def table(outcomes: Iterable[Outcome]) -> str:
    """A Markdown table. A run with two faults counts in the row of each."""
    rows: dict[str, _Row] = defaultdict(_Row)
    total = _Row()
    for outcome in outcomes:
        for row in (*(rows[name] for name in outcome.plan.faults), total):
            row.runs += not outcome.skipped
            row.passed += outcome.passed
            row.skipped += bool(outcome.skipped)
        for names, seconds in outcome.recoveries_s.items():
            if names in FAULTS:  # two faults at once have one recovery time
                rows[names].recoveries_s.append(seconds)
    lines = ["| fault | runs | passed | median recovery |", "|---|---:|---:|---:|"]
    lines += [_line(name, rows[name]) for name in FAULTS if name in rows]
    return "\n".join([*lines, _line("**all runs**", total)])


def _line(name: str, row: _Row) -> str:
    skipped = f" ({row.skipped} skipped)" if row.skipped else ""
    found = row.recoveries_s
    recovery = f"{statistics.median(found):.2f} s" if found else ""
    return f"| {name} | {row.runs}{skipped} | {row.passed} | {recovery} |"
