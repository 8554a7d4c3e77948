"""A follower's gradients: zeros for each bucket of DDP, and the average as its own gradients.

Not here: when a replica follows (join.py), DDP's buckets of a replica with data (ddp.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import JoinHook

if TYPE_CHECKING:
    from ftrun.training.session import Session


class Follower(JoinHook):
    """DDP's hook: each call mirrors the reductions of one backward pass.

    Args:
        session: of the Manager, which reduces.
        zeros: makes a zero bucket for each of the reducer's, in order.
        uses: reduces a map of used parameters and returns the result; None: DDP reduces none.
        parameters: the parameters of the map, in its order.
    """

    def __init__(
        self,
        session: Session,
        zeros: Callable[[], Sequence[Any]],
        uses: Callable[[Tensor], Callable[[], Tensor]] | None,
        parameters: Sequence[nn.Parameter],
    ) -> None:
        self.session = session
        self._make_zeros = zeros
        self._zeros: Sequence[Any] = ()
        self._uses = uses
        self._parameters = parameters

    def main_hook(self) -> None:
        """Add zeros, and take the average of the replicas that have data."""
        self._zeros = self._zeros or self._make_zeros()
        buckets = self._zeros
        joining = self.session.joining
        if joining is not None:
            joining.announce(buckets[0].buffer().device)
        futures = []
        for number, bucket in enumerate(buckets, 1):
            buffer = bucket.buffer().zero_()
            closes = number == len(buckets) and self._uses is None
            futures.append(self.session.allreduce_bucket(buffer, closes, _zero(buffer)))
        is_used = None
        if self._uses is not None:
            device = buckets[0].buffer().device
            is_used = self._uses(torch.zeros(len(self._parameters), dtype=torch.int, device=device))
        self.session.await_buckets()
        for future in futures:
            future.wait()
        used = None if is_used is None else self._names_of(is_used())
        self.session.heal_after_backward()
        for bucket in buckets:
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                if used is None or id(parameter) in used:
                    parameter.grad = gradient.view_as(parameter)

    def _names_of(self, uses: Tensor) -> set[int]:
        return {id(p) for p, used in zip(self._parameters, uses.tolist(), strict=True) if used}


def _zero(buffer: Tensor) -> Callable[[int], None]:
    def restore(_divided_by: int) -> None:
        buffer.zero_()

    return restore
