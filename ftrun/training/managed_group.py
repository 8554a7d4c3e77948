"""The replicas of the quorum as a torch process group.

Within a step an all-reduce is a reduction of the step: it is managed, averaged and repaired. All
other collectives, and all collectives between two steps, are named exchanges among the members of
the quorum (exchanges.py). ``send`` and ``recv`` use the quorum's connections.

No collective raises because of a peer: the caller gets its own value, and ``Manager.errored()``
returns the error.

Not here: the process groups that carry tensors (process_groups/).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.distributed import ReduceOp, Work

from ftrun.base.errors import Bug, PeerError, UserError
from ftrun.core.worker.exchange import BODY_BYTES_MAX
from ftrun.process_groups.built import FinishedWork, JoinedWork
from ftrun.process_groups.reconfigurable import ReconfigurableGroup
from ftrun.training import exchanged_tensors

if TYPE_CHECKING:
    from ftrun.training.manager import Manager

log = logging.getLogger(__name__)

SITE = "a ManagedProcessGroup"
INSTEAD = {
    "alltoall": ": call all_to_all_single",
    "gather": ": call all_gather",
    "scatter": ": call broadcast",
}
"""Collectives that are refused, because an exchange gives each replica all values; what to call
instead."""
_Gathered = list[tuple[bool, torch.Tensor]]


class ManagedProcessGroup(ReconfigurableGroup):
    """The replicas of the quorum as a torch process group.

    For FSDP2's all-reduce hook, for averages of a loss, or code that takes a group. ``size()`` is
    the number of contributors, so it may change from step to step; an AVG divides by it. After
    ``register(name)`` functional collectives find the group. Roots and peers are indices among the
    members of the quorum; the root of ``reduce`` is an index among the contributors.
    """

    def __init__(self, manager: Manager) -> None:
        super().__init__(0, 1)
        self._manager, self._session = manager, manager.session
        self._told: set[str] = set()

    # ------------------------------------------------------------ facts

    def size(self) -> int:
        """The number of contributors to the current step, or to the last one."""
        return self._manager.num_participants()

    def rank(self) -> int:
        """The rank among the contributors; 0 for a spare or while healing."""
        return self._manager.participating_rank() or 0

    def getBackendName(self) -> str:
        return "ftrun-managed"

    # ------------------------------------------------------------ collectives

    def _collective(self, name: str, *arguments: Any) -> Work:
        if name in ("send", "recv"):
            return self._directly(name, *arguments)
        if name not in self._exchanges:
            return super()._collective(name + INSTEAD.get(name, ""))
        *tensors, opts = arguments
        if name in ("allreduce", "allreduce_coalesced") and self._session.machine.in_step:
            op, given = opts.reduceOp, tensors[0]
            works = [self._manager.allreduce(tensor, reduce_op=op) for tensor in given]
            return works[0] if len(works) == 1 else JoinedWork(works, given)
        for each in zip(*tensors, strict=True):
            self._exchanges[name](self, *each, opts)
        return FinishedWork(tensors[0])

    def _reduce(self, tensor: torch.Tensor, opts: Any) -> None:
        op = opts.reduceOp
        if op == ReduceOp.AVG and not tensor.is_floating_point():
            raise ValueError(exchanged_tensors.AVERAGE_OF_INTEGERS)
        found = self._all(tensor, f"all_reduce {exchanged_tensors.operation_name(op)}")
        if found is not None:
            tensor.copy_(_combined(found, op))

    def _reduce_at_root(self, tensor: torch.Tensor, opts: Any) -> None:
        """The root is an index among the contributors; the others keep their tensor."""
        self._reduce(tensor if self.rank() == opts.rootRank else tensor.clone(), opts)

    def _scatter(self, output: torch.Tensor, parts: torch.Tensor, opts: Any) -> None:
        """Reduce the parts of all members, and keep the part of this replica's rank."""
        op, parts = opts.reduceOp, parts.view(-1, *output.shape)
        if op == ReduceOp.AVG and not parts.is_floating_point():
            raise ValueError(exchanged_tensors.AVERAGE_OF_INTEGERS)
        found = self._all(parts, f"reduce_scatter {exchanged_tensors.operation_name(op)}")
        whole = parts if found is None else _combined(found, op)
        output.copy_(whole[min(self.rank(), len(whole) - 1)])

    def _scatter_list(self, output: torch.Tensor, parts: list[torch.Tensor], opts: Any) -> None:
        self._scatter(output, torch.stack(parts), opts)

    def _broadcast(self, tensor: torch.Tensor, opts: Any) -> None:
        """The root is an index among the members of the quorum."""
        found = self._all(tensor, f"broadcast from {opts.rootRank}")
        if found is not None:
            tensor.copy_(found[min(opts.rootRank, len(found) - 1)][1])

    def _gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, _opts: Any) -> None:
        """If a replica is missing, its place gets the caller's own tensor."""
        found = self._all(tensor, "all_gather") or []
        for place, output in enumerate(outputs):
            value = found[place][1] if place < len(found) else tensor
            output.copy_(value.view_as(output))

    def _gather_into(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> None:
        self._gather(output.view(-1, *tensor.shape).unbind(0), tensor, opts)

    _exchanges: ClassVar[dict[str, Callable[..., None]]] = {
        "allreduce": _reduce,
        "allreduce_coalesced": _reduce,
        "reduce": _reduce_at_root,
        "reduce_scatter": _scatter_list,
        "reduce_scatter_tensor_coalesced": _scatter,
        "broadcast": _broadcast,
        "allgather": _gather,
        "allgather_into_tensor_coalesced": _gather_into,
    }

    def barrier(self, opts: Any = None) -> Work:
        """Return when all members of the quorum have reached this barrier."""
        self._all(torch.zeros(0), "barrier")
        return FinishedWork()

    def alltoall_base(
        self,
        output_buffer: Any,
        input_buffer: Any,
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any = None,
    ) -> Work:
        """Exchange equal parts among the contributors. A missing one's part is the caller's own.

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

    def _directly(self, name: str, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        """Send to or receive from a member of the quorum. On an error the tensors stay
        unchanged."""
        try:
            work = getattr(self._session.pg, name)(tensors, peer, tag)
        except (RuntimeError, PeerError, Bug) as error:  # Bug: no quorum was formed yet
            self._manager.report_error(error)
            return FinishedWork(tensors)
        return _Reporting(work, tensors, self._manager.report_error)

    # ------------------------------------------------------------ the exchange

    def _all(self, tensor: torch.Tensor, operation: str) -> _Gathered | None:
        """Each member's tensor, and whether it contributes to the step; None: the exchange
        failed."""
        what = exchanged_tensors.words(operation, tensor)
        if tensor.nbytes >= BODY_BYTES_MAX:
            self._too_large(what, tensor.nbytes)
            return None
        given = self._session.exchange(SITE, what, exchanged_tensors.to_bytes(tensor))
        if given is None:
            return None
        return [(one.counts, exchanged_tensors.from_bytes(one.body, tensor)) for one in given]

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


def _combined(found: _Gathered, op: Any) -> torch.Tensor:
    """Reduce the tensors that count; all of them, if none counts."""
    counting = [tensor for counts, tensor in found if counts]
    whole = exchanged_tensors.reduced(torch.stack(counting or [tensor for _, tensor in found]), op)
    if whole is None:
        raise ValueError(f"a reduction by {exchanged_tensors.operation_name(op)} cannot be managed")
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
