"""Rules for every test: none fails because of a slow machine, or because of the parent process.

Processes that share the tests take whole files in order. Files that take minutes come first
(suite/durations.txt; also a file with jobs that is not recorded there): if a process began one of
them last, it would be the only one still running.

Properties are tried with the same examples in every run; ``scripts/core_coverage``, which follows
each branch, tries a tenth of them. Only ``--hypothesis-profile "fresh seeds"`` draws others, and
keeps failing examples for its next run (.hypothesis/examples).

A shell that starts the tests in the background makes them ignore Ctrl-C, and nohup makes them
ignore a hangup. Every process that a test starts would inherit that, and many tests send these
signals, so their defaults are restored.

Stores that tests serve themselves ask no name server, like the launcher's stores: a slow one would
stall every build for 5 s.

Torch and ftrun set variables of their process while they are used. Each test starts with the run's
initial variables, because its jobs inherit them.

Modules that are loaded when the tests begin, above all torch, are exempt from garbage collection.
Simulations and properties make many objects, and each full collection would walk all modules.
Collection is off during the imports, because each process that shares the tests imports them all.
"""

from __future__ import annotations

import gc
import math
import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from ftrun.base import linux
from tests.suite.durations import ROOT, read_files
from tests.suite.levels import has_jobs, is_long, is_slow

ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed seed", ANY_MACHINE, derandomize=True, database=None)
settings.register_profile("few examples", settings.get_profile("fixed seed"), max_examples=10)
settings.register_profile(
    "fresh seeds",
    ANY_MACHINE,
    database=DirectoryBasedExampleDatabase(ROOT / ".hypothesis" / "examples"),
    print_blob=True,
)
settings.load_profile("fixed seed")
linux.look_names_up_in_files_only()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


AT_START = dict(os.environ)


@pytest.fixture(autouse=True)
def no_variable_of_a_test_before() -> Iterator[None]:
    """Give the next test the variables with which the run began."""
    yield
    for name in os.environ.keys() - AT_START.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    for name, value in AT_START.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


@pytest.hookimpl(tryfirst=True)  # before the marks choose
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called by pytest: puts the long files first, keeps the others in order, and marks long and
    slow tests."""
    seconds = read_files()
    items.sort(key=lambda item: -seconds.get(item.path, math.inf if has_jobs(item.path) else 0.0))
    for item in items:
        if is_long(item.path, item.name):
            item.add_marker(pytest.mark.long)
        if is_slow(item.path, item.name):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Called by pytest: within it each test file is imported."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
