"""Data parallelism across replica groups: torch's DDP whose buckets go through the Manager.

**One bucket layout from the first step.** torch rebuilds its buckets after the first backward pass,
in the order in which gradients came. A newcomer in its first step would then reduce different
buckets from its peers. Here the layout is final at construction: the reducer gets the parameters in
reverse order, and the information that their gradients came in that order, as they do in most
models. So the layout follows from the model alone, and no step pays for a rebuild.

**Dividing costs no pass over the gradients.** The reducer divides while it copies a gradient into
its bucket, by the size of its process group: here the current number of contributors. A
communication hook would have to divide afterwards. If contributors change before the bucket goes
out, it is written again from ``.grad``. If the gradients *are* the buckets
(``gradient_as_bucket_view``), there is no copy to write from, so the Manager divides.

**Workers within a replica group** (``within``) that each compute a part of the batch: a bucket is
averaged within the group as soon as it is full, and across the groups after that. The Manager keeps
a copy for a repair, because ``.grad`` holds one worker's part only.

**Unused parameters** (``find_unused_parameters=True``) are those that no contributor used. The map
of used parameters is reduced as one more bucket of the same batch, so that gradients and map stand
or fall together, and all replicas step the same parameters. ``static_graph=True`` promises that all
replicas use the same parameters: its map stays local.

Not here: reducing, repairing, dividing (session.py, in_flight.py, reductions.py).
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import (  # type: ignore[attr-defined]  # torch's stub lacks it.
    GradBucket,
    _create_work_from_future,
)
from torch.autograd import Variable
from torch.distributed import Work
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ftrun.base.errors import UserError
from ftrun.process_groups.base import ProcessGroup
from ftrun.process_groups.built import AbortSignal
from ftrun.process_groups.solo import SoloGroup
from ftrun.training import compiling
from ftrun.training.following import Follower
from ftrun.training.join import BY_ALL, Join

if TYPE_CHECKING:
    from ftrun.training.manager import Manager
    from ftrun.training.session import Session

log = logging.getLogger(__name__)

_REFUSED = (
    "process_group",
    "device_mesh",
    "delay_all_reduce_named_params",
    "skip_all_reduce_unused_params",
)
_WITHOUT_EFFECT = ("broadcast_buffers", "init_sync")
_torchs_init: Any = TorchDDP.__init__
_torchs_forward: Any = TorchDDP.forward
_torchs_helper: Any = TorchDDP._ddp_init_helper
"""torch's own function. In an unmodified script, torch's class has replacements, which call this
one."""


class DistributedDataParallel(TorchDDP):
    """torch's DistributedDataParallel across the replica groups of a Manager.

    ``no_sync``, gradient clipping and GradScaler work as with torch's class. The constructor sends
    nothing: replicas get equal weights by healing. Buffers are not broadcast across replica groups.

    Args:
        manager: the Manager of this process.
        module: the model.
        within: the workers of this replica group among which the batch is split; None: each worker
            computes the whole batch. They begin with the first worker's parameters and buffers.
        across: a group of all workers of all replicas, in which parameters and buffers are
            broadcast as torch does; None: they are not broadcast.
        kwargs: torch's own arguments, except those that name a process group.

    Raises:
        UserError: an argument is not supported.
    """

    def __init__(
        self,
        manager: Manager,
        module: nn.Module,
        *,
        within: dist.ProcessGroup | None = None,
        across: dist.ProcessGroup | None = None,
        **kwargs: Any,
    ) -> None:
        for name in _REFUSED:
            if kwargs.get(name):
                raise UserError(
                    f"DistributedDataParallel(manager, …) takes no {name}: the Manager decides "
                    "what is reduced, and with whom. Leave the argument out."
                )
        self._across = across
        dropped = [name for name in _WITHOUT_EFFECT if across is None and kwargs.pop(name, False)]
        if dropped:
            log.warning(
                "DistributedDataParallel(manager, …): %s=True: no effect, because replicas get "
                "equal weights and buffers by healing, and no buffers are sent at a forward pass",
                ", ".join(dropped),
            )
        views = bool(kwargs.get("gradient_as_bucket_view", False))
        static = bool(kwargs.get("static_graph", False))
        finds_unused = bool(kwargs.get("find_unused_parameters", False)) and not static
        begins_alike = kwargs.pop("init_sync", True)
        if within is not None and across is None:
            begin_alike(module, within)
        writes_again = not views and within is None
        buckets = _Buckets(manager, writes_again, finds_unused, is_static=static, within=within)
        if across is None:
            kwargs.update(_no_buffer_broadcast())
        _torchs_init(self, module, process_group=buckets, init_sync=False, **kwargs)
        if across is not None and begins_alike:
            _begin_alike(self, across)
        parameters = [p for p in self._module_parameters if p.requires_grad]
        buckets.learn(self.reducer._get_zeros_like_grad_buckets(), parameters)
        self._buckets = buckets
        manager.watch_buffers(module)

    @compiling.only_inside
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model. The next backward pass begins with the first bucket."""
        self._buckets.begin()
        return _torchs_forward(self, *args, **kwargs)

    @compiling.never
    def _distributed_broadcast_coalesced(
        self, tensors: Any, buffer_size: int, authoritative_rank: int = 0
    ) -> None:
        """Called by torch to broadcast the buffers."""
        if self._across is not None and tensors:
            torchs: Any = dist
            torchs._broadcast_coalesced(self._across, tensors, buffer_size, authoritative_rank)

    def register_comm_hook(self, *args: Any, **kwargs: Any) -> None:
        """Not supported: the Manager decides what is reduced, and how.

        Raises:
            UserError: always.
        """
        raise UserError("DistributedDataParallel(manager, …) takes no communication hook")

    def join(
        self,
        divide_by_initial_world_size: bool = False,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Any:
        """``ftrun.Join`` of this model alone, for replicas with different amounts of data.

        Unlike torch's, it divides by the number of replicas that have data, unless
        ``divide_by_initial_world_size``.
        """
        kwargs = {BY_ALL: divide_by_initial_world_size}
        return Join([self], enable, throw_on_early_termination, **kwargs)

    def join_hook(self, **kwargs: Any) -> Follower:
        """The hook for a replica that has run out of data in an ``ftrun.Join``.

        Raises:
            UserError: ``within`` or ``static_graph`` is set, which Join does not support.
        """
        return self._buckets.follower(self.reducer._get_zeros_like_grad_buckets)

    @property
    def join_process_group(self) -> Any:
        """Not supported: torch's own Join would use collectives that a death breaks.

        Raises:
            UserError: always.
        """
        raise UserError(
            "torch's Join cannot be used with DistributedDataParallel(manager, …), because a death "
            "would break its collectives. Use ftrun.Join, which takes the same arguments"
        )

    def forget_uses(self) -> None:
        """Forget which parameters were used by backward passes that were not reduced, and whose
        gradients were dropped. torch keeps these until its next reduction and then expects their
        gradients. It cannot be asked to forget them, so it gets another reducer, as a model that
        was loaded does."""
        if self.find_unused_parameters and not self.static_graph:
            made: Any = self
            parameters, sparse = made._build_params_for_reducer()
            names = made._build_debug_param_to_name_mapping(parameters)
            self._ddp_init_helper(parameters, sparse, names, self.static_graph)
            self._buckets.learn(self.reducer._get_zeros_like_grad_buckets(), parameters)

    def _ddp_init_helper(
        self,
        parameters: list[Tensor],
        expect_sparse_gradient: list[bool],
        param_to_name_mapping: dict[int, str],
        static_graph: bool,
    ) -> None:
        """Make the reducer as torch does, but with its final layout at once."""
        if any(expect_sparse_gradient):
            raise UserError("sparse gradients cannot be managed; use Embedding(sparse=False)")
        if self.find_unused_parameters and not static_graph:  # torch keeps its first layout.
            _torchs_helper(
                self, parameters, expect_sparse_gradient, param_to_name_mapping, static_graph
            )
            return
        last = len(parameters) - 1
        _torchs_helper(
            self,
            parameters[::-1],
            expect_sparse_gradient[::-1],
            {last - index: name for index, name in param_to_name_mapping.items()},
            static_graph,
        )
        self.reducer._push_all_rebuilt_params()
        self.reducer._rebuild_buckets()


class PureDistributedDataParallel(nn.Module):
    """Averages each gradient separately when a backward pass ends: simple, slower than buckets.

    A parameter without a gradient counts as zeros, so that all replicas reduce the same list.

    Args:
        manager: the Manager of this process.
        module: the model.
    """

    def __init__(self, manager: Manager, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._manager, self._session = manager, manager.session
        self._syncs = True
        self._queued = False
        manager.watch_buffers(module)
        for parameter in module.parameters():
            if parameter.requires_grad:
                note: Any = parameter.register_post_accumulate_grad_hook
                note(self._note_gradient)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only accumulate gradients in backward passes inside this context."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    @compiling.never
    def _note_gradient(self, parameter: Tensor) -> None:
        if self._syncs and not self._queued:
            self._queued = True
            at_end_of_backward(self._reduce_all)

    @compiling.never
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
        self._session.heal_after_backward()


class _Buckets(ProcessGroup):
    """The reducer's process group. It sends buckets through the Manager, in order.

    Args:
        manager: reduces the buckets.
        writes_again: a bucket can be written again from the parameters' gradients.
        has_map: a map of used parameters follows the buckets and is reduced.
        is_static: the reducer waits for the buckets of its first pass as soon as they are issued.
        within: see ``DistributedDataParallel``.
    """

    def __init__(
        self,
        manager: Manager,
        writes_again: bool,
        has_map: bool,
        *,
        is_static: bool,
        within: dist.ProcessGroup | None,
    ) -> None:
        super().__init__()
        self._within = within
        self._is_static = is_static
        self._manager, self._session = manager, manager.session
        self._writes_again = writes_again
        self._has_map = has_map
        self._layouts: list[_BucketLayout] = []
        self._parameters: list[nn.Parameter] = []  # the parameters of the map, in its order
        self._next = 0
        self._divided_by = 1
        self.use(SoloGroup(AbortSignal()))

    def learn(self, buckets: Sequence[GradBucket], parameters: list[nn.Parameter]) -> None:
        self._layouts = [_BucketLayout(bucket) for bucket in buckets]
        self._parameters = parameters

    @compiling.never
    def begin(self) -> None:
        """Begin a forward pass: the next bucket is the first one."""
        self._next = 0

    @compiling.never
    def getSize(self) -> int:
        """The number by which the reducer divides the gradients of this backward pass.

        In a Join this is 1, and the sums are divided later, when it is known how many replicas have
        data.
        """
        self._session.before_reduction()
        divides = self._writes_again and self._session.joining is None
        self._divided_by = max(self._manager.num_participants(), 1) if divides else 1
        return self._divided_by

    @compiling.never
    def allreduce(self, tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        """Reduce a bucket, or the map of used parameters. Called by the reducer."""
        (tensor,) = tensors
        if not self._session.before_reduction():
            return _finished(tensor)
        if tensor.is_floating_point():
            return self._reduce_bucket(tensor)
        if not self._has_map:
            return super().allreduce(tensors)
        if self._within is not None:
            _reduce_within(self._within, tensor, dist.ReduceOp.MAX)
        work = _UsesWork(self._session, tensor)
        self._await()
        if not self._manager.is_participating():  # this replica's uses do not count
            _after_the_reducer(functools.partial(self._forget_own, work))
        self._heal_afterwards()
        return work

    def _reduce_bucket(self, buffer: Tensor) -> Work:
        index = self._next
        self._next = (index + 1) % len(self._layouts)
        closes = self._next == 0 and not self._has_map
        joining = self._session.joining
        if index == 0 and joining is not None:
            joining.announce(buffer.device)
        if self._within is not None:
            _reduce_within(self._within, buffer, dist.ReduceOp.SUM)
            buffer.div_(self._within.size())
        if self._writes_again:
            layout = self._layouts[index]
            divided_by = self._divided_by if joining is None else None
            future = self._session.allreduce_bucket(
                buffer, closes, lambda by: layout.write(buffer, by), divided_by
            )
        else:
            future = self._session.allreduce_bucket(buffer, closes, None)
        if closes:
            self._await()
            self._heal_afterwards()
        work: Work = _create_work_from_future(future)  # native: the reducer runs no Python for it
        return work

    def _await(self) -> None:
        """Await the buckets as late as possible, after other modules' gradients are computed."""
        if self._is_static:
            self._session.await_buckets()
        else:
            at_end_of_backward(self._session.await_buckets)

    def _heal_afterwards(self) -> None:
        if self._manager.is_healing():
            _after_the_reducer(self._session.heal_after_backward)
        joining = self._session.joining
        if joining is not None:
            _after_the_reducer(functools.partial(joining.note_gradients, self._parameters))

    def follower(self, zeros: Callable[[], Sequence[Any]]) -> Follower:
        """The hook of a replica without data. ``zeros`` makes the reducer's buckets."""
        refused = "within=…" if self._within is not None else "static_graph=True"
        if self._within is not None or self._is_static:
            raise UserError(
                f"DistributedDataParallel with {refused} cannot be in a Join: a replica without "
                "data does not know which parameters the others use. Leave it out"
            )
        uses = self._reduce_uses if self._has_map else None
        return Follower(self._session, zeros, uses, self._parameters)

    def _reduce_uses(self, uses: Tensor) -> Callable[[], Tensor]:
        """Reduce a map of used parameters. Returns a function that waits for the result."""
        work = _UsesWork(self._session, uses)

        def result() -> Tensor:
            work.wait()
            return work.uses

        return result

    @compiling.never
    def _forget_own(self, work: _UsesWork) -> None:
        """Drop the gradients that no contributor has, because no contributor steps those
        parameters."""
        work.wait()
        for parameter, used in zip(self._parameters, work.uses.tolist(), strict=True):
            if not used:
                parameter.grad = None


class _BucketLayout:
    """The place of each parameter's gradient in a bucket."""

    def __init__(self, bucket: GradBucket) -> None:
        self._parameters = bucket.parameters()
        self._places = [(v.size(), v.stride(), v.storage_offset()) for v in bucket.gradients()]

    def write(self, buffer: Tensor, divided_by: int) -> None:
        """Write the local gradients into the bucket again, divided as the reducer did.

        ``.grad`` holds them untouched until the bucket's future completes.
        """
        for parameter, place in zip(self._parameters, self._places, strict=True):
            view = buffer.as_strided(*place)
            if parameter.grad is None:
                view.zero_()
            else:
                torch.mul(parameter.grad, 1.0 / divided_by, out=view)


class _UsesWork(Work):
    """The reduction of the map of used parameters: an average of zeros and ones; above 0 means
    used."""

    def __init__(self, session: Session, uses: Tensor) -> None:
        super().__init__()
        self.uses = uses
        self._average = uses.to(torch.float32)
        self._future = session.allreduce_bucket(self._average, True, self._restore)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the result and write it into the map."""
        self._future.wait()
        self.uses.copy_(self._average > 0)
        return True

    def _restore(self, divided_by: int) -> None:
        self._average.copy_(self.uses).div_(divided_by)


def _begin_alike(made: Any, across: dist.ProcessGroup) -> None:
    """Check that shapes are the same everywhere, and take rank 0's values, as torch's constructor
    does."""
    from torch.distributed import utils

    utils._verify_param_shape_across_processes(across, made._module_parameters)
    utils._sync_module_states(
        module=made.module,
        process_group=across,
        broadcast_bucket_size=made.broadcast_bucket_size,
        src=0,
        params_and_buffers_to_ignore=made.parameters_to_ignore,
        broadcast_buffers=True,
    )


def begin_alike(module: nn.Module, within: dist.ProcessGroup) -> None:
    """Give all workers of ``within`` the first one's parameters and buffers, as torch's DDP.

    Across the groups the first heal does this, rank by rank.
    """
    options = dist.BroadcastOptions()
    options.rootRank = 0
    for tensor in (*module.parameters(), *module.buffers()):
        given = tensor.detach().contiguous()
        within.broadcast([given], options).wait()
        tensor.detach().copy_(given)


def _finished(tensor: Tensor) -> Work:
    """The Work of a gradient that is not reduced."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(tensor)
    work: Work = _create_work_from_future(future)
    return work


def _reduce_within(within: dist.ProcessGroup, tensor: Tensor, op: Any) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    within.allreduce([tensor], options).wait()


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call back when the current backward pass has ended, after earlier callbacks."""
    Variable._execution_engine.queue_callback(callback)


def _after_the_reducer(callback: Callable[[], None]) -> None:
    """Call back two rounds later, after the reducer's own callback, which waits."""
    at_end_of_backward(compiling.only_inside(lambda: at_end_of_backward(callback)))


def _no_buffer_broadcast() -> dict[str, bool]:
    """Turn buffer broadcasts off. torch 2.13 renamed the argument and warns of the old name."""
    names = inspect.signature(TorchDDP.__init__).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    return {name: False}
