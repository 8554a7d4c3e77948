"""The model of the chaos runs, with gradients whose sums are exact in any order.

Every gradient is rounded to a multiple of 12 / 2**30. Divided by 1 to 4 contributors and added up
in float64, in any order that a ring takes, it is never rounded again. So one process can replay a
job of several, bit for bit (S6). Used by the job's script and by its oracle; not here: either of
them.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

BATCH = 4
REPLICAS_MAX = 16
INPUTS, WIDTH = 8, 16
GRAIN = 12 / 2**30
GRAINS_MAX = 2**30


class Trained:
    """A model and its optimizer, from a seed; ``ballast`` is more state, which is never trained.

    The ballast differs by seed, so that a heal that mixes two states is detected.
    """

    def __init__(self, seed: int, ballast_bytes: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(INPUTS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
        ).to(torch.float64)  # fmt: skip
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        for parameter in self.model.parameters():
            parameter.register_hook(_in_grains)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        size = (ballast_bytes,)
        self.ballast = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
        self._ballast_digest = self._weigh()

    def loss(self, network: nn.Module, ids: list[int]) -> torch.Tensor:
        """The loss of ``network`` (the model, wrapped or not) on the samples with these ids."""
        x, y = samples(ids)
        loss: torch.Tensor = (network(x).squeeze(1) - y).square().mean()
        return loss

    def digest(self) -> str:
        """Weights, optimizer state and ballast in 16 hex digits."""
        found = hashlib.sha256(self._ballast_digest)
        for parameter in self.model.parameters():
            found.update(parameter.detach().numpy().tobytes())
            state = self.optimizer.state.get(parameter, {})
            for name in sorted(state):
                found.update(state[name].numpy().tobytes())
        return found.hexdigest()[:16]

    def state(self) -> dict[str, Any]:
        """The state that heals."""
        optimizer = self.optimizer.state_dict()
        return {"model": self.model.state_dict(), "optim": optimizer, "ballast": self.ballast}

    def load(self, state: dict[str, Any]) -> None:
        """Take a peer's state."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optim"])
        self.ballast.copy_(state["ballast"])
        self._ballast_digest = self._weigh()

    def _weigh(self) -> bytes:
        return hashlib.sha256(self.ballast.numpy().tobytes()).digest()


def sample_ids(step: int, replica: int) -> list[int]:
    """The samples that a replica contributes to a step."""
    first = (step * REPLICAS_MAX + replica) * BATCH
    return list(range(first, first + BATCH))


def samples(ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets: they depend only on the ids."""
    rows = [
        torch.randn(INPUTS + 1, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        for i in ids
    ]
    table = torch.stack(rows)
    return table[:, :INPUTS].contiguous(), table[:, INPUTS].contiguous()


def _in_grains(gradient: torch.Tensor) -> torch.Tensor:
    return torch.round(gradient / GRAIN).clamp(-GRAINS_MAX, GRAINS_MAX) * GRAIN
