"""Stand-ins for the Managers of several replicas in one process: they only average.

The Manager needs an agent; these tests need only its interface.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.distributed import ReduceOp, Work
from torch.futures import Future

from ftrun.process_groups.built import FinishedWork

DEADLINE_S = 20.0


class StandIn:
    """One replica's Manager: operation i is averaged with operation i of the others."""

    def __init__(self, ring: Ring, contributes: bool = True) -> None:
        self.operations: list[tuple[int, bool]] = []
        self.awaited: list[int] = []  # how many operations had been issued each time
        self.quorums = 0
        self.decisions = 0
        self.commits = True
        self.states: dict[str, Callable[[], Any]] = {}
        self.joining = None
        self._ring = ring
        self._contributes = contributes
        self._held: list[tuple[Future[torch.Tensor], torch.Tensor]] = []

    @property
    def session(self) -> StandIn:
        return self  # of one replica, the inner door too

    def is_participating(self) -> bool:
        return self._contributes

    def num_participants(self) -> int:
        return self._ring.contributors()

    def participating_rank(self) -> int | None:
        return 0 if self._contributes else None

    def before_reduction(self) -> bool:
        return True

    def is_healing(self) -> bool:
        return False

    def watch_buffers(self, module: torch.nn.Module) -> None:
        """Do nothing: no replica heals here."""

    def watch_optimizer(self, optimizer: torch.optim.Optimizer, wrapper: Any = None) -> None:
        """Do nothing: no replica heals here."""

    def heal_after_backward(self) -> None:
        """Do nothing: no replica heals here."""

    def await_buckets(self) -> None:
        self.awaited.append(len(self.operations))

    def start_quorum(self) -> None:
        self.quorums += 1

    def should_commit(self) -> bool:
        self.decisions += 1
        return self.commits

    def any_in_group(self, flag: bool) -> bool:
        return flag

    def register_state_dict_fn(
        self, key: str, load: Callable[[Any], None], state: Callable[[], Any]
    ) -> None:
        self.states[key] = state

    def allreduce(self, tensor: torch.Tensor, reduce_op: Any = ReduceOp.AVG) -> Work:
        self._ring.average(self, tensor, divides=reduce_op == ReduceOp.AVG)
        return FinishedWork([tensor])

    def allreduce_bucket(
        self,
        buffer: torch.Tensor,
        is_last: bool,
        restore: Callable[[int], None] | None,
        divided_by: int | None = None,
    ) -> Future[torch.Tensor]:
        """Simulate a repair each time: the input must be restorable after a broken reduction."""
        self.operations.append((buffer.numel(), is_last))
        local = buffer.clone()
        buffer.fill_(float("nan"))
        if restore is None:
            buffer.copy_(local)
        else:
            restore(divided_by or 1)
        assert torch.equal(buffer, local)
        self._ring.average(self, buffer, divides=divided_by is None)
        future: Future[torch.Tensor] = Future()
        self._held.append((future, buffer))
        if is_last:
            batched, self._held = self._held, []
            for waiting, tensor in batched:
                waiting.set_result(tensor)
        return future


class Ring:
    """``count`` replicas whose threads meet at every operation; ``spares`` add zeros."""

    def __init__(self, count: int, spares: tuple[int, ...] = ()) -> None:
        self.managers = [StandIn(self, number not in spares) for number in range(count)]
        self._tensors: dict[StandIn, torch.Tensor] = {}
        self._barrier = threading.Barrier(count)

    def contributors(self) -> int:
        return sum(manager.is_participating() for manager in self.managers)

    def average(self, manager: StandIn, tensor: torch.Tensor, divides: bool = True) -> None:
        self._tensors[manager] = tensor
        if not manager.is_participating():
            tensor.zero_()
        self._barrier.wait(DEADLINE_S)
        total = torch.stack([self._tensors[peer] for peer in self.managers]).sum(0)
        self._barrier.wait(DEADLINE_S)
        tensor.copy_(total / self.contributors() if divides else total)

    def run(self, replica: Callable[[int, Any], Any]) -> list[Any]:
        """Run ``replica(number, manager)`` in a thread for each."""
        with ThreadPoolExecutor(len(self.managers)) as pool:
            return list(pool.map(replica, range(len(self.managers)), self.managers))
