"""Processes that a script starts: itself anew, and a child that trains. For two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import torch

from tests.undisturbed.programs._training import train
from tests.undisturbed.table import program, rank, run, say, size

CHILD = "CHILD_OF_THE_PROGRAM"


@program
def a_child_that_trains() -> Any:
    environment = {**os.environ, CHILD: "1"}
    command = [sys.executable, *sys.argv[:1]]
    return subprocess.run(command, env=environment, timeout=120).returncode


@program
def a_child_that_asks_nothing() -> Any:
    if rank() != 1:  # one interpreter that imports torch is enough
        return None
    code = "import os, torch; print(os.environ['RANK'], torch.ones(2).sum().item())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return [done.returncode, done.stdout.strip()]


@program
def processes_of_a_loader() -> Any:
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.arange(8.0)), 2, num_workers=1)
    return [batch.tolist() for (batch,) in loader]


@program
def a_forked_child() -> Any:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, f"{rank()} of {size()}, {torch.ones(3).sum().item()}".encode())
        os._exit(3)
    _, status = os.waitpid(pid, 0)
    return [os.read(read, 100), os.waitstatus_to_exitcode(status)]


@program
def spawned_children() -> Any:
    if rank() != 0:
        return None
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    child = context.Process(target=queue.put, args=(torch.ones(2).tolist(),))
    child.start()
    found = queue.get()
    child.join(60)
    return [found, child.exitcode]


if __name__ == "__main__":
    if CHILD in os.environ:
        say("a_child_that_trains", train())
        os._exit(0)  # torch aborts at the end of one such process in ten, also under torchrun
    else:
        run(makes_world=False)
