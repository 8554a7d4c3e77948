"""Join: replicas with different amounts of data train together until all have run out.

torch's generic join across replica groups. A replica that leaves the block early *follows*: in each
step it adds nothing, takes the average of the replicas that have data, and steps with it, so that
its weights stay equal. It is an ordinary member of every step, so deaths and newcomers are handled
as in any other step.

Not here: what replicas announce (joining.py), the verdict (core/worker/joining.py).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from torch.distributed.algorithms.join import JoinHook
from torch.optim.lr_scheduler import LRScheduler

from ftrun.base.errors import UserError
from ftrun.core.worker.joining import Terms
from ftrun.training.following import Follower

__all__ = ["Join", "JoinHook", "Joinable"]

BY_ALL = "divide_by_initial_world_size"


class Joinable(Protocol):
    """An object that Join can shadow. torch's own Joinable classes have this method too."""

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """The hook for a replica that has no data left; ``kwargs`` are those of the Join."""


class Join:
    """Keeps replicas that have run out of data in the job until all have run out::

        with ftrun.Join([network, scheduler]):
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss(network(inputs), targets).backward()
                optimizer.step()
                scheduler.step()

    In each step of the others, a replica without data calls each ``main_hook`` once, steps its
    ``ftrun.Optimizer`` with their average, and then the schedulers. When no replica has data left,
    one more step is committed, which changes no weights. Then each ``post_hook`` is called, with
    the same last joiner on all replicas.

    If the script changes the averaged gradients or the optimizer's settings between ``backward()``
    and ``step()`` (``clip_grad_norm_``, a GradScaler), a replica without data heals from one with
    data in each step instead.

    Args:
        joinables: a ``DistributedDataParallel`` of ftrun, other objects with a ``join_hook`` after
            it, and the learning-rate schedulers that step after each step.
        enable: False: all replicas have the same amount of data, and Join does nothing.
        throw_on_early_termination: all replicas raise RuntimeError in the first step in which one
            has no data; no replica commits that step.
        kwargs: for every ``join_hook``. ``divide_by_initial_world_size=True`` divides the gradients
            by the number of members; False, the default (torch's is True), by the number of
            replicas that have data.

    Raises:
        ValueError: no joinables.
        UserError: no DistributedDataParallel of ftrun, or an arrangement that a replica without
            data cannot follow.
        RuntimeError: a replica has run out of data, and ``throw_on_early_termination`` is set.
    """

    def __init__(
        self,
        joinables: Sequence[Joinable | LRScheduler],
        enable: bool = True,
        throw_on_early_termination: bool = False,
        **kwargs: Any,
    ) -> None:
        if not joinables:
            raise ValueError("The join context manager requires at least one joinable")
        self._enable = enable
        self._terms = Terms(bool(kwargs.get(BY_ALL, False)), throw_on_early_termination)
        self._schedulers = [part for part in joinables if isinstance(part, LRScheduler)]
        self._hooks = [
            part.join_hook(**kwargs) for part in joinables if not isinstance(part, LRScheduler)
        ]
        sessions = [hook.session for hook in self._hooks if isinstance(hook, Follower)]
        if not sessions:
            raise UserError(
                "a Join needs a DistributedDataParallel(manager, …) of ftrun's among its "
                "joinables, because its reductions carry the announcements"
            )
        if any(session is not sessions[0] for session in sessions):
            raise UserError("a Join with models of several Managers: give it those of one")
        self._session = sessions[0]
        self._thread = 0

    def __enter__(self) -> Join:
        if self._enable:
            self._thread = threading.get_ident()
            self._joining, self._optimizer = self._session.make_joining()
            self._joining.begin(self._terms, self._optimizer)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._enable:
            return
        try:
            if kind is not None:
                return  # the script's own error; peers continue as after any death
            if threading.get_ident() != self._thread:
                raise UserError(
                    "a Join was entered in one thread and left in another: let the thread that "
                    "trains do both"
                )
            self._joining.run_out()
            while not self._joining.is_over:
                self._follow()
            is_last_joiner = self._joining.is_last_joiner
        finally:
            self._joining.end()
        for hook in self._hooks:
            hook.post_hook(is_last_joiner)

    def _follow(self) -> None:
        """Follow the others through one step, or end with them."""
        optimizer, joining = self._optimizer, self._joining
        optimizer.zero_grad_again()
        for hook in self._hooks:
            hook.main_hook()
            verdict = joining.verdict
            if verdict is not None and verdict.is_over:
                break  # no replica has anything left to shadow
        optimizer.step()
        verdict = joining.verdict
        if optimizer.committed and verdict is not None and verdict.has_leader:
            for scheduler in self._schedulers:
                scheduler.step()
