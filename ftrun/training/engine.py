"""The shell around one worker's step machine: carries out what core/worker/machine.py decides.

Every event passes ``feed``. Under one lock the machine decides and its instructions are carried out
in order. Then, outside the lock, the futures complete that scripts and DDP wait for. Threads that
feed events: the main thread, the link, builders, the backend's completion threads, the state
loader.

Not here: what users call (manager.py), the flow of a step (step_flow.py), its reductions
(in_flight.py), groups (groups.py), state (healing.py).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ftrun.base import clock
from ftrun.base.errors import Bug, FtrunError, PeerError, UserError, assert_never
from ftrun.checkpoint.requests import PeerQuestion
from ftrun.core import messages as m
from ftrun.core.ids import Tag
from ftrun.core.messages import LeaveReason
from ftrun.core.quorum import Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.comparison import Question
from ftrun.core.worker.exchange import ExchangeQuestion
from ftrun.core.worker.facts import StepPhase
from ftrun.core.worker.machine import StepMachine
from ftrun.process_groups.base import ProcessGroup
from ftrun.process_groups.built import BuiltGroup
from ftrun.training import pauses
from ftrun.training.comparing import Comparing, encode
from ftrun.training.context import WorkerContext
from ftrun.training.groups import Beside, Groups
from ftrun.training.healing import Healing
from ftrun.training.in_flight import InFlight
from ftrun.training.keeper import Keeper
from ftrun.training.link import AgentLink
from ftrun.training.progress import WorkerProgress
from ftrun.training.reductions import Reduction

if TYPE_CHECKING:
    from ftrun.training.exchanges import Exchanges

log = logging.getLogger(__name__)


PROGRESS_INTERVAL_S = 0.1
LOCK_WAIT_S = 5.0
"""How long the report of a failure waits for another thread that is processing an event."""
BUILD_TIMEOUT_S = 10.0
CLOSED = "the Manager was closed"
T = TypeVar("T")


class Engine:
    """Runs one worker. Thread-safe; the main thread must raise ``fatal``."""

    def __init__(
        self,
        context: WorkerContext,
        pg: ProcessGroup,
        machine: StepMachine,
        healing: Healing,
        progress: WorkerProgress,
        keeper: Keeper | None = None,
    ) -> None:
        self.machine = machine
        self._keeper = keeper
        self.fatal: Exception | None = None
        self.peers: m.Roster | None = None
        self.exchanges: Exchanges | None = None
        self._begun = machine.begun
        self.lock = (
            threading.RLock()
        )  # the lock of ``changed``; used directly where it saves time in each step
        self.changed = threading.Condition(self.lock)
        self.context = context
        self._registered = False
        self.on_wait: Callable[[], None] = lambda: None
        """Called while the main thread waits; it may raise to end the wait."""
        self.begins_again: Callable[[str], None] = lambda reason: None
        """Called if all replicas are about to begin again, and this worker is to leave its state.
        From any thread."""
        self._events: deque[e.Event] = deque()
        self._draining = False
        self._has_closed = False
        self._waiting = 0
        self._stock: tuple[Quorum | None, tuple[int, ...]] = (None, ())
        self.progress = progress
        self._progress_due = False
        self._progress_sent = 0.0
        self.healing = healing
        self._groups = Groups(context, pg, self.feed, BUILD_TIMEOUT_S)
        self.in_flight = InFlight(
            machine, self._groups, pg.caller_waits, self._events.append, self.feed, self.die
        )
        self.in_flight.keeper = keeper
        self._link = AgentLink(context, self._on_message, self._on_link_lost)
        self._comparing = Comparing(context, self.feed, self._is_current, machine.takes)
        healing.connect(self)

    def follow_quorums(self, beside: Beside) -> Callable[[list[BuiltGroup]], None]:
        """Build, use and abort other groups together with the Manager's own. Returns a function
        that shuts down unused ones in the background."""
        with self.changed:
            self._groups.beside = beside
        return self._groups.release

    def wanted_by(self) -> str:
        """A replica that waits for this worker, whose script has ended; "": none is known."""
        beside, quorum = self._groups.beside, self.machine.in_force
        return "" if beside is None or quorum is None else beside.wanted_by(quorum.store)

    def start(self) -> None:
        pauses.stop_listening()  # the link asks at each tick
        self._link.start()

    def register(self) -> None:
        """Report this worker to the lighthouse: once, at the script's first step."""
        if not (self._registered or self.machine.repeats):
            self._registered = True
            self.feed(m.AskReport())

    def goes_live(self) -> None:
        """Deliver messages to this worker from now on. An Interrupt follows, which it answers."""
        self._registered = True

    def feed(self, event: e.Event) -> None:
        """Let the machine decide about ``event`` and carry it out. From any thread."""
        with self.lock:
            self._events.append(event)
            if self._draining:
                return  # this thread is draining already, and will process this event
            self._drain()
        if self.in_flight.ready:
            self.in_flight.run_ready()

    def issue(self, reduction: Reduction) -> None:
        """Add a reduction to this step. It goes out now, or once it has been compared."""
        with self.lock:
            over = reduction.closes and reduction.awaited
            self.healing.forward_over(may_resume=reduction.batched and not over)
            self.in_flight.reductions.append(reduction)
            issued = e.OperationIssued(reduction.batched, reduction.closes, reduction.shape)
            self._events.append(issued)
            self.in_flight.issues_awaited = reduction.awaited
            self._drain()
            self.in_flight.issues_awaited = False
        if self.in_flight.ready:
            self.in_flight.run_ready()
        self.raise_fatal()

    @property
    def is_fresh(self) -> bool:
        """Whether a step has begun in which nothing has happened yet."""
        return (
            self.machine.may_issue
            and not self.in_flight.reductions
            and self.in_flight.error is None
        )

    def finish_results(self) -> None:
        """Wait until all final results are in their tensors and their callbacks have run."""
        self.in_flight.complete_results()
        self.healing.forward_over()

    def wait_until(
        self,
        condition: Callable[[], bool],
        timeout_s: float,
        what: str,
        *,
        counts_isolation: bool = False,
        gives_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Block the main thread until ``condition``.

        Args:
            condition: what is waited for.
            timeout_s: the deadline.
            what: the name of it, for the error.
            counts_isolation: count time without a lighthouse towards the deadline, because the
                script has given this deadline in its call. Otherwise the agent ends the wait: it
                asks the script to stop after ``--lighthouse-timeout`` without an answer from a
                lighthouse.
            gives_up: called repeatedly; it raises to end the wait.

        Raises:
            TimeoutError: ``condition`` did not come true within ``timeout_s``.
            PeerError: another thread has closed the Manager.
            Exception: the ``fatal`` error of this worker.
        """
        deadline = clock.now() + timeout_s
        with self.changed:
            self.raise_fatal()
            while not condition():
                if self._has_closed:
                    raise PeerError(CLOSED)
                gives_up()
                self.on_wait()
                if self.machine.isolated and not counts_isolation:
                    deadline = clock.now() + timeout_s
                left_s = deadline - clock.now()
                if left_s <= 0:
                    raise TimeoutError(f"{what} did not come within {timeout_s:g} s")
                self._waiting += 1
                self.changed.wait(min(left_s, 1.0))
                self._waiting -= 1
                self.raise_fatal()

    def die(self, error: Exception) -> None:
        """Make ``error`` fatal: the main thread stops waiting and raises it."""
        with self.changed:
            self.fatal = self.fatal or error
            self.in_flight.end(error)
            self.changed.notify_all()
            is_draining = self._draining  # then ``feed`` completes the futures, outside the lock
        if not is_draining:
            self.in_flight.run_ready()

    def raise_fatal(self) -> None:
        """Raise the error that has ended this worker, in the main thread."""
        if self.fatal is not None:
            raise self.fatal

    def note_progress(self, at_once: bool = False) -> None:
        """Report progress to the agent: at most ten times a second, and always the last one."""
        self._progress_due = True
        if at_once or clock.now() - self._progress_sent >= PROGRESS_INTERVAL_S:
            with self.changed:
                self._progress_sent = 0.0
                self._flush_progress()

    def place(self) -> tuple[int | None, bool]:
        """The machine's place, for the report of a failure; None also if another thread keeps the
        lock."""
        if not self.changed.acquire(timeout=LOCK_WAIT_S):
            return None, False
        try:
            return self.machine.place
        finally:
            self.changed.release()

    def close(self, reason: LeaveReason | None) -> None:
        """Leave the job for ``reason`` (None: the agent reports it) and release everything."""
        if reason and self._registered and self.machine.phase is not StepPhase.LEFT:
            with self.changed:
                self._progress_sent = 0.0
                self._flush_progress()
            self.feed(e.WentAway(reason))
        self._link.close()
        self._comparing.close()
        self._groups.close()
        self.healing.close()
        with self.changed:  # another thread may wait
            self._has_closed = True
            self.in_flight.close(PeerError(CLOSED))
            self.changed.notify_all()
        self.in_flight.run_ready()

    # ------------------------------------------------------------ under the lock

    def _drain(self) -> None:
        """Let the machine decide about all queued events, and carry out its instructions."""
        self._draining = True
        try:
            while self._events:
                instructions = self.machine.handle(self._events.popleft(), clock.now())
                if self._keeper is not None:
                    self._keeper.sees(self.machine.quorums.seen)
                for instruction in instructions:
                    self._carry_out(instruction)
                if self.machine.begun != self._begun:
                    self._begin_step()
        except Exception as error:  # noqa: BLE001
            # The edge of a shell: this may be any thread, and the main thread must raise it.
            self._break(error)
        finally:
            self._draining = False
        self.announce()

    def announce(self) -> None:
        """Wake all threads that wait for a change."""
        if self._waiting:
            self.changed.notify_all()

    def _carry_out(self, instruction: e.Instruction) -> None:
        match instruction:
            case e.Launch():
                self.in_flight.launch(instruction.first, instruction.stop)
            case e.HandOut():
                self.in_flight.hand_out(instruction.indices)
            case e.ShowProgress():
                made = self.progress.make(instruction.activity, instruction.since_s)
                self._link.send(made)
            case e.Send():
                self._link.send(instruction.message)
            case e.Ask():
                self._comparing.ask(instruction.question)
            case e.BuildGroup():
                self._groups.build(instruction.quorum)
            case e.UseGroup():
                self.in_flight.use_group(instruction.quorum)
            case e.AbortGroup():
                self.in_flight.abort_group(instruction.attempt)
            case e.DropGroup():
                self._groups.drop(instruction.attempt)
            case e.Reissue():
                self._take_stock()
                self.in_flight.restore_inputs(instruction.first)
            case e.FailOperations():
                self._fail_operations(instruction)
            case e.FailScript():
                self.die(UserError(instruction.reason))
            case e.LoadState():
                self.healing.load(instruction)
            case e.OfferState():
                self.healing.offer(instruction)
            case e.RetireState():
                self.healing.retire(instruction.tag)
            case e.ShowPeers():
                self.peers = instruction.roster
            case _:
                assert_never(instruction)

    def _begin_step(self) -> None:
        """Reset the state of the last step, before any other thread can touch the new one."""
        self._begun = self.machine.begun
        self.in_flight.begin_step()
        if self._groups.beside is not None:
            self._groups.beside.boundary(self.machine.position)
        self.healing.forward_may_run()
        self._take_stock()

    def _break(self, error: Exception) -> None:
        log.error("an error in thread %s:", threading.current_thread().name, exc_info=error)
        self._events.clear()
        if not isinstance(error, FtrunError):
            bug = Bug(f"{type(error).__name__}: {error}. What led to it:\n{self._story()}")
            bug.__cause__ = error
            error = bug
        self.die(error)

    def _fail_operations(self, instruction: e.FailOperations) -> None:
        if self.exchanges is not None:
            self.exchanges.step_is_void(self.machine.position)
        reason = f"step {self.machine.position}: {instruction.reason}"
        self.in_flight.release_all(PeerError(reason))

    def _take_stock(self) -> None:
        """Note the number of contributors to this step, and this worker's rank among them (C4)."""
        stock = quorum, ranks = self.machine.in_force, self.machine.contributors()
        if quorum is None or not ranks or stock == self._stock:
            return
        self._stock = stock
        key = self.context.key
        own = quorum.index(key.replica_id, key.incarnation)
        self.in_flight.divisor = len(ranks)
        self.in_flight.rank = ranks.index(own) if own in ranks else None
        self.in_flight.contributors = tuple(quorum.members[rank].replica_id for rank in ranks)

    def _is_current(self, question: Question) -> bool:
        """Whether an answer to ``question`` would still be useful. From any thread."""
        return self.fatal is None and self.machine.counts(question.tag.attempt)

    def look_up(self, question: PeerQuestion, timeout_s: float) -> bytes | None:
        """This worker's answer to a peer's question; None: not known yet. From any thread."""
        if isinstance(question, ExchangeQuestion):
            return None if self.exchanges is None else self.exchanges.answer(question, timeout_s)
        entry = self.await_answer(lambda: self.machine.look_up(question), timeout_s)
        return None if entry is None else encode(entry)

    def await_answer(self, find: Callable[[], T | None], timeout_s: float) -> T | None:
        """Wait until ``find``, called under the lock, has an answer; None at the deadline."""
        deadline = clock.now() + timeout_s
        with self.changed:
            while (found := find()) is None:
                left_s = deadline - clock.now()
                if left_s <= 0:
                    return None
                self._waiting += 1
                self.changed.wait(left_s)
                self._waiting -= 1
        return found

    def may_overwrite(self, tag: Tag) -> bool:
        """Ask the machine whether the script's state may be overwritten; it notes that. From any
        thread."""
        with self.changed:
            self.feed(e.OverwriteBegun(tag))
            return self.machine.may_overwrite(tag)

    def _flush_progress(self) -> None:
        now = clock.now()
        if self._progress_due and now - self._progress_sent >= PROGRESS_INTERVAL_S:
            self._link.send(self.progress.make())
            self._progress_due = False
            self._progress_sent = now

    # ------------------------------------------------------------ other threads

    def _on_message(self, message: Any | None) -> None:
        if not self._registered and not isinstance(message, (m.Lease, m.LeaveNow, m.Roster)):
            if isinstance(message, m.AskReport) and self.machine.has_asked_for_peers:
                self.feed(e.PeersAsked())  # a lighthouse is back, and peers wait for this worker
            return  # before the first Report, messages to all workers do not matter here
        if isinstance(message, m.AnotherForm):
            self.begins_again(message.reason)
            with self.changed:  # the main thread may wait for results that will not come
                quorum = self.machine.in_force
                if quorum is not None:
                    self.feed(e.PeerUnreached(quorum.attempt, "that begins again"))
                self.announce()
            return
        began = clock.now()
        if message is not None:
            self.feed(message)
        heal = self.healing.progress()
        with self.changed:
            waited_s = clock.now() - began
            beside = self._groups.beside
            collective = None if beside is None else beside.awaits
            self.feed(e.Ticked(pauses.current(), pauses.beats(), heal, waited_s, collective))
            self._flush_progress()

    def _on_link_lost(self, error: PeerError) -> None:
        self.die(PeerError(f"replica {self.context.replica_id} lost its agent: {error}"))

    def _story(self) -> str:
        return "\n".join(self.machine.story())
