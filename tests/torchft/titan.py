"""torchtitan's fault-tolerant trainer on a CPU: its own classes, a small model, synthetic tokens.

torchtitan itself is not changed. What it needs of a GPU or of a newer torch is replaced here, and
the learning rate is constant: its optimizer container heals a newcomer's first step with the rate
of the start of the job, on torchft too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch._utils
import torch.distributed
from torch.distributed.tensor import DTensor
from torch.nn.functional import scaled_dot_product_attention

torch._utils._get_available_device_type = lambda: "cpu"
setattr(torch.cpu, "current_device", lambda: 0)  # noqa: B010  # torch itself says "cpu"
if not hasattr(torch.distributed, "set_timeout"):
    setattr(torch.distributed, "set_timeout", lambda timeout, group=None: None)  # noqa: B010

from torchtitan.components import metrics  # noqa: E402
from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.experiments.torchft.llama3 import model_registry  # noqa: E402
from torchtitan.experiments.torchft.llama3.config_registry import (  # noqa: E402
    llama3_torchft_debugmodel,
)
from torchtitan.models.common.attention import FlexAttention  # noqa: E402
from torchtitan.tools.logging import init_logger  # noqa: E402

ALONE_S = 3.0
"""A step takes this long while the other replica is away, which imports torchtitan for half a
minute."""
NO_MEMORY = metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)
metrics.build_device_memory_monitor = lambda: SimpleNamespace(
    device_name="cpu", get_peak_stats=lambda: NO_MEMORY, reset_peak_stats=lambda: None
)


def attention(q: Any, k: Any, v: Any, *, enable_gqa: bool, **_: Any) -> tuple[Any, Any]:
    """FlexAttention has no backward pass on a CPU."""
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=enable_gqa)
    return out, SimpleNamespace(lse=None)


FlexAttention._compiled_flex_attn = staticmethod(attention)


class Tokens(BaseDataLoader):
    """Random tokens by rank and draw."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Nothing to set."""

    def __init__(
        self, config: Any, *, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> None:
        self.rank, self.shape, self.drawn = dp_rank, (local_batch_size, seq_len + 1), 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        places = torch.arange(self.shape[1] - 1).expand(self.shape[0], -1).contiguous()
        while True:
            seed = torch.Generator().manual_seed(self.drawn * 1000 + self.rank)
            self.drawn += 1
            tokens = torch.randint(0, 2048, self.shape, generator=seed)
            yield {"input": tokens[:, :-1].contiguous(), "positions": places}, tokens[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.drawn = state_dict["drawn"]


def configured(method: str, steps: int) -> Any:
    """torchtitan's own configuration of its smallest model for torchft."""
    config = llama3_torchft_debugmodel()
    config.model_spec = model_registry("debugmodel")
    config.tokenizer, config.dataloader = None, Tokens.Config()
    config.validator.enable = config.profiler.enable_profiling = config.compile.enable = False
    config.activation_checkpoint = None
    config.parallelism.spmd_backend = "partial_dtensor"
    config.training.local_batch_size, config.training.seq_len = 1, 16
    config.training.steps, config.training.disable_cuda_graphs = steps, True
    config.lr_scheduler.warmup_steps, config.lr_scheduler.min_lr_factor = 0, 1.0
    config.checkpoint.enable, config.checkpoint.interval = True, 1000
    config.checkpoint.folder, config.dump_folder = "checkpoints", "out"
    faults = config.fault_tolerance
    faults.semi_sync_method, faults.process_group = method or None, "gloo"
    faults.replica_id = int(os.environ["REPLICA_GROUP_ID"])
    faults.group_size = int(os.environ["NUM_REPLICA_GROUPS"])
    return config


def main(method: str, steps: int) -> None:
    init_logger()
    trainer = configured(method, steps).build()
    step = trainer.train_step

    def train_step(batches: Any) -> None:
        step(batches)
        print("step", trainer.step, flush=True)
        if trainer.ft_manager.manager.num_participants() < 2:
            time.sleep(ALONE_S)

    trainer.train_step = train_step
    trainer.train()
    total = torch.zeros((), dtype=torch.float64)
    for part in trainer.model_parts:
        for found in part.parameters():
            whole = found.full_tensor() if isinstance(found, DTensor) else found
            total += whole.detach().double().abs().sum()
    print(f"end {trainer.step} {float(total)!r}", flush=True)
    trainer.close()


if __name__ == "__main__":
    main(sys.argv[1].removeprefix("plain"), int(sys.argv[2]))
