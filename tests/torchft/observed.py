"""Preloaded into the workers of torchft's own scripts, under ftrun or torchft: notes each step.

``$BENCH_OUT/steps.<replica>.<pid>`` has a line for each decision (monotonic time, step, committed
or not, 0). At the step that the file ``stop`` there names, once it is complete, the script ends,
and ``end.<replica>`` has the step and a hash of what the script has registered: of DiLoCo the
global weights and outer optimizers, because local weights differ.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

if os.environ["BENCH_PEER"] == "torchft":
    from torchft.manager import Manager
else:
    from ftrun.training.manager import Manager

PREFIX = "StreamingDiLoCoFragment_"
OUT = Path(os.environ["BENCH_OUT"])


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for key in sorted(value, key=str) for tensor in _tensors(value[key])]
    return []


def _states(manager: Any) -> dict[str, Any]:
    if os.environ["BENCH_PEER"] == "torchft":
        functions = manager._user_state_dicts
    else:
        functions = {key: state for key, (_, state) in manager.session.healing._functions.items()}
    of_fragments = {key: state for key, state in functions.items() if key.startswith(PREFIX)}
    return {key: state() for key, state in (of_fragments or functions).items()}


def _digest(manager: Any) -> str:
    found = hashlib.sha256()
    for tensor in _tensors(_states(manager)):
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _replica() -> str:
    return os.environ["REPLICA_GROUP_ID"]


@functools.cache
def _lines(pid: int) -> Any:
    lines = open(OUT / f"steps.{_replica()}.{pid}", "w", buffering=1)  # noqa: SIM115
    lines.write(f"{time.monotonic()} -1 start 0\n")
    return lines


_should_commit, _start_quorum = Manager.should_commit, Manager.start_quorum


@functools.wraps(_should_commit)
def should_commit(self: Any, *args: Any, **kwargs: Any) -> bool:
    """Note the decision."""
    committed: bool = _should_commit(self, *args, **kwargs)
    _lines(os.getpid()).write(f"{time.monotonic()} {self.current_step()} {int(committed)} 0\n")
    return committed


@functools.wraps(_start_quorum)
def start_quorum(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A step begins, so the one before is complete: is it the last one?"""
    _lines(os.getpid())
    stop = OUT / "stop"
    if stop.exists() and self.current_step() >= int(stop.read_text()):
        text = f"{self.current_step()} {_digest(self)}\n"
        (OUT / f"end.{_replica()}").write_text(text)
        sys.exit(0)
    return _start_quorum(self, *args, **kwargs)


Manager.should_commit = should_commit
Manager.start_quorum = start_quorum
