"""A plugin of pytest that writes a run's results into a file, for ``tests.suite.run``.

``pytest -p tests.suite.recording --record FILE`` writes JSON: ``seconds`` of each test with its
fixtures; ``counts`` of the outcomes; ``failures``: the tracebacks of each failed test and its
output (of several jobs, the traceback shows only one); and ``broken``: errors that belong to no
test, such as an error in collection or a process that crashed.

With xdist, the process that distributes the tests writes. Not here: the consequences of a failure.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

PHASES = ("setup", "call", "teardown")


class Recorder:
    """Keeps the reports of one run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self._failures: dict[str, str] = {}
        self._broken: dict[str, None] = {}  # each once, in their order

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Called by pytest."""
        if report.failed:
            self._broken[f"{report.nodeid}: not collected"] = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for each phase of a test."""
        name = report.nodeid
        if report.when not in PHASES:  # xdist's report of a process that crashed in this test
            self._broken[report.longreprtext.rpartition("\n")[2]] = None
            return
        self._seconds[name] += report.duration
        if report.failed:
            printed = "".join(f"-- {title}\n{text}\n" for title, text in report.sections)
            self._failures[name] = f"{self._failures.get(name, '')}{report.longreprtext}\n{printed}"
        elif report.skipped or report.when == "call":
            self._counts[report.outcome] += 1

    def pytest_sessionfinish(self) -> None:
        """Called by pytest."""
        found = {
            "seconds": self._seconds,
            "counts": {**self._counts, "failed": len(self._failures)},
            "failures": self._failures,
            "broken": list(self._broken),
        }
        self._path.write_text(json.dumps(found))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Called by pytest."""
    parser.addoption("--record", type=Path, help="a file for what the run has found")


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest, also in each process of xdist, which records nothing."""
    path = config.getoption("--record")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path), "recorder")
