"""The shell around one worker's step machine: carries out what core/worker/machine.py decides.

Every event passes ``feed``: one lock, the machine's verdict, its instructions in order, and then,
outside the lock, the futures that scripts and DDP wait for. Threads that feed it: the main thread,
the link, builders, the backend's completion threads, the state loader.

Not here: what users call (manager.py), tensors (reductions.py), how groups come about (groups.py).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
from torch.distributed import DistError, Work

from ftrun import clock
from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.ids import Attempt, Tag
from ftrun.core.quorum import Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.comparison import Question
from ftrun.core.worker.machine import StepMachine, StepPhase
from ftrun.errors import Bug, FtrunError, PeerError, UserError
from ftrun.process_groups.base import BuiltGroup, ProcessGroup
from ftrun.process_groups.writers import LIMIT_S, wait_for_writers
from ftrun.training.comparing import Comparing, encode
from ftrun.training.context import WorkerContext
from ftrun.training.groups import Groups
from ftrun.training.healing import Healing
from ftrun.training.link import AgentLink
from ftrun.training.reductions import Reduction

log = logging.getLogger(__name__)

_Launched = tuple[Attempt, int, Work]


class ProgressMaker(Protocol):
    """Makes a Progress of what the worker is at."""

    def __call__(self, activity: Activity | None = None, since_s: float = 0.0) -> m.Progress:
        """``activity``: None takes the step machine's; ``since_s``: how long it has lasted."""


PROGRESS_INTERVAL_S = 0.1
LOOK_AGAIN = timedelta(milliseconds=20)
BUILD_TIMEOUT_S = 10.0
ALIKE = (
    "All replicas must reduce the same tensors in the same order. This replica ends, before it "
    "disturbs the others"
)


class Engine:
    """One worker at work. Thread-safe; ``fatal`` is what must be raised in the main thread."""

    def __init__(
        self,
        context: WorkerContext,
        pg: ProcessGroup,
        machine: StepMachine,
        healing: Healing,
        progress: ProgressMaker,
    ) -> None:
        self.machine = machine
        self.fatal: Exception | None = None
        self.error: Exception | None = None
        self._begun = machine.begun
        self.divisor = 0
        self.rank: int | None = None
        self.changed = threading.Condition(threading.RLock())
        self._context = context
        self._registered = False
        self._events: deque[e.Event] = deque()
        self._draining = False
        self._waiting = 0
        self._stock: tuple[Quorum | None, tuple[int, ...]] = (None, ())
        self._afterwards: deque[Callable[[], None]] = deque()
        self._reductions: list[Reduction] = []
        self._batch: list[_Launched] = []
        self._works: list[Work] = []
        self._aborted: list[tuple[BuiltGroup, list[Work]]] = []
        self._caller_waits = pg.caller_waits
        self._offer_due: e.OfferState | None = None
        self._group: BuiltGroup | None = None
        self._group_attempt: Attempt | None = None
        self._progress = progress
        self._progress_due = False
        self._progress_sent = 0.0
        self._healing = healing
        self._groups = Groups(context, pg, self.feed, BUILD_TIMEOUT_S)
        self._link = AgentLink(context, self._on_message, self._on_link_lost)
        self._comparing = Comparing(context, self.feed, self._is_current)
        healing.answer_with(self._look_up)
        self._issuing = False
        self._carry_out: dict[type, Callable[[Any], None]] = {
            e.Send: lambda i: self._link.send(i.message),
            e.BuildGroup: lambda i: self._groups.build(i.quorum),
            e.AbortGroup: self._abort_group,
            e.DropGroup: lambda i: self._groups.drop(i.attempt),
            e.UseGroup: self._use_group,
            e.Launch: self._launch_all,
            e.Ask: lambda i: self._comparing.ask(i.question),
            e.FailScript: lambda i: self.die(UserError(f"{i.reason}. {ALIKE}")),
            e.Reissue: self._reissue,
            e.HandOut: self._hand_out,
            e.FailOperations: self._fail_operations,
            e.LoadState: lambda i: healing.load(i, self.feed, self.die, self._may_overwrite),
            e.OfferState: self._offer_state,
            e.RetireState: self._retire_state,
            e.ShowProgress: self._show_progress,
        }

    def start(self) -> None:
        """Connect the link's receiving half: from here on messages arrive."""
        self._link.start()

    def register(self) -> None:
        """Say to the lighthouse that this worker is there, once, at the script's first step."""
        if not self._registered:
            self._registered = True
            self.feed(m.AskReport())

    def feed(self, event: e.Event) -> None:
        """Let the machine decide about ``event`` and carry it out. From any thread."""
        with self.changed:
            self._events.append(event)
            if self._draining:
                return  # by this thread: it comes to it
            self._drain()
        if self._afterwards:
            self._run_afterwards()

    def issue(self, reduction: Reduction) -> None:
        """One more reduction of this step: out now, or kept until it has been compared.

        Raises:
            RuntimeError, TypeError, ValueError: what the backend says of a tensor or an operation
                that it cannot take. It is ``fatal``: peers would wait for this operation for ever.
                Of one that is compared first, later calls raise it.
        """
        with self.changed:
            self._offer_if_due()
            self._reductions.append(reduction)
            issued = e.OperationIssued(reduction.batched, reduction.closes, reduction.shape)
            self._events.append(issued)
            self._issuing = reduction.batched
            self._drain()
            self._issuing = False
        if self._afterwards:
            self._run_afterwards()
        self.raise_fatal()

    def await_batch(self) -> None:
        """Wait for the batch that was issued, in the thread that has nothing else left to do.

        A thread of the backend's that told of each operation would take the interpreter from this
        one just when it goes on. An abort does not wake every wait (see gloo.py): so now and then
        this thread looks whether the operation still means anything.
        """
        counts = self.machine.counts
        batch, self._batch = self._batch, []
        completed = False
        for attempt, index, work in batch:
            try:
                while not work.is_completed() and self.fatal is None and counts(attempt):
                    with contextlib.suppress(RuntimeError):  # also at the timeout
                        work.wait(LOOK_AGAIN)
                if not work.is_completed():
                    break  # others hand out what this thread's futures wait for
                work.wait()
            except (RuntimeError, PeerError) as error:
                self.feed(e.OperationFailed(attempt, index, str(error)[:500]))
            else:
                completed = True
                self.feed(e.OperationCompleted(attempt, index))
        if completed:
            self._groups.release_dropped()

    @property
    def is_fresh(self) -> bool:
        """A step is under way in which nothing has happened yet."""
        return self.machine.may_issue and not self._reductions and self.error is None

    def finish_results(self) -> None:
        """What stands is in its tensor, and what is chained on it has run, when this returns."""
        self._run_afterwards()
        self._offer_if_due()
        for reduction in self._reductions:
            if reduction.is_claimed and not reduction.is_released:
                reduction.wait()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Block the main thread until ``condition``; time spent in isolation does not count.

        Raises:
            TimeoutError: it did not come true within ``timeout_s``.
            Exception: what is ``fatal`` to this worker.
        """
        deadline = clock.now() + timeout_s
        with self.changed:
            self.raise_fatal()
            while not condition():
                if self.machine.isolated:
                    deadline = clock.now() + timeout_s
                left_s = deadline - clock.now()
                if left_s <= 0:
                    raise TimeoutError(f"{what} did not come within {timeout_s:g} s")
                self._waiting += 1
                self.changed.wait(min(left_s, 1.0))
                self._waiting -= 1
                self.raise_fatal()

    def die(self, error: Exception) -> None:
        """The main thread must raise ``error`` as soon as it comes by; it waits for no result."""
        with self.changed:
            self.fatal = self.fatal or error
            self._release_all(error)
            self.changed.notify_all()
            is_draining = self._draining  # then by this thread: it comes to what is left to do
        if not is_draining:
            self._run_afterwards()

    def raise_fatal(self) -> None:
        """Raise what has ended this worker, in the main thread."""
        if self.fatal is not None:
            raise self.fatal

    def note_progress(self, at_once: bool = False) -> None:
        """There is progress to tell the agent: at most ten times a second, but in the end all."""
        self._progress_due = True
        if at_once or clock.now() - self._progress_sent >= PROGRESS_INTERVAL_S:
            with self.changed:
                self._progress_sent = 0.0
                self._flush_progress()

    def close(self, reason: str | None) -> None:
        """Leave the job for ``reason`` (None: the agent will tell) and release everything."""
        if reason and self._registered and self.machine.phase is not StepPhase.LEFT:
            with self.changed:
                self._progress_sent = 0.0
                self._flush_progress()
            self.feed(e.WentAway(reason))
        self._link.close()
        self._comparing.close()
        self._groups.close()
        self._healing.close()

    # ------------------------------------------------------------ under the lock

    def _drain(self) -> None:
        """Decide about all that has come up, and carry it out."""
        self._draining = True
        try:
            while self._events:
                for instruction in self.machine.handle(self._events.popleft(), clock.now()):
                    self._carry_out[type(instruction)](instruction)
                if self.machine.begun != self._begun:
                    self._begin_step()
        except Exception as error:  # noqa: BLE001
            # The edge of a shell: this may be any thread, and the script must hear of it.
            self._break(error)
        finally:
            self._draining = False
        if self._waiting:
            self.changed.notify_all()

    def _begin_step(self) -> None:
        """Nothing of the last step counts; before any other thread can touch the new one."""
        self._begun = self.machine.begun
        self._reductions = []
        self._batch = []
        self._works = []
        if self._aborted:
            self._wait_for_writers()
        self.error = None
        self._take_stock()

    def _break(self, error: Exception) -> None:
        log.error("an error in thread %s:", threading.current_thread().name, exc_info=error)
        self._events.clear()
        if not isinstance(error, FtrunError):
            bug = Bug(f"{type(error).__name__}: {error}. What led to it:\n{self._story()}")
            bug.__cause__ = error
            error = bug
        self.die(error)

    def _abort_group(self, instruction: e.AbortGroup) -> None:
        if self._group_attempt == instruction.attempt:  # else it is one that was only prepared
            if self._group is not None and self._works:
                self._aborted.append((self._group, self._works))
            self._group = None
            self._works = []
        self._groups.abort(instruction.attempt)

    def _use_group(self, instruction: e.UseGroup) -> None:
        self._group = self._groups.use(instruction.quorum)
        self._group_attempt = instruction.quorum.attempt

    def _reissue(self, instruction: e.Reissue) -> None:
        self._wait_for_writers()
        self._take_stock()
        self._batch = []
        for reduction in self._reductions:
            reduction.restore(self.divisor)

    def _launch_all(self, instruction: e.Launch) -> None:
        for index in range(instruction.first, instruction.stop):
            is_awaited = self._issuing and index == len(self._reductions) - 1
            self._launch(index, self._reductions[index], is_awaited)

    def _wait_for_writers(self) -> None:
        """Whoever writes for an aborted group ends: its tensors are about to be written again."""
        aborted, self._aborted = self._aborted, []
        for group, works in aborted:
            if not wait_for_writers(works, group.threads_sleep):
                raise PeerError(
                    f"threads of an aborted group are still at work after {LIMIT_S:g} s and may "
                    "write over gradients: this worker is replaced and heals"
                )

    def _launch(self, index: int, reduction: Reduction, is_awaited: bool) -> None:
        tag, group = self.machine.tag, self._group
        if tag is None or group is None:
            raise Bug("an operation was issued without a group:\n" + self._story())
        if self.rank is None:
            reduction.add_nothing()
        else:
            reduction.divide_by(self.divisor)
        if group.world_size == 1:
            self._events.append(e.OperationCompleted(tag.attempt, index))
            return
        attempt = tag.attempt
        try:
            work = group.allreduce([reduction.data], reduction.op)
        except (RuntimeError, TypeError, ValueError) as error:
            if group.aborted or isinstance(error, DistError):
                self._events.append(e.OperationFailed(attempt, index, str(error)[:500]))
            else:
                self.die(error)  # the script's mistake, which it would repeat
            return
        if self._caller_waits:
            self._works.append(work)
            if is_awaited:
                self._batch.append((attempt, index, work))
                return
        work.get_future().add_done_callback(lambda f: self._on_done(attempt, index, f))

    def _on_done(self, attempt: Attempt, index: int, future: torch.futures.Future[Any]) -> None:
        try:
            future.value()
        except (RuntimeError, PeerError) as error:
            self.feed(e.OperationFailed(attempt, index, str(error)[:500]))
            return
        self.feed(e.OperationCompleted(attempt, index))
        self._groups.release_dropped()

    def _hand_out(self, instruction: e.HandOut) -> None:
        divisor = self.divisor
        for index in instruction.indices:
            reduction = self._reductions[index]
            if reduction.claim():
                self._afterwards.append(partial(reduction.hand_out, divisor))

    def _fail_operations(self, instruction: e.FailOperations) -> None:
        self._release_all(PeerError(f"step {self.machine.position}: {instruction.reason}"))

    def _release_all(self, error: Exception) -> None:
        self.error = self.error or error
        for reduction in self._reductions:
            if reduction.claim():
                self._afterwards.append(reduction.release)

    def _take_stock(self) -> None:
        """Who counts in the step under way, and which of them we are (C4)."""
        stock = quorum, ranks = self.machine.in_force, self.machine.contributors()
        if quorum is None or not ranks or stock == self._stock:
            return
        self._stock = stock
        key = self._context.key
        own = quorum.index(key.replica_id, key.incarnation)
        self.divisor = len(ranks)
        self.rank = ranks.index(own) if own in ranks else None

    def _is_current(self, question: Question) -> bool:
        """Whether an answer to ``question`` would still be of use (from any thread)."""
        return self.fatal is None and self.machine.counts(question.tag.attempt)

    def _look_up(self, question: Question, timeout_s: float) -> bytes | None:
        """What this worker answers to a peer; None: it does not know yet (from any thread)."""
        deadline = clock.now() + timeout_s
        with self.changed:
            while (entry := self.machine.look_up(question)) is None:
                left_s = deadline - clock.now()
                if left_s <= 0:
                    return None
                self._waiting += 1
                self.changed.wait(left_s)
                self._waiting -= 1
        return encode(entry)

    def _may_overwrite(self, tag: Tag) -> bool:
        """The machine knows that its state is about to be torn, or forbids it (from any thread)."""
        with self.changed:
            self.feed(e.OverwriteBegun(tag))
            return self.machine.may_overwrite(tag)

    def _offer_state(self, instruction: e.OfferState) -> None:
        """At once, unless the main thread may be in a forward pass, which changes buffers (S3)."""
        is_at_boundary = self.machine.begun != self._begun
        last = self._reductions[-1] if self._reductions else None
        if is_at_boundary or (last is not None and (last.closes or not last.batched)):
            self._offer(instruction)
        else:
            self._offer_due = instruction

    def _offer_if_due(self) -> None:
        """In the main thread, when a forward pass is over."""
        if self._offer_due is not None:
            with self.changed:
                due, self._offer_due = self._offer_due, None
                if due is not None:
                    self._offer(due)

    def _retire_state(self, instruction: e.RetireState) -> None:
        self._offer_due = None
        self._healing.retire(instruction.tag)

    def _offer(self, instruction: e.OfferState) -> None:
        try:
            self._healing.offer(instruction.tag, instruction.state, instruction.receivers)
        except Exception as error:  # noqa: BLE001  # whatever the script's own functions raise
            self.die(error)

    def _show_progress(self, instruction: e.ShowProgress) -> None:
        self._link.send(self._progress(instruction.activity, instruction.since_s))

    def _flush_progress(self) -> None:
        now = clock.now()
        if self._progress_due and now - self._progress_sent >= PROGRESS_INTERVAL_S:
            self._link.send(self._progress())
            self._progress_due = False
            self._progress_sent = now

    # ------------------------------------------------------------ other threads

    def _run_afterwards(self) -> None:
        while self._afterwards:
            try:
                action = self._afterwards.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                action()
            except Exception as error:  # noqa: BLE001  # this may be any thread
                self.die(error)

    def _on_message(self, message: Any | None) -> None:
        if not self._registered and not isinstance(message, (m.Lease, m.LeaveNow)):
            return  # what is said to all workers is of no use before the first Report
        if message is not None:
            self.feed(message)
        self.feed(e.Ticked())
        with self.changed:
            self._flush_progress()

    def _on_link_lost(self, error: PeerError) -> None:
        self.die(PeerError(f"replica {self._context.replica_id} lost its agent: {error}"))

    def _story(self) -> str:
        return "\n".join(self.machine.story())
