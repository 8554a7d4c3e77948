"""The script of the in-step repair tests: in each mode, replica 2 kills itself within a step.

A mode is a way to use DDP. In each mode, all three replicas train; replica 2 dies in its backward
pass, and the others continue. Once its successor takes part, the next mode begins. The progress of
a mode is state like the weights, so all replicas agree on it.

``$E2E_OUT/<replica>.0.<pid>``: a line per commit: step, lineage, digest of the state.
``$E2E_OUT/verdict-<replica>-<mode>``: the reduced gradients of the step of the death.
"""

import contextlib
import copy
import functools
import hashlib
import os
import signal
from datetime import timedelta
from typing import Any

import torch
from torch import nn

import ftrun
from ftrun import DistributedDataParallel, GradScaler, Optimizer, PureDistributedDataParallel

OUT = os.environ["E2E_OUT"]
MODES = os.environ["E2E_MODES"].split(",")
VICTIMS = os.environ.get("E2E_VICTIMS", "2").split(",")
REPLICAS = int(os.environ["NUM_REPLICA_GROUPS"])
ME = os.environ["REPLICA_GROUP_ID"]
WIDTH, LAYERS = 24, 5
SKIPPED = float(2**120)  # a loss scale of this size makes the gradients infinite

KINDS: dict[str, dict[str, Any]] = {
    "views": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "unused-views": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "accumulate-views": {"gradient_as_bucket_view": True},
}


class Net(nn.Module):
    """Layers in a row, and branches: a replica uses one branch, and no replica uses the last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.branches = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(REPLICAS + 1))

    def forward(self, x: torch.Tensor, branch: int | None) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        used = self.branches if branch is None else [self.branches[branch]]
        return functools.reduce(torch.add, (layer(x).square().mean() for layer in used))


def data(replica: int, step: int, part: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 10 * replica + part)
    return torch.randn(4, WIDTH, generator=generator)


def parts(mode: str) -> range:
    return range(3 if mode.startswith("accumulate") else 1)


def loss_of(net: nn.Module, mode: str, replica: int, step: int, part: int) -> torch.Tensor:
    branch = replica if mode.startswith("unused") else None
    loss: torch.Tensor = net(data(replica, step, part), branch)
    return loss


torch.manual_seed(os.getpid())  # different weights everywhere: only healing makes them equal
nets = nn.ModuleDict({mode: Net() for mode in MODES})
inner = torch.optim.Adam(nets.parameters(), lr=0.01)
place = {"mode": 0, "steps": 0, "is_killed": 0}
torchs_scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (10 + int(ME)))


def load(state: dict[str, Any]) -> None:
    nets.load_state_dict(state["nets"])
    inner.load_state_dict(state["optim"])
    torchs_scaler.load_state_dict(state["scaler"])
    place.update(state["place"])


def state() -> dict[str, Any]:
    return {
        "nets": nets.state_dict(),
        "optim": inner.state_dict(),
        "scaler": torchs_scaler.state_dict(),
        "place": dict(place),
    }


manager = ftrun.manager(
    load,
    state,
    use_async_quorum=False,  # a replica without the state does not know the mode
    timeout=timedelta(seconds=20),
    quorum_timeout=timedelta(seconds=60),
    repair=os.environ.get("E2E_REPAIR", "reissue"),
)
optimizer = Optimizer(manager, inner)
our_scaler = GradScaler(manager, "cpu", init_scale=2.0 ** (8 + int(ME)))


def wrap(mode: str) -> nn.Module:
    if mode == "pure":
        return PureDistributedDataParallel(manager, nets[mode])
    kind = KINDS.get(mode, {})
    return DistributedDataParallel(manager, nets[mode], bucket_cap_mb=0.003, **kind)


wrapped = {mode: wrap(mode) for mode in MODES}


def gradients(net: nn.Module) -> torch.Tensor:
    grads = (torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters())
    return torch.cat([g.flatten() for g in grads]).detach().clone()


def local(mode: str, net: nn.Module, replica: int, step: int) -> torch.Tensor:
    """The contribution of ``replica`` to ``step``, computed locally with the same weights."""
    net = copy.deepcopy(net)
    net.zero_grad()
    for part in parts(mode):
        loss_of(net, mode, replica, step, part).backward()
    return gradients(net)


def digest() -> str:
    """A digest of all weights, the optimizer's state and the scales, in 16 hex digits."""
    found = hashlib.sha256(repr((torchs_scaler.state_dict(), our_scaler.state_dict())).encode())
    for tensor in [*nets.parameters(), *(t for s in inner.state.values() for t in s.values())]:
        found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()[:16]


def is_fatal() -> bool:
    """Whether this is the step in which the victims die."""
    return not place["is_killed"] and place["steps"] >= 3


def die_in_backward(net: Net) -> None:
    """Die after some buckets are reduced and before others are."""
    weight = net.layers[1].weight
    weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[operator]


def backward(mode: str, step: int) -> None:
    ddp = wrapped[mode]
    last = parts(mode)[-1]
    for part in parts(mode):
        quiet = ddp.no_sync() if part != last else contextlib.nullcontext()  # type: ignore[operator]
        with quiet:
            loss = loss_of(ddp, mode, int(ME), step, part)
            if ME in VICTIMS and part == last and is_fatal():
                die_in_backward(nets[mode])  # type: ignore[arg-type]
            scale(mode, loss).backward()


def scale(mode: str, loss: torch.Tensor) -> torch.Tensor:
    if mode == "skipped":
        return our_scaler.scale(loss) * SKIPPED * SKIPPED
    return scalers()[mode].scale(loss) if mode in scalers() else loss


def scalers() -> dict[str, torch.amp.GradScaler]:
    return {"scaler": our_scaler, "skipped": our_scaler, "torch-scaler": torchs_scaler}


def finish(mode: str) -> None:
    """Run from the gradients to the commit, like scripts of this mode."""
    scaler = scalers().get(mode)
    if scaler is None:
        if mode == "clip":
            nn.utils.clip_grad_norm_(nets[mode].parameters(), 0.001)
        optimizer.step()
        return
    scaler.step(optimizer)
    scaler.update()


def verdict(mode: str, step: int, found: torch.Tensor, before: nn.Module) -> str:
    """Classify the reduced gradients: the mean of all, of the survivors, or of no known set."""
    if mode == "skipped":
        return "infinite" if not found.isfinite().all() else "finite"
    if mode in scalers():
        found = found / scalers()[mode].get_scale()
    of_each = [local(mode, before, replica, step) for replica in range(REPLICAS)]
    left = [g for replica, g in enumerate(of_each) if str(replica) not in VICTIMS]
    for name, group in (("complete", of_each), ("survivors", left)):
        if torch.allclose(found, torch.stack(group).mean(0), rtol=1e-4, atol=1e-6):
            return name
    return "neither"


def note(participants: int) -> None:
    """Note the mode's progress after this step; every replica computes the same.

    If a replica is missing that did not kill itself, as after a pause of the machine, the count
    starts over.
    """
    fatal = is_fatal()
    place["steps"] = place["steps"] + 1 if participants == REPLICAS else 0
    if participants < REPLICAS:
        place["is_killed"] |= fatal
    elif place["is_killed"] and place["steps"] >= 2:
        place.update(mode=place["mode"] + 1, steps=0, is_killed=0)


def main() -> None:
    with open(f"{OUT}/{ME}.0.{os.getpid()}", "w", buffering=1) as lines:
        while place["mode"] < len(MODES):
            one_step(lines)
    print(f"hash {digest()}", flush=True)


def one_step(lines: Any) -> None:
    optimizer.zero_grad()
    mode, step = MODES[place["mode"]], manager.current_step()
    before = copy.deepcopy(nets[mode])
    fatal = is_fatal()
    backward(mode, step)
    found = gradients(nets[mode])
    told = verdict(mode, step, found, before) if fatal else ""
    finish(mode)
    if optimizer.committed:
        commit(lines)
    if fatal:
        with open(f"{OUT}/verdict-{ME}-{mode}", "a") as file:
            outcome = "committed" if optimizer.committed else "discarded"
            file.write(f"{told} {outcome}\n")


def commit(lines: Any) -> None:
    participants = manager.num_participants()
    note(participants)
    held = manager.state_dict()
    lines.write(f"{held['step']} {held['lineage']} {digest()}\n")


if __name__ == "__main__":
    main()
