"""The digest of what a worker of one group holds alike with its mates.

A DistributedDataParallel's workers hold all of its parameters alike, and the workers at the same
place of a mesh whose first dimension replicates hold the same shards (HSDP). A shard that nobody
else holds is compared with nobody. Neither is a model whose workers may train apart: with a
communication hook of the script's, or with steps whose gradients were not averaged.

Not here: the comparison and its consequences (core/replay/alike.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from ftrun.core.replay.settling import Mark
from ftrun.inject.zero_edit.marking import digest_of, settings_of, text_of
from ftrun.snapshots.group_memory import GroupMemory

Holders: TypeAlias = dict[tuple[int, ...], list[torch.Tensor]]


class Alike:
    """Of one worker.

    Attributes:
        wrapped: its DistributedDataParallels.
        is_averaged: the last pass in training averages its gradients.
    """

    def __init__(self, memory: GroupMemory) -> None:
        self._memory = memory
        self.wrapped: Sequence[Any] = ()
        self.is_averaged = True
        self._is_apart = False

    def stepped(self) -> None:
        """A step is taken."""
        self._is_apart |= not self.is_averaged

    def marks(self, optimizers: Sequence[Optimizer]) -> Callable[[], Mark | None]:
        """What gives the mark of the state as it is now, until an optimizer steps, in any thread.

        Call this in the script's thread, with all of its optimizers.
        """
        if self._is_apart or self._memory.board.may_differ or not optimizers:
            return lambda: None
        if any(getattr(x, "_comm_hooks", ()) for x in self.wrapped):
            return lambda: None
        found = self._found(x for y in optimizers for g in y.param_groups for x in g["params"])
        ranks = set[int].intersection(*map(set, found)) if found else set[int]()
        if len(ranks) < 2:
            return lambda: None
        tensors = [x.detach() for known in found.values() for x in known]
        settings = _number(text_of(settings_of(optimizers)))
        mates = _number(repr(sorted(ranks)))
        return lambda: Mark(mates, _number(digest_of(tensors)), settings)

    def _found(self, stepped: Iterable[Any]) -> Holders:
        """The parameters that others hold too, by all who hold them."""
        found: Holders = {}
        own = set[int]()
        for model in self.wrapped:
            ranks = tuple(dist.get_process_group_ranks(model.process_group))
            for name, parameter in model.module.named_parameters():
                own.add(id(parameter))
                if len(ranks) > 1 and name not in model.parameters_to_ignore:
                    found.setdefault(ranks, []).append(parameter)
        for parameter in stepped:
            ranks = () if id(parameter) in own else replicas_of(parameter)
            if len(ranks) > 1:
                found.setdefault(ranks, []).append(parameter)
        return found


def replicas_of(parameter: Any) -> tuple[int, ...]:
    """The ranks that hold the same shard of an HSDP parameter as this one; (): it is none."""
    placements: Sequence[Any] = getattr(parameter, "placements", ())
    is_hybrid = len(placements) > 1 and placements[0].is_replicate()
    if not is_hybrid or all(x.is_replicate() for x in placements):
        return ()
    mesh = parameter.device_mesh.mesh
    columns = mesh.reshape(mesh.shape[0], -1)
    known = (columns == dist.get_rank()).any(0)  # the column of this rank, unless it is in none
    return tuple(columns[:, known].reshape(-1).tolist())


def _number(text: str) -> int:
    """A digest that fits a word and a message, and is not 0."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1
