"""The reductions of the current step: launched, awaited, repaired, handed out.

The engine calls all methods under its lock, except ``await_batch`` and ``complete_results`` (main
thread) and ``run_ready`` (any thread), which complete futures that scripts and DDP wait for.

Not here: when each reduction is launched or handed out (core/worker/machine.py), tensors
(reductions.py), how groups are built (groups.py).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import DistError, Work

from ftrun.base.errors import Bug, PeerError
from ftrun.core.ids import Attempt
from ftrun.core.quorum import Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.machine import StepMachine
from ftrun.process_groups.built import BuiltGroup
from ftrun.process_groups.writers import LIMIT_S, wait_for_writers
from ftrun.training.groups import Groups
from ftrun.training.keeper import Keeper
from ftrun.training.reductions import Reduction

if TYPE_CHECKING:
    from ftrun.training.elastic_sampler import ElasticSampler

RECHECK_INTERVAL = timedelta(milliseconds=20)
REASON_CHARS_MAX = 500

_Launched = tuple[BuiltGroup, Attempt, int, Work]


@dataclass(eq=False, repr=False)
class InFlight:
    """All reductions of the current step, by index, and the group that they go out on.

    Args:
        machine: the step machine, only read here.
        groups: all groups of this worker.
        caller_waits: see ``ProcessGroup``.
        note: queues an event that the engine handles next; called under its lock.
        feed: the engine's ``feed``, for completions in threads of the backend.
        die: the engine's ``die``.

    Attributes:
        reductions: in order of issue; the machine refers to them by index.
        divisor: number of contributors to this step.
        rank: this worker's rank among the contributors; None: its input does not count.
        contributors: the replica_ids of the contributors, in order.
        sampled: the sampler, which weighs this worker's part of an average; None: there is none.
        error: why reductions of this step were released without a result.
        issues_awaited: the main thread is issuing a reduction that it awaits later.
        ready: calls that complete futures; they run outside the engine's lock.
        keeper: of this worker; None: it has none.
    """

    _machine: StepMachine
    _groups: Groups
    _caller_waits: bool
    _note: Callable[[e.Event], None]
    _feed: Callable[[e.Event], None]
    _die: Callable[[Exception], None]
    reductions: list[Reduction] = field(default_factory=list)
    divisor: int = 0
    rank: int | None = None
    contributors: tuple[str, ...] = ()
    sampled: ElasticSampler | None = None
    error: Exception | None = None
    issues_awaited: bool = False
    ready: deque[Callable[[], None]] = field(default_factory=deque)
    keeper: Keeper | None = None
    _has_ended: bool = False
    _refusal: Exception | None = None  # of an operation that may itself be at fault
    _batch: list[_Launched] = field(default_factory=list)
    _works: list[Work] = field(default_factory=list)
    _aborted: list[tuple[BuiltGroup, list[Work]]] = field(default_factory=list)
    _group: BuiltGroup | None = None
    _group_attempt: Attempt | None = None

    @property
    def counts(self) -> bool:
        """Whether this worker's gradients count in this step."""
        return self.rank is not None and self._weight > 0.0

    @property
    def _weight(self) -> float:
        return 1.0 if self.sampled is None else self.sampled.weight()

    # ------------------------------------------------------------ under the engine's lock

    def begin_step(self) -> None:
        """Reset the state of the last step, before any thread can touch the new one."""
        self.reductions = []
        self._batch = []
        self._works = []
        if self._aborted:
            self._wait_for_writers()
        self.error = self._refusal = None

    def use_group(self, quorum: Quorum) -> None:
        """Launch on the group of ``quorum`` from now on."""
        self._group = self._groups.use(quorum)
        self._group_attempt = quorum.attempt

    def abort_group(self, attempt: Attempt) -> None:
        """Abort the group of ``attempt``: the one in use, or one that is only prepared."""
        if self._group_attempt == attempt:
            if self._group is not None and self._works:
                self._aborted.append((self._group, self._works))
            self._group = None
            self._works = []
        self._groups.abort(attempt)

    def launch(self, first: int, stop: int) -> None:
        """Launch the reductions from ``first`` on, before ``stop``, in order."""
        for index in range(first, stop):
            is_awaited = self.issues_awaited and index == len(self.reductions) - 1
            self._launch(index, self.reductions[index], is_awaited)

    def restore_inputs(self, first: int) -> None:
        """Restore the local inputs of the reductions from ``first`` on, divided by the number of
        contributors. Launches follow."""
        self._wait_for_writers()
        self._batch = []
        self._refusal = None
        for reduction in self.reductions[first:]:
            reduction.restore(self.divisor)

    def hand_out(self, indices: tuple[int, ...]) -> None:
        """Queue the completion of the futures of these reductions: their results are final."""
        divisor, tag = self.divisor, self._machine.commits_as
        if self.keeper is not None and tag is not None:
            known = [(index, self.reductions[index]) for index in indices]
            self.keeper.hands_out(self._machine.begun, known, tag.attempt)
        for index in indices:
            reduction = self.reductions[index]
            if reduction.claim():
                self.ready.append(partial(reduction.hand_out, divisor))

    def release_all(self, error: Exception) -> None:
        """Queue the completion of all futures, without results, because of ``error``."""
        self.error = self.error or self._refusal or error
        for reduction in self.reductions:
            if reduction.claim():
                self.ready.append(reduction.release)

    def end(self, error: Exception) -> None:
        """Release all reductions and stop waiting: ``error`` ends this worker."""
        self._has_ended = True
        self.release_all(error)

    def close(self, error: Exception) -> None:
        """Release those that still wait, because the Manager is closed."""
        if not all(reduction.is_claimed for reduction in self.reductions):
            self.end(error)

    def _launch(self, index: int, reduction: Reduction, is_awaited: bool) -> None:
        tag, group = self._machine.tag, self._group
        if self.keeper is not None and self.keeper.is_repeating:
            for event in self.keeper.answers(self._machine.begun, index, reduction):
                self._note(event)
            return
        if tag is None or group is None:
            story = "\n".join(self._machine.story())
            raise Bug(f"an operation was issued without a group:\n{story}")
        attempt = tag.attempt
        try:
            self._prepare(reduction)
            if group.world_size == 1:
                self._note(e.OperationCompleted(attempt, index))
                return
            work = reduction.launch(group)
            if self._caller_waits and reduction.writes_early:
                self._works.append(work)
                if is_awaited:
                    self._batch.append((group, attempt, index, work))
                    return
            done = work.get_future()
        except Exception as error:  # noqa: BLE001  # of the backend, or of a script's own group
            self._note(self._failure(group, attempt, index, error, at_launch=True))
            return
        done.add_done_callback(lambda future: self._on_done(group, attempt, index, future))

    def _prepare(self, reduction: Reduction) -> None:
        if self.rank is None:
            reduction.add_nothing()
        else:
            reduction.divide_by(self.divisor)
            if reduction.average:
                reduction.weigh(self._weight)

    def _failure(
        self,
        group: BuiltGroup,
        attempt: Attempt,
        index: int,
        error: Exception,
        *,
        at_launch: bool = False,
    ) -> e.OperationFailed:
        """Classify a failure: of a connection, or of the operation itself. From any thread."""
        refused = False if group.aborted else group.is_connected()
        if refused is None and at_launch and not isinstance(error, DistError):
            refused = True  # it has reached no peer
        if refused is not False:
            self._refusal = self._refusal or error
        return e.OperationFailed(attempt, index, str(error)[:REASON_CHARS_MAX], refused)

    def _wait_for_writers(self) -> None:
        """Wait until no thread of an aborted group writes to tensors that are about to be reused.

        Raises:
            PeerError: a thread is still running after ``LIMIT_S``.
        """
        aborted, self._aborted = self._aborted, []
        for group, works in aborted:
            if not wait_for_writers(works, group.threads_sleep):
                raise PeerError(
                    f"threads of an aborted group are still at work after {LIMIT_S:g} s and may "
                    "write over gradients: this worker is replaced and heals"
                )

    # ------------------------------------------------------------ in the main thread

    def await_batch(self) -> None:
        """Wait for the batched reductions that the main thread has issued.

        The main thread waits itself. If a thread of the backend reported each completion, it would
        take the interpreter from the main thread just when that continues. An abort does not wake
        every wait (see gloo.py), so the main thread checks periodically whether the attempt still
        counts.
        """
        counts = self._machine.counts
        batch, self._batch = self._batch, []
        completed = False
        for group, attempt, index, work in batch:
            try:
                while not work.is_completed() and not self._has_ended and counts(attempt):
                    with contextlib.suppress(RuntimeError):  # also at the timeout
                        work.wait(RECHECK_INTERVAL)
                if not work.is_completed():
                    break  # a repair or a failed step completes the futures
                work.wait()
            except Exception as error:  # noqa: BLE001
                self._feed(self._failure(group, attempt, index, error))
            else:
                completed = True
                self._feed(e.OperationCompleted(attempt, index))
        if completed:
            self._groups.release_dropped()

    def complete_results(self) -> None:
        """Wait until all final results are in their tensors and their callbacks have run."""
        self.run_ready()
        for reduction in self.reductions:
            if reduction.is_claimed and not reduction.is_released:
                reduction.wait()
            self.error = self.error or reduction.failure

    # ------------------------------------------------------------ in any thread

    def run_ready(self) -> None:
        """Complete futures, with the callbacks chained on them. Never under the engine's lock."""
        while self.ready:
            try:
                complete = self.ready.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                complete()
            except Exception as error:  # noqa: BLE001  # this may be any thread
                self._die(error)

    def _on_done(
        self, group: BuiltGroup, attempt: Attempt, index: int, future: torch.futures.Future[Any]
    ) -> None:
        try:
            future.value()
            swallowed = group.swallowed()
            if swallowed is not None:
                raise swallowed
        except Exception as error:  # noqa: BLE001  # torch would only log it
            self._feed(self._failure(group, attempt, index, error))
            return
        self._feed(e.OperationCompleted(attempt, index))
        self._groups.release_dropped()
