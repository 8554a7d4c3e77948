"""Signals to ``ftrun``: what the scripts get, what is left, and the exit codes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.jobs import Job

PLAIN = """
import signal
try:
    print("up", flush=True)
    while True:
        signal.pause()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(3)
"""
UNCAUGHT = "import signal\nprint('up', flush=True)\nwhile True:\n    signal.pause()\n"
HANDLES = """
import signal, sys
def handler(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(0)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, handler)
print("up", flush=True)
while True:
    signal.pause()
"""
IGNORES = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""
CPU = ("--device", "cpu")


def test_sigint_is_a_keyboard_interrupt_in_every_worker(tmp_path: Path) -> None:
    with Job(tmp_path, PLAIN, "-w", "2", *CPU) as job:
        job.expect(r"\] up", 2)
        job.signal(signal.SIGINT)
        assert job.end() == 130
        job.expect(r"\] interrupted", 2)
        assert job.left() == []


def test_an_uncaught_interrupt_is_no_failure(tmp_path: Path) -> None:
    with Job(tmp_path, UNCAUGHT, *CPU) as job:
        job.expect(r"\] up")
        job.signal(signal.SIGINT)
        assert job.end() == 130
        job.expect(r"KeyboardInterrupt")
        assert "stopping.py" not in job.output, "the traceback ends in the script"
        assert "drained" in job.output and "failed" not in job.output
        assert job.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_script_with_a_handler_gets_the_signal(tmp_path: Path, number: signal.Signals) -> None:
    with Job(tmp_path, HANDLES, *CPU) as job:
        job.expect(r"\] up")
        job.signal(number)
        assert job.end() == 75
        job.expect(r"got SIGTERM")
        assert job.left() == []


def test_sigusr1_reaches_those_that_survive_it(tmp_path: Path) -> None:
    source = (
        f"import os\nif os.environ['RANK'] == '0':\n    exec({HANDLES!r})\nexec({UNCAUGHT!r})\n"
    )
    with Job(tmp_path, source, "-w", "2", *CPU) as job:
        job.expect(r"\] up", 2)
        job.signal(signal.SIGUSR1)
        job.expect(r"SIGUSR1: passed on to worker 0\.0\. Not to worker 0\.1")
        job.expect(r"got SIGUSR1")
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        assert job.left() == []


def test_sigquit_shows_stacks_and_the_job_goes_on(tmp_path: Path) -> None:
    with Job(tmp_path, UNCAUGHT, "-w", "2", *CPU) as job:
        job.expect(r"\] up", 2)
        job.signal(signal.SIGQUIT)
        job.expect(r'script\.py", line \d', 2)
        job.until(lambda: 'script.py", line' in job.log(0, 0, 1), "in the log of worker 1")
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        assert job.left() == []


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    with Job(tmp_path, IGNORES, "--grace", "3600", *CPU) as job:
        job.expect(r"\] up")
        job.signal(signal.SIGTERM)
        job.expect(r"SIGTERM: leaving")
        job.signal(signal.SIGINT)
        assert job.end() == 75
        job.expect(r"SIGINT: a second request to stop")
        assert job.left() == []


def test_a_signal_that_is_not_to_be_handled_stops_at_once(tmp_path: Path) -> None:
    options = ("--signals-to-handle", "SIGINT,USR1", *CPU)
    with Job(tmp_path, PLAIN, *options) as job:
        job.expect(r"\] up")
        job.signal(signal.SIGTERM)
        assert job.end() == 143
        job.expect(r"SIGTERM is not one of --signals-to-handle")
        assert job.left() == []


def test_a_notice_by_a_file_or_a_signal_drains(tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    with Job(tmp_path, HANDLES, "--preempt-file", str(notice), *CPU) as job:
        job.expect(r"\] up")
        notice.touch()
        assert job.end() == 75
        job.expect(r"notice has appeared: leaving")
        job.expect(r"got SIGTERM")
        assert job.left() == []
    with Job(tmp_path, IGNORES, "--preempt-signal", "USR2", "--grace", "3600", *CPU) as job:
        job.expect(r"\] up")
        job.signal(signal.SIGUSR2)
        job.expect(r"SIGUSR2: leaving")
        job.signal(signal.SIGTERM)
        job.expect(r"SIGTERM: this node is leaving already")
        job.signal(signal.SIGINT)
        assert job.end() == 75
        assert job.left() == []
