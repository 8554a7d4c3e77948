"""Tensors and arrays outside the modules: averages by hand, a copy of the best state, a table."""

import copy

import moment
import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Average:
    """As people write it: a dict whose tensors are replaced, and lists changed in place."""

    def __init__(self, model):
        self.model = model
        self.shadow = {name: p.data.clone() for name, p in model.named_parameters()}
        self.slow = [p.detach().clone() for p in model.parameters()]
        self.parameters = [copy.deepcopy(list(model.parameters()))]  # by rate, as of diffusion
        self.momentum = {}  # by parameter, as optimizers that people write

    def update(self):
        for name, p in self.model.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * p.data
        for slow, p in zip(self.slow, self.model.parameters(), strict=True):
            slow.mul_(0.8).add_(p.detach(), alpha=0.2)
        for mean, p in zip(self.parameters[0], self.model.parameters(), strict=True):
            mean.detach().mul_(0.7).add_(p, alpha=0.3)
        for p in self.model.parameters():
            self.momentum[p] = 0.6 * self.momentum.get(p, torch.zeros_like(p)) + p.detach()


class Bag(nn.Module):
    """Tensors as a module, to be compared."""

    def __init__(self, tensors):
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(x.clone()) for x in tensors])


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        loss = nn.functional.mse_loss(model.module(x), y).item()
    model.train()
    return loss


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    x = torch.randn(240, 8)
    y = x @ torch.randn(8, 1)
    set_ = TensorDataset(x, y)
    sampler = DistributedSampler(set_)
    loader = DataLoader(set_, 8, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rates = numpy.linspace(0.05, 0.02, 4)
    optimizer.param_groups[0]["is_decayed"] = lambda parameter: parameter.ndim > 1  # as LARS has it
    average, best, best_epoch = Average(model.module), float("inf"), -1
    once_an_epoch = AveragedModel(model.module)
    table, seen = numpy.zeros((3, 4), dtype=numpy.int64), torch.zeros(4)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        optimizer.param_groups[0]["lr"] = rates[epoch]  # as DINO has it
        for i, (bx, by) in enumerate(loader):
            moment.at(f"train {epoch} {i}")
            optimizer.zero_grad()
            nn.functional.mse_loss(model(bx), by).backward()
            optimizer.step()
            average.update()
            table[i % 3, epoch] += i
            seen[epoch] += 1
        moment.at(f"evaluation {epoch}")
        loss = evaluate(model, x, y)
        if epoch in (1, 2):
            best, best_epoch = loss, epoch
            best_state = copy.deepcopy(model.state_dict())
        once_an_epoch.update_parameters(model.module)
    last = [p.detach().clone() for p in model.parameters()]
    model.load_state_dict(best_state)
    tested = evaluate(model, x, y)
    moment.at("the end")
    assert tested == best, (tested, best)
    modules = {
        "model": model.module,
        "shadow": Bag(average.shadow.values()),
        "slow": Bag(average.slow),
        "momentum": Bag(average.momentum.values()),
        "parameters": Bag(average.parameters[0]),
        "best": Bag(best_state.values()),
        "once an epoch": once_an_epoch.module,
        "last": Bag(last),
    }
    counted = {
        "best_epoch": best_epoch,
        "rate": float(optimizer.param_groups[0]["lr"]),
        "table": table.tolist(),
        "seen": seen.tolist(),
    }
    moment.end(modules, **counted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
