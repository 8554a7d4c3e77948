"""LocalSGD: replicas train independently and average their weights every few steps.

As in "Local SGD Converges Fast and Communicates Little" (arXiv 1805.09767). One average is one step
of the Manager: committed by all replicas or by none, repaired when a replica dies, and healed by
newcomers.

Not here: DiLoCo, which averages changes of the weights (diloco.py).
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from ftrun.checkpoint.leaves import local_of
from ftrun.training import compiling

if TYPE_CHECKING:
    from ftrun.training.manager import Manager


def extract_local_tensor(t: torch.Tensor) -> torch.Tensor:
    """A copy of ``t``, or of this process's part of it if it is a DTensor; without a gradient."""
    local = t.to_local() if isinstance(t, DTensor) else t
    copy = local.clone()
    copy.grad = None
    return copy


class InnerSteps:
    """Counts the steps of an inner optimizer within a ``with`` block: the base of both algorithms.

    Peers must not read the state while the optimizer changes it.
    """

    def __init__(self, manager: Manager, optimizer: torch.optim.Optimizer) -> None:
        self._manager = manager
        self._local_optimizer = optimizer
        self._local_step = 0
        self._hooks: list[RemovableHandle] = []
        manager.session.train_locally()

    def __enter__(self) -> Any:
        optimizer = self._local_optimizer
        self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
        self._hooks.append(optimizer.register_step_post_hook(self._after_step))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @compiling.never
    def _before_step(self, *_arguments: Any) -> None:
        self._manager.disallow_state_dict_read()

    @compiling.never
    def _after_step(self, *_arguments: Any) -> None:
        self._manager.allow_state_dict_read()
        self._local_step += 1
        self._stepped()

    def _stepped(self) -> None:
        raise NotImplementedError


class LocalSGD(InnerSteps):
    """Averages the weights of all replicas after every ``sync_every`` steps of ``optimizer``.

    Use it as a context manager around the training loop, which calls ``optimizer.step()`` as usual.
    If an average is not committed, the replica continues with its own weights. A newcomer heals in
    its first average.

    Args:
        manager: the Manager of this process.
        model: its parameters are averaged; buffers are not.
        optimizer: steps the parameters. Its state stays local to each replica.
        sync_every: steps from one average to the next.
    """

    def __init__(
        self,
        manager: Manager,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sync_every: int,
    ) -> None:
        assert sync_every >= 1, "sync_every must be at least 1"
        super().__init__(manager, optimizer)
        self._model = model
        self._sync_every = sync_every
        manager.watch_buffers(model)

    def _stepped(self) -> None:
        if self._local_step >= self._sync_every:
            self.sync()

    def sync(self) -> None:
        """Average the weights now, and restart the count of steps to the next average."""
        self._manager.start_quorum()
        averages = self._average()
        if self._manager.should_commit():
            with torch.no_grad():
                for parameter, average in zip(self._model.parameters(), averages, strict=True):
                    local_of(parameter.data).copy_(average)
        self._local_step = 0

    def _average(self) -> list[torch.Tensor]:
        averages = [extract_local_tensor(p.data) for p in self._model.parameters()]
        with self._manager.batch():
            works = [self._manager.allreduce(average) for average in averages]
        for work in works:
            work.wait()
        return averages
