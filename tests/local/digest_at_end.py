"""Preloaded into the workers of an unchanged script: its Manager prints a hash when it shuts down.

It is the hash of the global state, that of DiLoCo's fragments: global weights and outer optimizers.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from ftrun.training.manager import Manager

PREFIX = "StreamingDiLoCoFragment_"
_shutdown = Manager.shutdown


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for key in sorted(value, key=str) for tensor in _tensors(value[key])]
    return []


def _shutdown_with_digest(self: Manager, wait: bool = True) -> None:
    found = hashlib.sha256()
    for key, (_, state) in sorted(self._healing._functions.items()):
        if key.startswith(PREFIX):
            for tensor in _tensors(state()):
                found.update(tensor.detach().contiguous().numpy().tobytes())
    print(f"END step {self.current_step()} state {found.hexdigest()[:16]}", flush=True)
    _shutdown(self, wait)


Manager.shutdown = _shutdown_with_digest  # type: ignore[method-assign]
