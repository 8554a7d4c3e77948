"""What a process takes is read from the process itself; what cannot be read is not known."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ftrun.agent import worker_facts
from ftrun.agent.worker_facts import WorkerMeter, WorkerProcess
from ftrun.base import clock
from ftrun.core.agent.node_resources import GIB, Gpu
from ftrun.core.ids import WorkerKey

KEY = WorkerKey("0", "a", 0)
CARD = Gpu(3, "Card 9000", "GPU-77", 80 * GIB, 2 * GIB, busy_share=0.75)
SPINS = "while True: pass"


@pytest.fixture
def spinning() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", SPINS]) as process:
        yield process.pid
        process.kill()


def test_a_busy_process_takes_about_a_core(spinning: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_facts, "SHARE_OVER_S", 0.2)
    meter, process = WorkerMeter(), WorkerProcess(KEY, spinning)
    (first,) = meter.measure([process], [])
    assert (first.pid, first.device, first.cpu_share) == (spinning, "cpu", None)
    deadline = clock.now() + 60.0
    share = None
    while not share and clock.now() < deadline:
        (facts,) = meter.measure([process], [])
        share = facts.cpu_share
    assert share is not None and 0.0 < share < 1.5
    assert facts.rss_bytes is not None and facts.rss_bytes > 1 << 20
    assert facts.gpu_memory_bytes is facts.gpu_memory_total_bytes is facts.gpu_share is None


def test_a_share_is_not_taken_over_too_short_a_time(spinning: int) -> None:
    meter, process = WorkerMeter(), WorkerProcess(KEY, spinning)
    assert [meter.measure([process], [])[0].cpu_share for _ in range(3)] == [None] * 3


def test_another_process_in_the_same_place_begins_anew(spinning: int) -> None:
    meter = WorkerMeter()
    meter.measure([WorkerProcess(KEY, spinning)], [])
    (facts,) = meter.measure([WorkerProcess(KEY, os.getpid())], [])
    assert facts.cpu_share is None


def test_a_gpu_is_found_by_index_or_uuid_and_is_named_by_its_index() -> None:
    meter = WorkerMeter()
    here = WorkerProcess(KEY, os.getpid(), "3")
    for process in (here, replace(here, device="GPU-77")):
        (facts,) = meter.measure([process], [CARD])
        assert facts.device == "cuda:3"
        assert (facts.gpu_memory_bytes, facts.gpu_memory_total_bytes) == (2 * GIB, 80 * GIB)
        assert facts.gpu_share == 0.75
    (facts,) = meter.measure([replace(here, device="5")], [CARD])
    assert (facts.device, facts.gpu_memory_bytes, facts.gpu_share) == ("cuda:5", None, None)


def test_a_process_that_has_ended_is_left_out() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    meter = WorkerMeter()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert meter.measure([WorkerProcess(KEY, process.pid)], []) == ()  # a zombie
    process.wait()
    assert meter.measure([WorkerProcess(KEY, process.pid)], []) == ()
