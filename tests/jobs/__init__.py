"""The driver of real jobs: everything that starts ``ftrun`` and watches it from outside.

Rooms with more specific jobs build on it (tests/e2e/job.py, tests/chaos/job.py,
tests/snapshots/jobs.py …). Not here: what a test asserts.
"""

from __future__ import annotations

from tests.jobs.family import Family
from tests.jobs.forks import ROOT, popen, run
from tests.jobs.job import (
    FTRUN,
    HOUSE,
    LIGHTHOUSE,
    THIS_TREE,
    TOKEN,
    Command,
    Job,
    Lighthouse,
    ask,
    found_at,
    was_late,
)
from tests.jobs.process import (
    END_S,
    LOOK_S,
    START_S,
    Late,
    Process,
    free_port,
    wait,
    write_at_once,
)

__all__ = [
    "END_S",
    "FTRUN",
    "HOUSE",
    "LIGHTHOUSE",
    "LOOK_S",
    "ROOT",
    "START_S",
    "THIS_TREE",
    "TOKEN",
    "Command",
    "Family",
    "Job",
    "Late",
    "Lighthouse",
    "Process",
    "ask",
    "found_at",
    "free_port",
    "popen",
    "run",
    "wait",
    "was_late",
    "write_at_once",
]
