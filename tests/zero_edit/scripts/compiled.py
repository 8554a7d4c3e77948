"""Models that torch.compile compiles: under DDP, around it, and with the whole step around that."""

import argparse

import moment
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

compiled = {"backend": "aot_eager"}  # needs no compiler of C++


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        for i in range(len(self.layers)):
            x = torch.tanh(self.layers[i](x))
        for i, layer in enumerate(self.layers):
            x = x + i * torch.tanh(layer(x))
        return self.out(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("form", choices=("model", "ddp", "step"))
    form = parser.parse_args().form
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    layers = Layers()
    if form == "model":
        model = DDP(torch.compile(layers, fullgraph=True, **compiled))
    elif form == "ddp":
        model = torch.compile(DDP(layers), **compiled)
    else:
        model = DDP(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    if form == "step":
        step = torch.compile(step, **compiled)
    x = torch.randn(192, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    total = 0
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for i, batch in enumerate(DataLoader(data, 8, sampler=sampler)):
            moment.at(f"train {epoch} {i}")
            step(*batch)
            total += i
    moment.at("the end")
    moment.end({"model": layers}, epoch=epoch, total=total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
