"""The replicas of the quorum as a process group of torch.

Within a step an all-reduce is a reduction of the step: it is managed, averaged and repaired. All
other collectives, and all between two steps, are named exchanges among the members of the quorum
(between_steps.py). ``send`` and ``recv`` use the quorum's connections.

No collective raises for a peer: the caller gets its own value, and ``Manager.errored()`` the error.

Not here: the process groups that carry tensors (process_groups/).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ReduceOp, Work

from ftrun.base.errors import Bug, PeerError, UserError
from ftrun.core.worker.exchange import BODY_BYTES_MAX
from ftrun.process_groups.built import FinishedWork, JoinedWork, listed
from ftrun.process_groups.reconfigurable import ReconfigurableGroup
from ftrun.training.exchanged_tensors import (
    AVERAGE_OF_INTEGERS,
    from_bytes,
    operation_name,
    reduced,
    to_bytes,
    words,
)

if TYPE_CHECKING:
    from ftrun.training.between_steps import Given
    from ftrun.training.manager import Manager

log = logging.getLogger(__name__)

SITE = "a ManagedProcessGroup"
_Gathered = list[tuple[bool, torch.Tensor]]


class ManagedProcessGroup(ReconfigurableGroup):
    """The replicas of the quorum as a torch process group.

    For FSDP2's all-reduce hook, for means of a loss, or code that takes a group. ``size()`` is the
    number of contributors, so it may change from step to step; an AVG divides by it. After
    ``register(name)`` functional collectives find it.
    """

    def __init__(self, manager: Manager) -> None:
        super().__init__(0, 1)
        self._manager = manager
        self._told: set[str] = set()

    # ------------------------------------------------------------ facts

    def size(self) -> int:
        """The number of contributors to the step under way, or to the last one."""
        return self._manager.num_participants()

    def rank(self) -> int:
        """The place among the contributors; 0 for a spare or while healing."""
        return self._manager.participating_rank() or 0

    def getBackendName(self) -> str:
        """The name of this backend in torch."""
        return "ftrun-managed"

    # ------------------------------------------------------------ reductions

    def allreduce(self, tensors: Any, opts: Any = ReduceOp.SUM) -> Work:  # type: ignore[override]
        """All-reduce: through ``Manager.allreduce`` within a step, else by an exchange."""
        found, op = list(listed(tensors)), _operation(opts)
        if not self._manager.in_step:
            for tensor in found:
                self._reduce(tensor, op)
            return FinishedWork(found)
        works = [self._manager.allreduce(tensor, reduce_op=op) for tensor in found]
        return works[0] if len(works) == 1 else JoinedWork(works, found)

    def allreduce_coalesced(self, tensors: Any, opts: Any = ReduceOp.SUM) -> Work:
        """As ``allreduce`` of each tensor."""
        return self.allreduce(tensors, opts)

    def _reduce(self, tensor: torch.Tensor, op: Any) -> None:
        if op == ReduceOp.AVG and not tensor.is_floating_point():
            raise ValueError(AVERAGE_OF_INTEGERS)
        found = self._all(tensor, f"all_reduce {operation_name(op)}")
        if found is not None:
            tensor.copy_(_combined(found, op))

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        """Reduce the parts of all, and keep that of this replica's rank."""
        for output, parts in zip(output_tensors, input_tensors, strict=True):
            self._scatter(output, torch.stack(list(parts)), _operation(opts))
        return FinishedWork(output_tensors)

    def reduce_scatter_tensor_coalesced(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None
    ) -> Work:
        """As ``reduce_scatter``, with the parts of each in one tensor."""
        for output, parts in zip(output_tensors, input_tensors, strict=True):
            self._scatter(output, parts.view(-1, *output.shape), _operation(opts))
        return FinishedWork(output_tensors)

    def reduce(self, tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        """Reduce in place at the root, a place among the contributors; the others keep theirs."""
        root, op = getattr(opts, "rootRank", 0), _operation(opts)
        for tensor in listed(tensors):
            into = tensor if self.rank() == root else tensor.clone()
            self._reduce(into, op)
        return FinishedWork(tensors)

    def _scatter(self, output: torch.Tensor, parts: torch.Tensor, op: Any) -> None:
        if op == ReduceOp.AVG and not parts.is_floating_point():
            raise ValueError(AVERAGE_OF_INTEGERS)
        found = self._all(parts, f"reduce_scatter {operation_name(op)}")
        whole = parts if found is None else _combined(found, op)
        output.copy_(whole[min(self.rank(), len(whole) - 1)])

    # ------------------------------------------------------------ other collectives

    def barrier(self, opts: Any = None) -> Work:
        """Return when all members of the quorum have come here."""
        self._all(torch.zeros(0), "barrier")
        return FinishedWork()

    def broadcast(self, tensor_list: Any, opts: Any = None) -> Work:  # type: ignore[override]
        """Give all the tensors of the root, a place among the members of the quorum."""
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        for tensor in listed(tensor_list):
            found = self._all(tensor, f"broadcast from {root}")
            if found is not None:
                tensor.copy_(found[min(root, len(found) - 1)][1])
        return FinishedWork(tensor_list)

    def allgather(self, output_tensors: Any, input_tensor: Any, opts: Any = None) -> Work:
        """Gather the tensors of all; where a replica is away, its place has the caller's own."""
        for outputs, tensor in zip(output_tensors, input_tensor, strict=True):
            self._gather(tensor, outputs)
        return FinishedWork(output_tensors)

    def allgather_into_tensor_coalesced(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None
    ) -> Work:
        """As ``allgather``, into one tensor each."""
        for output, tensor in zip(output_tensors, input_tensors, strict=True):
            self._gather(tensor, list(output.view(-1, *tensor.shape).unbind(0)))
        return FinishedWork(output_tensors)

    def alltoall_base(
        self,
        output_buffer: Any,
        input_buffer: Any,
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any = None,
    ) -> Work:
        """Exchange equal parts among the contributors; for one that is away, the caller's own.

        Raises:
            ValueError: the parts are not equal, or not one for each contributor.
        """
        sizes, place = {*output_split_sizes, *input_split_sizes}, self.rank()
        count = self.size()
        if len(sizes) > 1 or input_buffer.shape != output_buffer.shape or len(input_buffer) % count:
            raise ValueError(
                f"ManagedProcessGroup: an all-to-all among {count} replicas takes {count} equal "
                "parts"
            )
        found = self._all(input_buffer, "all_to_all") or []
        counting = [tensor for counts, tensor in found if counts]
        outputs, own = output_buffer.chunk(count), input_buffer.chunk(count)
        for number, output in enumerate(outputs):
            theirs = counting[number].chunk(count)[place] if number < len(counting) else own[number]
            output.copy_(theirs)
        return FinishedWork([output_buffer])

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        """Refused: all-to-all is offered of one tensor."""
        return self._lacks("alltoall: call all_to_all_single")

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        """Refused: each replica gets what all give."""
        return self._lacks("gather: call all_gather")

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        """Refused: each replica gets what the root gives."""
        return self._lacks("scatter: call broadcast")

    def _gather(self, tensor: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
        found = self._all(tensor, "all_gather") or []
        for place, output in enumerate(outputs):
            value = found[place][1] if place < len(found) else tensor
            output.copy_(value.view_as(output))

    # ------------------------------------------------------------ one peer

    def send(self, tensors: Any, dst_rank: int, tag: int = 0) -> Work:
        """Send to a place among the members of the quorum."""
        return self._directly(lambda: self._manager.pg.send(list(tensors), dst_rank, tag), tensors)

    def recv(self, tensors: Any, src_rank: int, tag: int = 0) -> Work:
        """Receive from a place among the members of the quorum; else the tensors stay as is."""
        return self._directly(lambda: self._manager.pg.recv(list(tensors), src_rank, tag), tensors)

    def _directly(self, call: Callable[[], Work], tensors: Any) -> Work:
        try:
            return _Reporting(call(), tensors, self._manager.report_error)
        except (RuntimeError, PeerError, Bug) as error:  # Bug: no quorum was formed yet
            self._manager.report_error(error)
            return FinishedWork(tensors)

    # ------------------------------------------------------------ the exchange

    def _all(self, tensor: torch.Tensor, operation: str) -> _Gathered | None:
        """Each member's tensor, and whether it contributes to the step; None: only its own."""
        what = words(operation, tensor)
        if tensor.nbytes >= BODY_BYTES_MAX:
            self._too_large(what, tensor.nbytes)
            return None
        given: list[Given] | None = self._manager.exchange(SITE, what, to_bytes(tensor))
        if given is None:
            return None
        return [(one.counts, from_bytes(one.body, tensor)) for one in given]

    def _too_large(self, what: str, nbytes: int) -> None:
        error = UserError(
            f"{SITE}: {what} has {nbytes} bytes, and an exchange between replicas takes fewer than "
            f"{BODY_BYTES_MAX}: the replica's own value is the result, and errored() says so. "
            "Within a step use an all-reduce, which has no limit"
        )
        if what not in self._told:
            self._told.add(what)
            log.warning("%s", error)
        self._manager.report_error(error)


def _operation(opts: Any) -> Any:
    """The ReduceOp of an operation's options."""
    return ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


def _combined(found: _Gathered, op: Any) -> torch.Tensor:
    """One tensor of those that count; of all, if nobody contributes."""
    counting = [tensor for counts, tensor in found if counts]
    whole = reduced(torch.stack(counting or [tensor for _, tensor in found]), op)
    if whole is None:
        raise ValueError(f"a reduction by {operation_name(op)} cannot be managed")
    return whole


class _Reporting(Work):
    """A Work that reports an error instead of raising it."""

    def __init__(self, work: Work, tensors: Any, report: Callable[[Exception], None]) -> None:
        super().__init__()
        self._work = work
        self._tensors = tensors
        self._report = report

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            return bool(self._work.wait() if timeout is None else self._work.wait(timeout))
        except (RuntimeError, PeerError) as error:
            self._report(error)
            return False

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def get_future(self) -> torch.futures.Future[Any]:
        return self._work.get_future().then(lambda _: self._tensors)
