"""A newcomer broadcasts its model's buffers in those passes in which its peers do."""

from __future__ import annotations

from pathlib import Path

from tests.jobs import Job

EVALUATES = """
import os, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 4))  # so the next pass in training broadcasts no buffers
    model.train()
    if epoch == 1 and rank == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
print("END", int(model.module[1].num_batches_tracked), flush=True)
"""


def test_a_newcomer_that_joins_after_an_evaluation(tmp_path: Path) -> None:
    """Its peer waits for it: it joins in the first step after the evaluation."""
    with Job(tmp_path, EVALUATES, "--replicas", "2", "--min-replicas", "2") as job:
        assert job.end() == 0, job.output
        assert "Replica 0 healed from replica 1: step 6" in job.output
        assert job.output.count("END ") == 2


SYNCED = """
import os, signal, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
while not (first or os.path.exists("synced")):
    time.sleep(0.01)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = lambda: [float(x.double().sum()) for x in model.state_dict().values()]
for step in range(30):
    optimizer.zero_grad()
    model(torch.randn(8, 4) * (1 + step)).pow(2).mean().backward()
    optimizer.step()
    if (rank, step, first) == (0, 12, True):
        os.kill(os.getpid(), signal.SIGKILL)
    if step % 5 == 4:
        before = state()
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.data, 0)
        if rank == 1:
            print("SYNCED", step, before == state(), flush=True)
        if step == 14:
            open("synced", "w").close()
print("END", rank, state(), flush=True)
"""


def test_what_the_dead_rank_broadcast_of_the_model_last_does_not_come_back(tmp_path: Path) -> None:
    """Rank 0 broadcasts the model every five steps. While it is away the others have it newer."""
    with Job(tmp_path, SYNCED, "--replicas", "2") as job:
        assert job.end() == 0, job.output
        assert job.output.count("healed from replica") == 1, job.output
        read = [line.partition("SYNCED ")[2] for line in job.output.splitlines()]
        assert [line for line in read if line] == [f"{x} True" for x in range(4, 30, 5)]
        ends = [x.partition("END ")[2][2:] for x in job.output.splitlines() if "END " in x]
        assert len(ends) == 2 and len(set(ends)) == 1
