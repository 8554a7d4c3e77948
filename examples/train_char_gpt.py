"""A small GPT that learns to write Python from the text of the standard library, byte by byte.

    ftrun --replicas 3 examples/train_char_gpt.py

Written in torchft's way: the Manager is made by hand around a process group, and the script runs
unchanged on torchft when ``ftrun`` is replaced by ``torchft`` in the imports.
"""

import hashlib
import os
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from ftrun import (
    DistributedDataParallel,
    Manager,
    Optimizer,
    ProcessGroupGloo,
    ProcessGroupNCCL,
)

# ---------------------------------------------------------------- settings

STEPS = int(os.environ.get("STEPS", "300"))
BATCH = 16  # sequences per replica and step
CONTEXT = 64  # bytes that the model sees at once
LAYERS, HEADS, WIDTH = 2, 4, 96
LEARNING_RATE = 1e-3
WARMUP_STEPS = 20
CLIP_NORM = 1.0
LOG_EVERY = 50
SEED = 1
PROMPT = b"def "

device = "cuda" if torch.cuda.is_available() else "cpu"  # ftrun shows each worker its own GPUs

# ---------------------------------------------------------------- data

modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
text = torch.frombuffer(bytearray(b"".join(m.read_bytes() for m in modules)), dtype=torch.uint8)


def batch(step: int, rank: int | None, contributors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences for contributor ``rank`` in ``step``, and the bytes that follow each byte."""
    generator = torch.Generator().manual_seed(SEED + step)
    starts = torch.randint(len(text) - CONTEXT - 1, (contributors, BATCH), generator=generator)
    window = starts[rank or 0].unsqueeze(1) + torch.arange(CONTEXT + 1)
    drawn = text[window].long().to(device)
    return drawn[:, :-1], drawn[:, 1:]


# ---------------------------------------------------------------- model


class Block(nn.Module):
    """Attention over what came before, then a perceptron; each added to what was there."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Bytes in, the scores of the byte that comes next out."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded = self.byte(x) + self.place(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(embedded)))


torch.manual_seed(SEED)
model = GPT().to(device)
adam = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
schedule = torch.optim.lr_scheduler.LinearLR(adam, 0.1, 1.0, total_iters=WARMUP_STEPS)
parts = {"model": model, "optimizer": adam, "schedule": schedule}


def load_state_dict(states: dict) -> None:
    """Take over what a peer has learned."""
    for name, part in parts.items():
        part.load_state_dict(states[name])


manager = Manager(
    pg=ProcessGroupNCCL() if device == "cuda" else ProcessGroupGloo(),
    min_replica_size=1,
    load_state_dict=load_state_dict,
    state_dict=lambda: {name: part.state_dict() for name, part in parts.items()},
)
optimizer = Optimizer(manager, adam)
network = DistributedDataParallel(manager, model)

# ---------------------------------------------------------------- training

print(f"training with pid {os.getpid()}: kill -9 it to see it replaced", flush=True)
while manager.current_step() < STEPS:
    optimizer.zero_grad()
    step = manager.current_step()
    inputs, targets = batch(step, manager.participating_rank(), manager.num_participants())
    loss = F.cross_entropy(network(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    # What is clipped here are the averaged gradients, which stand whatever happens to peers.
    nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.step()
    if manager.current_step() > step:
        schedule.step()  # only if the step was committed: the schedule is part of the state
    if step % LOG_EVERY == 0 and manager.participating_rank() == 0:
        print(
            f"step {step}: loss {loss.item():.3f}, {manager.num_participants()} replicas",
            flush=True,
        )

# ---------------------------------------------------------------- result

written = torch.tensor([list(PROMPT)])
dice = torch.Generator().manual_seed(SEED)  # equal models write equal words
with torch.no_grad():
    for _ in range(60):
        chances = model(written[:, -CONTEXT:].to(device))[:, -1].softmax(-1).cpu()
        written = torch.cat([written, torch.multinomial(chances, 1, generator=dice)], 1)
digest = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters()))
print(
    f"finished {manager.current_step()} steps: it writes {bytes(written[0].tolist())!r}, "
    f"parameters {digest.hexdigest()[:16]}",
    flush=True,
)
