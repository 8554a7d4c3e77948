"""What holds for every test: none fails because the machine is slow, or because of its parent.

Processes that share the tests take whole files in their order. So those that take minutes come
first: a process that began one of them last would go on alone.

A shell that starts the tests in the background ignores Ctrl-C on their behalf, and nohup a hangup;
every process that a test starts would inherit that, and many tests send these signals.

Stores that tests serve themselves ask no name server, as the launcher's: one that is slow would
stall every build for 5 s.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ftrun import linux

HERE = Path(__file__).parent
LONG = (
    "process/test_snapshots.py",
    "zero_edit/test_workers.py",
    "zero_edit/test_matrix.py",
    "sim/test_sim.py",
    "process/test_launch.py",
    "zero_edit/test_forms.py",
    "snapshots/test_kills.py",
    "process/test_plugins.py",
    "process/test_nodes.py",
    "process/test_standstill.py",
    "process/test_run.py",
    "process/test_operators.py",
    "process/test_elastic.py",
    "process/test_join.py",
    "zero_edit/test_check.py",
    "process/test_data.py",
    "process/test_incidents.py",
    "process/test_signals.py",
    "process/test_lighthouse_killed.py",
    "zero_edit/test_divergence.py",
    "e2e/test_resume.py",
)
"""The longest files first, as ``--durations=250`` of a whole run adds them up."""
PLACES = {HERE / name: place for place, name in enumerate(LONG)}

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
linux.look_names_up_in_files_only()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called by pytest: the long files first, all others as they were found."""
    items.sort(key=lambda item: PLACES.get(item.path, len(PLACES)))
