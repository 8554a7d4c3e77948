"""The process groups of a worker: built in the background, aborted at once, dropped when safe.

Not here: when that happens (core/worker/machine.py), how a group connects (process_groups/).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ftrun.base import clock
from ftrun.base.errors import Bug, PeerError
from ftrun.core.activity import Pause
from ftrun.core.ids import Attempt
from ftrun.core.messages import BuildFailed, Built
from ftrun.core.quorum import Quorum
from ftrun.core.worker.machine import StepMachine
from ftrun.core.worker.under_way import Fate
from ftrun.process_groups.base import ProcessGroup
from ftrun.process_groups.built import AbortSignal, BuiltGroup
from ftrun.training.context import WorkerContext

log = logging.getLogger(__name__)


class Beside(Protocol):
    """More groups that follow the same quorums as the one in which gradients are reduced."""

    awaits: Pause | None
    """The collective in which the script waits, and since when, counting all retries."""

    def build(self, quorum: Quorum, prefix: str, timeout_s: float, signal: AbortSignal) -> None:
        """Build the groups of a quorum, in the builder's thread; ``signal`` ends it.

        Raises:
            PeerError, RuntimeError, OSError: the quorum cannot be built.
        """

    def use(self, quorum: Quorum) -> None:
        """Switch to the groups of ``quorum``, which were built. Under the engine's lock."""

    def abort(self, attempt: Attempt) -> None:
        """Abort the groups of ``attempt``."""

    def boundary(self, step: int) -> None:
        """A step begins. Under the engine's lock."""

    def wanted_by(self, store: str) -> str:
        """At the script's end: a replica that waits in one of these groups for a call that this
        worker never made; "": there is none. ``store``: of the quorum in force."""


CLOSE_TIMEOUT_S = 2.0


class Following:
    """A worker as the groups that follow its quorums see it.

    Args:
        machine: of the worker.
        raise_fatal: raises the error that has ended it.
        leave: raises if the script must leave where it stands.
        release: shuts groups down in a thread. The worker waits for it for a moment when it ends.
        serve: serves this worker's state to a newcomer that waits for it.
    """

    def __init__(
        self,
        machine: StepMachine,
        raise_fatal: Callable[[], None],
        leave: Callable[[], None],
        release: Callable[[list[BuiltGroup]], None],
        serve: Callable[[], None],
    ) -> None:
        self._machine, self._raise_fatal, self._leave = machine, raise_fatal, leave
        self.release, self.serve = release, serve

    def may_wait(self) -> None:
        """Raise if the main thread must stop waiting for its peers; let them heal from it."""
        self._raise_fatal()
        self._leave()
        self.serve()

    @property
    def is_alone(self) -> bool:
        """Whether this worker is in no quorum, and joins one at its next boundary."""
        pending = self._machine.pending
        is_agreed = pending is not None and pending.promise is not None
        return self._machine.in_force is None and is_agreed

    @property
    def heals_first(self) -> bool:
        """Whether this worker heals before its next pass, and so makes no call until then."""
        return self._machine.heals_first

    @property
    def next_step(self) -> int:
        """The first step that has not begun here, or is to begin again."""
        return self._machine.position + self.in_step

    @property
    def in_step(self) -> bool:
        """Whether a step is under way, and may yet be committed: nobody joins in another one."""
        return self._machine.in_step and self._machine.fate is not Fate.VOID


@dataclass(eq=False, repr=False)
class Groups:
    """All groups of this worker, by attempt: the one in use, and a few that are built or
    dropped."""

    _context: WorkerContext
    _factory: ProcessGroup
    _report: Callable[[Built | BuildFailed], None]
    _build_timeout_s: float
    beside: Beside | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _signals: dict[Attempt, AbortSignal] = field(default_factory=dict)
    _built: dict[Attempt, BuiltGroup] = field(default_factory=dict)
    _dropped: list[BuiltGroup] = field(default_factory=list)
    _threads: set[threading.Thread] = field(default_factory=set)

    def build(self, quorum: Quorum) -> None:
        """Start to build. A thread reports Built or BuildFailed."""
        signal = AbortSignal()
        with self._lock:
            self._signals[quorum.attempt] = signal
        self._start("ftrun-build", lambda: self._build(quorum, signal))

    def use(self, quorum: Quorum) -> BuiltGroup:
        """Send collectives to the group of ``quorum``, which was reported as built."""
        with self._lock:
            group = self._built.get(quorum.attempt)
        if group is None:
            raise Bug(f"the process group of {quorum.attempt} is to be used but was not built")
        self._factory.use(group)
        if self.beside is not None:
            self.beside.use(quorum)
        return group

    def abort(self, attempt: Attempt) -> None:
        """Wake every waiter of the group, or end its build, at once."""
        with self._lock:
            signal = self._signals.pop(attempt, None)
            group = self._built.pop(attempt, None)
        if signal is not None:
            signal.trigger()
        if self.beside is not None:
            self.beside.abort(attempt)
        if group is not None:
            self.release([group])

    def drop(self, attempt: Attempt) -> None:
        """Keep a group that is no longer used here: peers may still wait for its last bytes."""
        with self._lock:
            self._signals.pop(attempt, None)
            group = self._built.pop(attempt, None)
            if group is not None:
                self._dropped.append(group)

    def release_dropped(self) -> None:
        """Release dropped groups: a later group has completed a collective, so no peer uses
        them."""
        if self._dropped:
            with self._lock:
                groups, self._dropped = self._dropped, []
            self.release(groups)

    def close(self) -> None:
        """Abort all builds, and release all groups. Takes up to CLOSE_TIMEOUT_S.

        A group may take longer, because a Gloo collective can stay in its threads until its timeout
        (process_groups/gloo.py). It ends with the process.
        """
        with self._lock:
            signals = list(self._signals.values())
            groups = [*self._built.values(), *self._dropped]
            self._signals.clear()
            self._built.clear()
            self._dropped.clear()
        self._factory.use(None)
        for signal in signals:
            signal.trigger()
        try:
            self.release(groups)
        except RuntimeError:  # the interpreter ends, and Python 3.12 starts no more threads
            for group in groups:
                group.shutdown()
        deadline = clock.now() + CLOSE_TIMEOUT_S
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            # A thread that is in the backend when the interpreter ends would abort the process.
            thread.join(max(0.0, deadline - clock.now()))

    def _start(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._lock:
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError:
                self._threads.discard(thread)
                raise

    def _build(self, quorum: Quorum, signal: AbortSignal) -> None:
        try:
            group = self._connect(quorum, signal)
            try:
                if self.beside is not None:
                    at = f"{self._name(quorum)}/world"
                    self.beside.build(quorum, at, self._build_timeout_s, signal)
            except BaseException:
                group.shutdown()
                raise
        except (PeerError, RuntimeError, OSError) as error:
            with self._lock:
                self._signals.pop(quorum.attempt, None)
            if not signal.triggered:
                log.warning("could not build the process group of %s: %s", quorum.attempt, error)
            unreached = error.unreached if isinstance(error, PeerError) else ""
            self._report(BuildFailed(quorum.attempt, str(error)[:1000], unreached))
            return
        with self._lock:
            self._built[quorum.attempt] = group
        self._report(Built(quorum.attempt))

    def _connect(self, quorum: Quorum, signal: AbortSignal) -> BuiltGroup:
        key = self._context.key
        rank = quorum.index(key.replica_id, key.incarnation)
        assert rank is not None, "builds a quorum that it is not in"
        return self._factory.build(
            quorum.store,
            f"{self._name(quorum)}/{key.group_rank}",
            rank,
            len(quorum.members),
            self._context.host,
            self._build_timeout_s,
            signal,
        )

    def _name(self, quorum: Quorum) -> str:
        attempt = quorum.attempt
        return f"{self._context.job_id}/{attempt.quorum_id}.{attempt.number}"  # C3

    def release(self, groups: list[BuiltGroup]) -> None:
        """Shut down in a separate thread, because the backend takes milliseconds to join its
        threads."""

        def shut_down() -> None:
            for group in groups:
                group.shutdown()

        self._start("ftrun-release", shut_down)
