"""The start of a worker, forked or a standby: its own random numbers, its own descriptors, one
thread, no CUDA; and the cost of standbys for a job that they do not help."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ftrun.base import linux
from tests.jobs import Job

STANDBY_TITLE = "ftrun standby-"

TELLS = """
import json, os, random, signal, sys
fds = {}
for name in os.listdir("/proc/self/fd"):
    try:
        fds[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    except OSError:  # the listing's own
        pass
threads = len(os.listdir("/proc/self/task"))
spawner_threads = len(os.listdir(f"/proc/{os.getppid()}/task"))
import numpy, threading, torch
facts = {
    "replica": os.environ["REPLICA_GROUP_ID"], "life": os.environ["TORCHELASTIC_RESTART_COUNT"],
    "incarnation": os.environ["FTRUN_INCARNATION"], "owner": os.environ["FTRUN_OWNER"],
    "pid": os.getpid(), "sid": os.getsid(0), "argv": sys.argv[1:], "fds": fds,
    "threads": threads, "spawner_threads": spawner_threads,
    "random": random.random(), "numpy": float(numpy.random.rand()), "torch": float(torch.rand(1)),
    "seed": torch.initial_seed(),
    "secret": os.urandom(8).hex(), "cuda": torch.cuda.is_initialized(),
    "signals": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler,
}
# A script may start threads, children and loaders of its own.
threading.Thread(target=lambda: None).start()
loader = torch.utils.data.DataLoader([1.0, 2.0], num_workers=1)
facts["loaded"] = [float(item) for item in loader]
print("facts", json.dumps(facts), flush=True)
signal.pause()
"""
WARM = "\n# DistributedDataParallel: so the spawner imports everything before the first fork\n"


def facts(job: Job, count: int) -> list[dict[str, Any]]:
    found = job.expect(r"facts (\{.*\})$", count)
    return [json.loads(text) for text in found]


def assert_fresh(fact: dict[str, Any]) -> None:
    assert fact["argv"] == ["--x"]
    assert fact["sid"] == fact["pid"]
    own = [name for name in fact["fds"] if int(name) > 100]
    assert ["/stacks-" in fact["fds"][name] for name in own] == [True], fact
    assert sorted(fact["fds"].keys() - set(own)) == ["0", "1", "2"], fact
    assert fact["fds"]["0"] == "/dev/null"
    assert fact["fds"]["1"] != fact["fds"]["2"]
    assert fact["threads"] == fact["spawner_threads"] == 1
    assert not fact["cuda"]
    assert fact["owner"] == fact["incarnation"]
    assert fact["signals"]
    assert fact["loaded"] == [1.0, 2.0]


def test_workers_and_replacements_are_as_fresh_as_a_new_interpreter(tmp_path: Path) -> None:
    options = ("--replicas", "2", "--standby", "2")
    one_thread = ("env", "OMP_NUM_THREADS=1")
    with Job(tmp_path, TELLS + WARM, *options, args=("--x",), within=one_thread) as job:
        facts(job, 2)
        job.until(lambda: len(standbys(job)) == 2, "two standbys")
        ready = standbys(job)
        os.kill(job.worker(0), signal.SIGKILL)
        replaced = facts(job, 3)[-1]
        assert replaced["pid"] in ready
        assert (replaced["replica"], replaced["life"]) == ("0", "1")
        os.kill(job.worker(1), signal.SIGKILL)
        all_facts = facts(job, 4)
        for fact in all_facts:
            assert_fresh(fact)
        for what in ("random", "numpy", "torch", "seed", "secret", "incarnation", "pid"):
            assert len({fact[what] for fact in all_facts}) == 4, what
        assert len(os.listdir(f"/proc/{job.spawner()}/task")) == 1
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        assert "standbys: 2 kept, 2 used" in job.output
        assert job.left() == []


def standbys(job: Job) -> set[int]:
    return {pid for pid in job.pids() if linux.command_line(pid).startswith(STANDBY_TITLE)}


def test_a_standby_that_dies_is_replaced_and_none_outlives_its_spawner(tmp_path: Path) -> None:
    with Job(tmp_path, TELLS + WARM, "--standby", "1", args=("--x",), fresh=True) as job:
        (worker,) = facts(job, 1)
        first = job.expect_process(STANDBY_TITLE)
        os.kill(first, signal.SIGKILL)
        job.expect_process(STANDBY_TITLE, but=first)
        assert job.worker(0) == worker["pid"]
        os.kill(job.spawner(), signal.SIGKILL)
        assert job.left() == []
        assert job.end() == 70


@pytest.mark.slow
def test_a_stopped_standby_is_not_waited_for_by_the_others(tmp_path: Path) -> None:
    """Its assignment lies unread: it hangs like any stopped worker, and the job can be ended."""
    with Job(tmp_path, TELLS + WARM, "--replicas", "2", "--standby", "1", args=("--x",)) as job:
        facts(job, 2)
        os.kill(job.expect_process(STANDBY_TITLE), signal.SIGSTOP)
        os.kill(job.worker(0), signal.SIGKILL)
        job.expect("died: SIGKILL")
        os.kill(job.worker(1), signal.SIGKILL)
        assert facts(job, 3)[-1]["replica"] == "1"
        job.signal(signal.SIGKILL)
        assert job.left() == []
