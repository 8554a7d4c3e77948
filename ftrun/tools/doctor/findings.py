"""The finding of one check, and the order of the verdicts.

Not here: the checks (system.py, limits.py, network.py, devices.py), their deadlines (command.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Verdict(Enum):
    """``WARNING``: jobs run, but something will be slow or fail later. ``PROBLEM``: jobs fail."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the result. ``remedy``: what to do; "" only if the verdict is ok."""

    check: str
    verdict: Verdict
    text: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict.value}


def ok(check: str, text: str) -> Finding:
    """A finding with nothing wrong."""
    return Finding(check, Verdict.OK, text)


def warning(check: str, text: str, remedy: str) -> Finding:
    """A finding with which jobs run, but something will be slow or fail later."""
    return Finding(check, Verdict.WARNING, text, remedy)


def problem(check: str, text: str, remedy: str) -> Finding:
    """A finding with which jobs fail."""
    return Finding(check, Verdict.PROBLEM, text, remedy)


def has_problem(findings: Iterable[Finding]) -> bool:
    """Whether any verdict is ``PROBLEM``."""
    return any(finding.verdict is Verdict.PROBLEM for finding in findings)
