"""Works that have failed, under torch's DistributedDataParallel."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from ftrun.process_groups.built import FinishedWork

SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ftrun.process_groups.built import FinishedWork

class Group(dist.ProcessGroup):
    def size(self):
        return 1

    def allreduce(self, tensors, opts=None):
        return FinishedWork(error=RuntimeError("a peer is gone"))

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = Group(0, 1)
model = DistributedDataParallel(torch.nn.Linear(2, 1), process_group=group, init_sync=False)
try:
    model(torch.ones(1, 2)).sum().backward()
except RuntimeError as error:
    print(error)
"""


def test_a_backward_pass_raises_what_its_reduction_has_failed_with() -> None:
    """A future with an exception of Python's ends the process with SIGSEGV there."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "a peer is gone" in done.stdout


def test_a_script_that_waits_gets_the_error_itself() -> None:
    work = FinishedWork(error=RuntimeError("a peer is gone"))
    assert not work.is_success()
    with pytest.raises(RuntimeError, match=r"^a peer is gone$"):
        work.get_future().wait()
    with pytest.raises(RuntimeError, match="a peer is gone"):
        work.get_future().then(lambda done: done.value()).wait()
    assert isinstance(work.get_future(), torch.futures.Future)
