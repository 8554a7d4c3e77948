"""``replicate``: FSDP2 within a replica group, averages across the groups.

FSDP reduces each unit's gradients within the group during the backward pass, and leaves each rank
its shards. ``replicate`` averages the shards with the same rank of the other groups, one bucket per
unit, in the order in which the backward pass reaches them: a unit goes out when FSDP is at the next
one. So the network works while gradients are computed. All buckets of a pass complete together. A
death before that is repaired in the step, because each parameter's ``.grad`` stays local until then
(as in ddp.py).

Order: a unit's bucket goes out after those of the units made later, even if the backward pass
reaches it earlier, because the order must be the same in all groups.

Not here: reducing, repairing, dividing (session.py, in_flight.py, reductions.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ftrun.base.errors import UserError
from ftrun.training import compiling
from ftrun.training.ddp import at_end_of_backward

if TYPE_CHECKING:
    from ftrun.training.manager import Manager

NOT_SHARDED = (
    "replicate(manager, model): no part of {name} is sharded by FSDP2. Call fully_shard(model) "
    "first; a model that is not sharded is wrapped by ftrun.DistributedDataParallel(manager, model)"
)


def replicate(manager: Manager, model: nn.Module) -> None:
    """Average the gradients of an FSDP2 model across the replica groups during the backward pass.

    A parameter without a gradient counts as zeros, so that all groups reduce the same. Passes with
    ``set_requires_gradient_sync(False)`` only accumulate. Buffers are not averaged.

    Args:
        manager: the Manager of this process.
        model: a module to which, or to parts of which, ``fully_shard`` was applied.

    Raises:
        UserError: nothing in ``model`` is sharded by FSDP2, a part of it is sharded over meshes of
            several kinds, or this version of torch stores its units differently.
    """
    all_units = [unit for module in reversed(list(model.modules())) for unit in _units(module)]
    units = [unit for unit in all_units if any(True for _ in unit.parameters)]
    if not units:
        raise UserError(NOT_SHARDED.format(name=type(model).__name__))
    _Pass(manager, units)
    # state_dict() reshards, which must not happen in a pass
    manager.session.healing.read_on_training_thread()
    manager.watch_buffers(model)


def parameters_of(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of a model as its optimizer has them.

    While FSDP2 has a part unsharded (``unshard()``), ``model.parameters()`` returns the whole
    parameters instead of their shards; here the shards follow.
    """
    yield from model.parameters()
    for module in model.modules():
        for unit in _units(module):
            yield from unit.shards


def forget_passes(model: nn.Module) -> None:
    """Forget passes without a backward pass, such as those of an evaluation.

    In a backward pass FSDP2 prefetches in the order of all passes since the last one. A process
    that has not made those passes, because it started later, would gather in another order.
    """
    for module in model.modules():
        for unit in _units(module):
            unit.forget_passes()


class _Unit:
    """The parameters of one ``fully_shard``, which FSDP reduces as one."""

    def __init__(self, module: Any, group: Any) -> None:
        self.module, self._group = module, group

    @property
    def shards(self) -> Iterator[nn.Parameter]:
        """The shards of all parameters, as the optimizer has them."""
        for part in self._group.fsdp_params:
            yield part.sharded_param

    @property
    def parameters(self) -> Iterator[nn.Parameter]:
        return (shard for shard in self.shards if shard.requires_grad)

    def forget_passes(self) -> None:
        shared = getattr(self._group, "comm_ctx", None)
        for known in (
            getattr(shared, "post_forward_order", None),
            getattr(self._group, "_post_forward_indices", None),
        ):
            if known:
                known.clear()

    @property
    def is_reduced_across(self) -> bool:
        """Whether this pass is averaged (``set_requires_all_reduce``)."""
        return bool(getattr(self._group, "all_reduce_grads", True))

    def gradients(self) -> list[Tensor]:
        """The shards' gradients, each as one flat view; zeros if the backward pass left none."""
        found = []
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grad: Any = parameter.grad
            found.append(grad.to_local())
        return found


class _Bucket:
    """Gradients of one type of one unit, on their way in one buffer."""

    def __init__(self, gradients: list[Tensor], divided_by: int) -> None:
        self._gradients = gradients
        count = sum(gradient.numel() for gradient in gradients)
        self.buffer = gradients[0].new_zeros(max(count, 1))  # a rank may hold no row at all
        self.write(divided_by)

    def write(self, divided_by: int) -> None:
        """Write the local gradients into the buffer (again), divided."""
        for view, gradient in self._views():
            torch.mul(gradient, 1.0 / divided_by, out=view)

    def apply(self) -> None:
        """Copy the averages from the buffer to the gradients."""
        for view, gradient in self._views():
            gradient.copy_(view)

    def _views(self) -> Iterator[tuple[Tensor, Tensor]]:
        place = 0
        for gradient in self._gradients:
            count = gradient.numel()
            yield self.buffer[place : place + count].view(gradient.shape), gradient
            place += count


class _Pass:
    """The current backward pass. Only for the thread that runs it.

    Args:
        manager: averages the buckets.
        units: all units, in the order in which their buckets go out.
    """

    def __init__(self, manager: Manager, units: list[_Unit]) -> None:
        self._manager, self._session = manager, manager.session
        self._units = units
        self._assigned: set[int] = set()  # the units whose gradients FSDP has assigned
        self._next = 0
        self._is_under_way = False
        self._out: list[tuple[_Bucket, torch.futures.Future[Tensor]]] = []
        for index, unit in enumerate(units):
            try:
                unit.module.set_all_reduce_hook(functools.partial(self._reduced, index))
            except ValueError as error:
                raise UserError(f"replicate(manager, model): {error}") from None

    @compiling.never
    def _reduced(self, index: int, _: Tensor) -> None:
        """Called when FSDP has reduced a unit; it assigns the gradients after this returns."""
        if not self._units[index].is_reduced_across:
            return
        if not self._is_under_way:
            self._is_under_way = True
            at_end_of_backward(self._end)
        while self._next in self._assigned:
            self._launch(is_last=False)
        self._assigned.add(index)

    def _launch(self, *, is_last: bool) -> None:
        unit = self._units[self._next]
        self._next += 1
        self._session.before_reduction()
        divided_by = max(self._manager.num_participants(), 1)
        of_type: dict[torch.dtype, list[Tensor]] = {}
        for gradient in unit.gradients():
            of_type.setdefault(gradient.dtype, []).append(gradient)
        buckets = [_Bucket(gradients, divided_by) for gradients in of_type.values()]
        for bucket in buckets:
            closes = is_last and bucket is buckets[-1]
            future = self._session.allreduce_bucket(bucket.buffer, closes, bucket.write, divided_by)
            self._out.append((bucket, future))

    @compiling.never
    def _end(self) -> None:
        """All gradients are assigned: send the remaining buckets, and wait for all."""
        while self._next < len(self._units):
            self._launch(is_last=self._next == len(self._units) - 1)
        out, self._out = self._out, []
        self._next, self._is_under_way = 0, False
        self._assigned.clear()
        self._session.await_buckets()
        for bucket, future in out:
            future.wait()
            bucket.apply()
        if self._manager.is_healing():
            self._session.heal_after_backward()


def _units(module: Any) -> list[_Unit]:
    """The units of one module: none, or one per mesh."""
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(module, FSDPModule):
        return []
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.13
    if groups is None and hasattr(state, "_fsdp_param_group"):  # before
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    if groups is None:
        raise UserError(
            f"replicate(manager, model): torch {torch.__version__} keeps the units of FSDP2 in a "
            "way that ftrun does not know. Average .grad of model.parameters() by "
            "manager.allreduce after backward"
        )
    return [_Unit(module, group) for group in groups]
