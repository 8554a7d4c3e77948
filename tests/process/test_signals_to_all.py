"""SIGTERM to all processes of a job at once, as scancel, systemd and Kubernetes send it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.jobs import Job

SAVES = """
import signal, sys, time
import torch
import torch.distributed as dist

masks = [line.split() for line in open("/proc/self/status") if line[:3] == "Sig"]
numbers = signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2
assert all(signal.getsignal(number) is signal.SIG_DFL for number in numbers), masks
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set(), masks
stop = []
signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
dist.init_process_group("gloo")
for step in range(100_000):
    flag = torch.tensor([len(stop)])
    dist.all_reduce(flag)
    if step == 0:
        print("up", flush=True)
    if flag.item():
        time.sleep(1)  # a checkpoint is written
        print("saved", dist.get_rank(), flush=True)
        sys.exit(0)
    time.sleep(0.01)
"""
HELPERS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@pytest.mark.parametrize("options", [("--nproc-per-node", "2"), ("--replicas", "2")])
def test_a_script_saves_when_all_get_sigterm(tmp_path: Path, options: tuple[str, ...]) -> None:
    options += ("--grace", "120", "--device", "cpu")
    with Job(tmp_path, SAVES, *options, fresh=True) as job:
        job.expect(r"\] up", 2)
        helpers = [job.spawner(), job.stores(), job.lighthouse()]
        for number in HELPERS:
            for pid in helpers:
                os.kill(pid, number)
        for pid in job.pids():
            os.kill(pid, signal.SIGTERM)
        assert job.end() == 75
        assert sorted(job.expect(r"\] saved (\d)", 2)) == ["0", "1"]
        for word in ("died", "again", "killed", "lost"):
            assert word not in job.output, job.output
        assert job.left() == []
