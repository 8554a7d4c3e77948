"""A fragment of a model in DiLoCo: its global weights, and one outer step of it.

The *global* weights are those after the last committed outer step: equal on all replicas. The
*local* weights are the model's own. A pseudo-gradient is global minus local; the outer optimizer
steps the global weights by the average of all replicas' pseudo-gradients.

Not here: when a fragment is reduced and stepped (diloco.py), a batch of reductions (reductions.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed import Work
from torch.distributed.tensor import DTensor

from ftrun.base.errors import UserError
from ftrun.checkpoint.leaves import local_of
from ftrun.training.local_sgd import extract_local_tensor

if TYPE_CHECKING:
    from ftrun.training.manager import Manager


@dataclass(frozen=True, slots=True)
class FragmentSettings:
    """How a fragment is kept, reduced and merged: DiLoCo's arguments of these names.

    ``bucket_bytes_max``: None: one reduction for each parameter.
    """

    backup_device: torch.device
    pin_memory: bool
    bucket_bytes_max: int | None
    should_quantize: bool
    update_alpha: float


class Fragment:
    """Some of a model's parameters, which are reduced and stepped together.

    ``original_parameters``: the global weights, by the parameters' names; for a DTensor, this
    process's part.

    Args:
        manager: the Manager of this process.
        module: the fragment.
        number: its place among the fragments; the state heals under a key with this number.
        outer_optimizer: steps these parameters; it may have parameters of other fragments too.

    Raises:
        UserError: the outer optimizer steps none of these parameters.
    """

    def __init__(
        self,
        manager: Manager,
        module: nn.Module,
        number: int,
        outer_optimizer: torch.optim.Optimizer,
        settings: FragmentSettings,
    ) -> None:
        self.original_parameters: dict[str, torch.Tensor] = {}
        self._manager = manager
        self._module = module
        self._number = number
        self._outer_optimizer = outer_optimizer
        self._settings = settings
        self._grads: dict[str, torch.Tensor] = {}
        self._works: list[Work] = []
        stepped = {id(p) for group in outer_optimizer.param_groups for p in group["params"]}
        if not any(id(parameter) in stepped for parameter in module.parameters()):
            raise UserError(
                f"fragment {number} has no parameter that its outer optimizer steps, so it would "
                "never change: make the optimizer with the parameters of this very module"
            )
        for name, parameter in module.named_parameters():
            self.original_parameters[name] = self._memory_for(local_of(parameter.data))
        self.save_parameters()
        manager.watch_buffers(module)
        manager.register_state_dict_fn(
            f"StreamingDiLoCoFragment_{number}", self._load_state, self._state
        )

    def _memory_for(self, local: torch.Tensor) -> torch.Tensor:
        memory = torch.empty_like(local, device=self._settings.backup_device, requires_grad=False)
        on_host = memory.device.type == "cpu" and torch.accelerator.is_available()
        return memory.pin_memory() if on_host and self._settings.pin_memory else memory

    # ------------------------------------------------------------ state

    def _state(self) -> dict[str, Any]:
        return {
            "outer_optimizer": self._outer_optimizer.state_dict(),
            "original_parameters": dict(self.original_parameters),
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        for name, theirs in state["original_parameters"].items():
            if theirs.shape != self.original_parameters[name].shape:  # copy_ would broadcast it
                raise ValueError(f"parameter {name} has another shape: build the same model")
            self.original_parameters[name].copy_(theirs)
        self._outer_optimizer.load_state_dict(state["outer_optimizer"])

    def save_parameters(self) -> None:
        """Copy the model's weights to the global weights."""
        with torch.no_grad():
            for name, parameter in self._module.named_parameters():
                self.original_parameters[name].copy_(local_of(parameter.data))

    def restore_parameters(self) -> None:
        """Reset the model's weights to the global ones."""
        with torch.no_grad():
            for name, parameter in self._module.named_parameters():
                local_of(parameter.data).copy_(self.original_parameters[name])

    # ------------------------------------------------------------ an outer step

    def prepare_sync(self) -> None:
        """Start to average the pseudo-gradients, within a step of the Manager."""
        with torch.profiler.record_function("ftrun::diloco::prepare_sync"):
            self._save_grads()
            self._average_grads()

    def perform_sync(self) -> bool:
        """Wait for the averages and step; if the step fails, reset the model to its global weights.

        Returns:
            Whether the outer step is committed.
        """
        with torch.profiler.record_function("ftrun::diloco::perform_sync"):
            for work in self._works:
                work.wait()
            self._works = []
            committed = self._manager.should_commit()
            # Peers may read the model's weights until the decision, so they change only after it.
            alpha = self._settings.update_alpha
            mixed = self._local_copies() if committed and alpha else {}
            self.restore_parameters()
            if committed:
                with self._alone():
                    self._set_grads()
                    self._outer_optimizer.step()
                self.save_parameters()
                self._merge_parameters(mixed, alpha)
            self._grads = {}
            return committed

    def _save_grads(self) -> None:
        with torch.no_grad():
            for name, parameter in self._module.named_parameters():
                if parameter.is_floating_point():
                    local = local_of(parameter.data)
                    self._grads[name] = self.original_parameters[name].to(local.device) - local

    def _average_grads(self) -> None:
        """Reduce the pseudo-gradients as one batch, so that a death before its end is repaired."""
        limit = self._settings.bucket_bytes_max
        tensors = self._grads.values() if limit is None else self._in_buckets(limit)
        quantize = self._settings.should_quantize
        with self._manager.batch():
            self._works = [
                self._manager.allreduce(tensor, should_quantize=quantize) for tensor in tensors
            ]

    def _in_buckets(self, limit: int) -> list[torch.Tensor]:
        """Copy the pseudo-gradients into a few flat tensors, and make them views of those."""
        flats = []
        for names in self._buckets(limit):
            flat = torch.cat([self._grads[name].reshape(-1) for name in names])
            flats.append(flat)
            parts = torch.split(flat, [self._grads[name].numel() for name in names])
            for name, part in zip(names, parts, strict=True):
                self._grads[name] = part.view(self._grads[name].shape)
        return flats

    def _buckets(self, limit: int) -> list[list[str]]:
        """Group pseudo-gradients of one dtype and device into buckets of up to ``limit`` bytes.

        A gradient that is larger than the limit is a bucket by itself.
        """
        buckets: list[list[str]] = []
        last: dict[tuple[torch.dtype, torch.device], int] = {}
        filled: list[int] = []
        for name, gradient in self._grads.items():
            kind = gradient.dtype, gradient.device
            place = last.get(kind)
            if place is None or filled[place] + gradient.nbytes > limit:
                last[kind] = place = len(buckets)
                buckets.append([])
                filled.append(0)
            buckets[place].append(name)
            filled[place] += gradient.nbytes
        return buckets

    def _set_grads(self) -> None:
        """Set the averages as gradients for the outer optimizer."""
        for name, parameter in self._module.named_parameters():
            average = self._grads.pop(name, None)
            if average is None:
                continue
            if isinstance(parameter, DTensor):
                parameter.grad = DTensor.from_local(
                    average,
                    parameter.device_mesh,
                    parameter.placements,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
            else:
                parameter.grad = average

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let the outer optimizer step this fragment only, and clear its gradients afterwards.

        Other parameters still have local gradients of the inner step, and an outer optimizer may
        have parameters of several fragments.
        """
        own = set(self._module.parameters())
        groups = self._outer_optimizer.param_groups
        others = [p for group in groups for p in group["params"] if p not in own]
        gradients = [p.grad for p in others]
        for parameter in others:
            parameter.grad = None
        try:
            yield
        finally:
            for parameter in own:
                parameter.grad = None
            for parameter, gradient in zip(others, gradients, strict=True):
                parameter.grad = gradient

    def _local_copies(self) -> dict[str, torch.Tensor]:
        return {n: extract_local_tensor(p.data) for n, p in self._module.named_parameters()}

    def _merge_parameters(self, mixed: dict[str, torch.Tensor], alpha: float) -> None:
        """Move the model's weights from the global ones towards its local ones by ``alpha``."""
        with torch.no_grad():
            for name, parameter in self._module.named_parameters():
                if name in mixed and parameter.is_floating_point():
                    local_of(parameter.data).lerp_(mixed[name], alpha)
