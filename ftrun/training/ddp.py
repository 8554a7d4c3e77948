"""Data parallelism across replica groups: torch's DDP whose buckets go through the Manager.

**One bucket layout from the first step.** torch builds its buckets anew after the first backward
pass, in the order in which gradients came. A newcomer in its first step would reduce other buckets
than its peers. Here the layout is made final at construction: the reducer is given the parameters
in reverse and told that their gradients came in that order, which is what most models do. So the
layout follows from the model alone, and what comes after the first pass is as cheap as before it.

**Unused parameters** (``find_unused_parameters=True``) are those that no contributor used. The map
of uses is reduced as one more bucket of the same batch, so that gradients and map stand or fall
together, and replicas never differ in what they step. ``static_graph=True`` promises that all
replicas use the same parameters: its map stays local.

Not here: reducing, repairing, dividing (manager.py, engine.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable
from torch.distributed import Work
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ftrun.errors import UserError
from ftrun.process_groups.base import AbortSignal, BuiltGroup, ProcessGroup
from ftrun.process_groups.solo import SoloGroup

if TYPE_CHECKING:
    from ftrun.training.manager import Manager

_REFUSED = (
    "process_group",
    "device_mesh",
    "delay_all_reduce_named_params",
    "skip_all_reduce_unused_params",
)


class DistributedDataParallel(TorchDDP):
    """torch's DistributedDataParallel across the replica groups of a Manager.

    ``no_sync``, gradient clipping and GradScaler work as they do with torch's. Constructing it
    talks to nobody: replicas get equal weights by healing. Buffers are not broadcast across replica
    groups.

    Args:
        manager: the Manager of this process.
        module: the model.
        kwargs: torch's own arguments, but none that names a process group.

    Raises:
        UserError: an argument that cannot be kept.
    """

    def __init__(self, manager: Manager, module: nn.Module, **kwargs: Any) -> None:
        for name in _REFUSED:
            if kwargs.get(name):
                raise UserError(
                    f"DistributedDataParallel(manager, …) takes no {name}: what is "
                    "reduced, and with whom, is the Manager's. Leave the argument out."
                )
        kwargs.pop("broadcast_buffers", None)
        kwargs.pop("init_sync", None)
        views = bool(kwargs.get("gradient_as_bucket_view", False))
        static = bool(kwargs.get("static_graph", False))
        self._closes_with_map = bool(kwargs.get("find_unused_parameters", False)) and not static
        group = _ReducerGroup(manager if self._closes_with_map else None)
        kwargs.update(_no_buffer_broadcast())
        super().__init__(module, process_group=group, init_sync=False, **kwargs)
        group.parameters = [p for p in self._module_parameters if p.requires_grad]
        self._manager = manager
        self._keeps_gradients = not views
        self._elements_to_come = sum(p.numel() for p in group.parameters) if static else 0
        # No annotations: torch compares them with types, and ours are strings.
        self.register_comm_hook(None, lambda state, bucket: self._reduce(bucket))

    def join(self, *args: Any, **kwargs: Any) -> Any:
        """Not offered: every replica takes part in every step, and leaves by the Manager.

        Raises:
            UserError: always.
        """
        raise UserError("DistributedDataParallel.join is not offered; use Manager.leave()")

    def _reduce(self, bucket: GradBucket) -> Future[Tensor]:
        if self._elements_to_come > 0:
            return self._reduce_at_end(bucket)
        closes = bucket.is_last() and not self._closes_with_map
        restore = _restoring(bucket) if self._keeps_gradients else None
        return self._manager.allreduce_bucket(bucket.buffer(), closes, restore)

    def _reduce_at_end(self, bucket: GradBucket) -> Future[Tensor]:
        """The first backward pass of a static graph: torch reduces all buckets when it ends.

        It calls each of them the first one then, so neither ``is_last`` nor ``parameters`` are true
        and the Manager has to keep a copy.
        """
        buffer = bucket.buffer()
        self._elements_to_come -= buffer.numel()
        return self._manager.allreduce_bucket(buffer, self._elements_to_come == 0, None)

    def _ddp_init_helper(
        self,
        parameters: list[Tensor],
        expect_sparse_gradient: list[bool],
        param_to_name_mapping: dict[int, str],
        static_graph: bool,
    ) -> None:
        """torch's step that makes the reducer; here the layout becomes final at once."""
        if any(expect_sparse_gradient):
            raise UserError("sparse gradients cannot be managed; use Embedding(sparse=False)")
        if self.find_unused_parameters and not static_graph:  # torch keeps its first layout.
            super()._ddp_init_helper(  # type: ignore[no-untyped-call]
                parameters, expect_sparse_gradient, param_to_name_mapping, static_graph
            )
            return
        last = len(parameters) - 1
        super()._ddp_init_helper(  # type: ignore[no-untyped-call]
            parameters[::-1],
            expect_sparse_gradient[::-1],
            {last - index: name for index, name in param_to_name_mapping.items()},
            static_graph,
        )
        self.reducer._push_all_rebuilt_params()
        self.reducer._rebuild_buckets()


class PureDistributedDataParallel(nn.Module):
    """Averages every gradient on its own when a backward pass ends: simple, slower than buckets.

    A parameter without a gradient counts as zeros, so that all replicas reduce the same list.

    Args:
        manager: the Manager of this process.
        module: the model.
    """

    def __init__(self, manager: Manager, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._manager = manager
        self._syncs = True
        self._queued = False
        for parameter in module.parameters():
            if parameter.requires_grad:
                note: Any = parameter.register_post_accumulate_grad_hook
                note(self._note_gradient)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only accumulate gradients in backward passes within."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def _note_gradient(self, parameter: Tensor) -> None:
        if self._syncs and not self._queued:
            self._queued = True
            _at_end_of_backward(self._reduce_all)

    def _reduce_all(self) -> None:
        self._queued = False
        works = []
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                works.append(self._manager.allreduce(parameter.grad))
        for work in works:
            work.wait()


class _ReducerGroup(ProcessGroup):
    """What the reducer takes for its process group: one rank; the map of uses goes to ``manager``.

    Without a manager it stays here.
    """

    def __init__(self, manager: Manager | None) -> None:
        super().__init__()
        self._manager = manager
        self.parameters: list[nn.Parameter] = []  # Those of the map, in its order.
        self.use(SoloGroup(AbortSignal()))

    def build(self, *args: Any, **kwargs: Any) -> BuiltGroup:
        """It is built already."""
        return self.current()

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        """The reducer calls this for the map of uses alone, after its last bucket."""
        if self._manager is None:
            return super().allreduce(tensors)
        (uses,) = tensors
        work = _UsesWork(self._manager, uses)
        if not self._manager.is_participating():
            # Its uses do not count. Two rounds: the reducer's own end of backward lies between.
            _at_end_of_backward(lambda: _at_end_of_backward(lambda: self._forget_own(work)))
        return work

    def _forget_own(self, work: _UsesWork) -> None:
        """Drop gradients that no contributor has: the contributors do not step them either."""
        work.wait()
        for parameter, used in zip(self.parameters, work.uses.tolist(), strict=True):
            if not used:
                parameter.grad = None


class _UsesWork(Work):
    """The reduction of the map of uses: an average of zeros and ones, used where it is above 0."""

    def __init__(self, manager: Manager, uses: Tensor) -> None:
        super().__init__()
        self.uses = uses
        self._average = uses.to(torch.float32)
        self._future = manager.allreduce_bucket(self._average, True, self._restore)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the result and write it into the map."""
        self._future.wait()
        self.uses.copy_(self._average > 0)
        return True

    def _restore(self) -> None:
        self._average.copy_(self.uses)


def _restoring(bucket: GradBucket) -> Callable[[], None]:
    """What writes the local gradients into the bucket again, as the reducer did.

    Until a bucket's future completes they stand untouched in ``.grad``.
    """

    def restore() -> None:
        for parameter, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)

    return restore


def _at_end_of_backward(callback: Callable[[], None]) -> None:
    Variable._execution_engine.queue_callback(callback)


def _no_buffer_broadcast() -> dict[str, bool]:
    """torch 2.13 renamed the argument and warns of the old name."""
    names = inspect.signature(TorchDDP.__init__).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    return {name: False}
