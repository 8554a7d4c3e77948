"""What installed packages keep for a script in attributes: a Trainer its rollouts, an optimizer its
slow weights, an average of the weights that is no module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import Job

pytestmark = pytest.mark.timeout(300)

TRAINER = """
import torch
from torch.utils.data import DataLoader

class State:
    def __init__(self):
        self.log_history, self.global_step = [], 0

class Handler:
    def __init__(self):
        self.callbacks = []

class Loader:  # as accelerate's
    def __init__(self, data):
        self.data, self.iteration = DataLoader(data, 2), 0

class Accelerator:
    def __init__(self):
        self._dataloaders = []

class Trainer:  # as transformers'
    def __init__(self, model, optimizer, loader, epochs, on_loss):
        self.model, self.optimizer, self.loader, self.epochs = model, optimizer, loader, epochs
        self.state, self.callback_handler, self.on_loss = State(), Handler(), on_loss
        self.accelerator = Accelerator()

    def evaluate(self):
        loader = Loader(torch.zeros(4, 6))  # another one each time
        self.accelerator._dataloaders.append(loader)
        self.model.eval()
        self.given = iter(loader.data)  # as Lightning's: kept, and stopped by a count
        with torch.no_grad():
            for _ in range(len(loader.data)):
                self.model(next(self.given))
        self.model.train()
        loader.iteration += 1

    def train(self):
        for epoch in range(self.epochs):
            self.loader.sampler.set_epoch(epoch)
            self.run_epoch()

    def run_epoch(self):
        for inputs in self.loader:
            loss = self.compute_loss(self.prepare(inputs))
            self.optimizer.zero_grad()
            loss.backward()
            self.on_loss(self.state.global_step)
            self.optimizer.step()
            self.state.global_step += 1
            self.state.log_history.append({"loss": loss.item()})
            if self.state.global_step % 4 == 0:
                self.evaluate()
"""
ROLLOUTS = """
from collections import defaultdict
import torch, torch.distributed as dist
from transformers.trainer import Trainer

class GRPOTrainer(Trainer):  # as TRL's: each fourth step generates what four steps train on
    def __init__(self, *args):
        super().__init__(*args)
        self._step, self._buffered_inputs = 0, None
        self._metrics = {"train": defaultdict(list)}

    def prepare(self, inputs):
        if self._step % 4 == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self.generate(inputs[0])
        found = self._buffered_inputs[self._step % 4]
        self._step += 1
        return found

    @torch.no_grad()
    def generate(self, x):
        rewards = self.model.module(x).square().mean(1)
        every = [torch.zeros_like(rewards) for _ in range(dist.get_world_size())]
        dist.all_gather(every, rewards)  # which peers that do not generate never make
        advantages = rewards - torch.cat(every).mean()
        self._metrics["train"]["reward"].append(float(rewards.mean()))
        return [{"x": x * (1 + at / 9), "by": advantages, "none": None} for at in range(4)]

    def compute_loss(self, inputs):
        return (self.model(inputs["x"]).square().mean(1) * inputs["by"].sigmoid()).mean()
"""
OPTIMIZER = """
import torch

class Lookahead(torch.optim.SGD):  # keeps its slow weights on itself
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.slow, self.rounds = None, 0

    @torch.no_grad()
    def step(self):
        super().step()
        self.rounds += 1
        fast = self.param_groups[0]["params"]
        if self.slow is None:
            self.slow = [x.clone() for x in fast]
        elif self.rounds % 3 == 0:
            for slow, x in zip(self.slow, fast):
                x.copy_(slow.lerp_(x, 0.5))

class Average:  # as torch_ema's
    def __init__(self, parameters):
        self.shadow, self.updates = [x.detach().clone() for x in parameters], 0

    @torch.no_grad()
    def update(self, parameters):
        self.updates += 1
        for mine, x in zip(self.shadow, parameters):
            mine.lerp_(x, 0.1)
"""
SCRIPT = """
import hashlib, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.insert(0, os.path.abspath("site-packages"))
from trl import GRPOTrainer
from optimizers import Average, Lookahead

rank, deaths = int(os.environ["RANK"]), sys.argv[1:]

def on_loss(step):
    average.update(net.parameters())
    if f"{rank} in {step}" in deaths and not os.path.exists(f"died {step}"):
        open(f"died {step}", "w").close()
        os.kill(os.getpid(), 9)

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(48 * dist.get_world_size(), 6))
loader = DataLoader(data, 8, sampler=DistributedSampler(data))
net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
model, average = DistributedDataParallel(net), Average(net.parameters())
optimizer = Lookahead(model.parameters(), lr=0.1)
trainer = GRPOTrainer(model, optimizer, loader, 3, on_loss)
trainer.train()
found = [trainer._step, optimizer.rounds, average.updates, len(trainer._metrics["train"]["reward"])]
digest = hashlib.sha256(repr(found).encode())
for tensor in [*net.parameters(), *optimizer.slow, *average.shadow]:
    digest.update(tensor.detach().numpy().tobytes())
print(f"end {digest.hexdigest()[:16]}", flush=True)
"""
DEATHS = ("1 in 6", "0 in 11")
ONE_GROUP = ("--workers-per-replica", "2", "--device", "cpu", "--memory-snapshots")
MENDED = r"worker 0\.\d \(pid \d+\) died: SIGKILL\. Its replacement repeated the work since"


def write(directory: Path) -> None:
    files = {"transformers/trainer.py": TRAINER, "trl/__init__.py": ROLLOUTS}
    for name, text in {**files, "optimizers/__init__.py": OPTIMIZER}.items():
        path = directory / "site-packages" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (directory / "site-packages" / "transformers" / "__init__.py").touch()


def ends(output: str) -> list[str]:
    return re.findall(r"end (\w+)$", output, re.MULTILINE)


def test_replicas(tmp_path: Path) -> None:
    """A newcomer trains with its peer's rollouts, which are not its own, and steps as its peer."""
    write(tmp_path)
    options = ("--replicas", "2", "--min-replicas", "2", "--device", "cpu")
    with Job(tmp_path, SCRIPT, *options, args=DEATHS) as job:
        assert job.end() == 0, job.output
        found = ends(job.output)
        assert len(found) == 2 and len(set(found)) == 1, job.output
        joins = re.findall(r"replica \d joined at .*", job.output)
        assert len(joins) == 2, job.output
        for line in joins:
            lacking = line.partition("; not restored: ")[2]
            differ = "its own GRPOTrainer._buffered_inputs (ranks differ: it has its peer's)"
            assert lacking == differ, job.output


@pytest.mark.parametrize("replicas", [1, 2])
def test_replaced_in_place(tmp_path: Path, replicas: int) -> None:
    found = []
    for name, deaths in (("off", ()), ("auto", DEATHS)):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
        options = (*(("--replicas", "2") if replicas > 1 else ()), *ONE_GROUP, name)
        with Job(tmp_path / name, SCRIPT, *options, args=deaths) as job:
            assert job.end() == 0, job.output
            assert len(re.findall(MENDED, job.output)) == len(deaths), job.output
            found.append(sorted(ends(job.output)))
    assert len(found[0]) == 2 * replicas
    assert found[0] == found[1]
