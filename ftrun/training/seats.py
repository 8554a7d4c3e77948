"""Where a Manager belongs: this process's own place, or a seat among threads of one process.

A worker that ftrun has started has one place for all its life. In a program that ftrun did not
start, a Manager that is given a lighthouse takes a *seat*: a rank of a replica group whose workers
are threads. So torchft's own tests run, and notebooks. An agent in this process serves the seats.

Not here: which slot and incarnation a seat belongs to (compat/threads/replicas.py), the agent in
this process (compat/threads/agent.py).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

from ftrun.base.addresses import LOOPBACK, is_loopback
from ftrun.base.errors import PeerError, UserError
from ftrun.training import context as process
from ftrun.training.context import Place, WorkerContext
from ftrun.training.leaving import Drained

LIGHTHOUSE_ENV = "TORCHFT_LIGHTHOUSE"
STARTED_BY_FTRUN = "FTRUN_INCARNATION"
"""Processes that a worker has started inherit this."""
THREAD_SEATS = "ftrun.compat.threads.seats"
FAILURE_CHARS_MAX = 500


class Seat(Protocol):
    """A Manager's place. All methods are for the Manager alone.

    ``context``: what the Manager is told of itself. ``is_thread``: it is a seat among threads.
    """

    context: WorkerContext
    is_thread: bool

    def managers_before(self) -> int:
        """How many Managers have had this place and were shut down."""

    def claim(self) -> None:
        """The Manager is about to connect."""

    def release(self) -> None:
        """The Manager is closed; a second time does nothing."""

    def give_back(self) -> None:
        """The Manager could not be made."""

    def knows_place(self, place: Callable[[], Place]) -> None:
        """The step, for the report of a failure."""

    def trains(self, leave: Callable[[], None]) -> None:
        """The Manager begins its first step; ``leave`` leaves at once."""

    def between_steps(self, is_agreed: Callable[[], bool]) -> None:
        """The Manager is about to begin a step at which others may join.

        ``is_agreed``: whether the step at which they join is known.
        """

    def has_failed(self) -> bool:
        """Whether the script fails, so that its end must not be taken for a finish."""

    def on_end(self, end: Callable[[Exception], None]) -> None:
        """Call ``end`` if the seat ends before the Manager does; from another thread."""


class ProcessSeat:
    """The place of a process that ftrun has started."""

    is_thread = False

    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    def managers_before(self) -> int:
        return process.managers_before(self.context.key)

    def claim(self) -> None:
        process.claim(self.context.key)

    def release(self) -> None:
        process.release(self.context.key)

    def give_back(self) -> None:
        pass  # ``claim`` may have been refused, because another Manager has the place

    def knows_place(self, place: Callable[[], Place]) -> None:
        process.knows_place(place)

    def trains(self, leave: Callable[[], None]) -> None:
        process.trains(leave)

    def between_steps(self, is_agreed: Callable[[], bool]) -> None:
        pass  # processes join when they are ready, and nobody waits

    def has_failed(self) -> bool:
        return process.has_failed()

    def on_end(self, end: Callable[[Exception], None]) -> None:
        pass  # the agent kills the process


class ThreadSeat:
    """A seat among threads. It belongs to the thread that has made it.

    Args:
        context: what the Manager is told.
        leave: tells the agent that the Manager is closed, and by which failure; "": in good order.
        await_newcomers: waits a moment for Managers that were made and have not joined.
    """

    is_thread = True

    def __init__(
        self,
        context: WorkerContext,
        leave: Callable[[str], None],
        await_newcomers: Callable[[Callable[[], bool]], None],
    ) -> None:
        self.context = context
        self._await_newcomers = await_newcomers
        self.thread = threading.current_thread()
        self._leave = leave
        self._before = sys.exc_info()[1]
        self._lock = threading.Lock()
        self._is_released = False
        self._ended: Exception | None = None
        self._end: Callable[[Exception], None] | None = None

    def managers_before(self) -> int:
        return 0  # each has an incarnation of its own

    def claim(self) -> None:
        pass  # the agent has given the seat to this Manager alone

    def release(self) -> None:
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
        self._leave(self._failure())

    def give_back(self) -> None:
        self.release()

    def knows_place(self, place: Callable[[], Place]) -> None:
        pass  # no report is sent

    def trains(self, leave: Callable[[], None]) -> None:
        pass  # no signal's handler leaves

    def between_steps(self, is_agreed: Callable[[], bool]) -> None:
        self._await_newcomers(is_agreed)

    def has_failed(self) -> bool:
        return self._failure() != ""

    def on_end(self, end: Callable[[Exception], None]) -> None:
        with self._lock:
            self._end = end
            ended = self._ended
        if ended is not None:
            end(ended)

    def end(self, error: Exception) -> None:
        """The agent ends the seat: the Manager's next call raises ``error``."""
        with self._lock:
            self._ended = self._ended or error
            end = self._end
        if end is not None:
            end(error)

    def _failure(self) -> str:
        """The exception by which this thread leaves the Manager's block; "": by none.

        One that was being handled when the Manager was made has nothing to do with it.
        """
        error = sys.exc_info()[1]
        if error is None or error is self._before or isinstance(error, (Drained, GeneratorExit)):
            return ""
        if isinstance(error, SystemExit) and not error.code:
            return ""
        return f"{type(error).__name__}: {error}"[:FAILURE_CHARS_MAX]


@dataclass(frozen=True, slots=True)
class SeatWanted:
    """A Manager's arguments that say where it belongs.

    ``name``: of its replica group. ``store``: where the ranks of the group meet, ``HOST:PORT``.
    ``lighthouse``: ``HOST:PORT``. ``min_replicas``: if the lighthouse has no number of its own.
    """

    name: str
    rank: int
    group_size: int
    store: str
    lighthouse: str
    min_replicas: int
    timeout_s: float


class Membership(Protocol):
    """An ftrun lighthouse in this process, for one job of threads."""

    token: str

    async def start(self) -> str:
        """Serve; returns the address for the agent."""

    async def stop(self) -> None:
        """End."""


@dataclass(frozen=True, slots=True)
class LighthouseHere:
    """A lighthouse in this process: what it wants of a first quorum; ``make``: membership of it."""

    min_replicas: int
    join_timeout_s: float
    make: Callable[[], Membership]


class _Process:
    """The lighthouses that this process has, by port."""

    lighthouses: ClassVar[dict[int, LighthouseHere]] = {}


def offer(port: int, lighthouse: LighthouseHere) -> None:
    """Threads of this process may use the lighthouse at this port."""
    _Process.lighthouses[port] = lighthouse


def withdraw(port: int) -> None:
    """The lighthouse at this port is shut down; an agent in this process loses it."""
    if _Process.lighthouses.pop(port, None) is not None and THREAD_SEATS in sys.modules:
        sys.modules[THREAD_SEATS].lighthouse_has_gone(port)


def lighthouse_here(host: str, port: int) -> LighthouseHere | None:
    """The lighthouse of this process at that address; None: it is elsewhere."""
    is_here = is_loopback(host) or host in (socket.gethostname(), "0.0.0.0", "::", LOOPBACK)
    return _Process.lighthouses.get(port) if is_here else None


def take(
    *,
    lighthouse_addr: str | None,
    replica_id: str | None,
    rank: int | None,
    world_size: int | None,
    store_addr: str | None,
    store_port: int | None,
    min_replicas: int,
    timeout_s: float,
) -> Seat:
    """The place of a Manager that is made now.

    Raises:
        UserError: ftrun did not start this process, and no lighthouse is given or takes threads.
        PeerError: the lighthouse does not answer.
    """
    own = process.current()
    if own is not None:
        return ProcessSeat(own)
    started_by_ftrun = STARTED_BY_FTRUN in os.environ
    address = lighthouse_addr or (None if started_by_ftrun else os.environ.get(LIGHTHOUSE_ENV))
    if not address:
        raise UserError(
            "a Manager needs an agent, and this process has none. Start the script with `ftrun "
            "--replicas N SCRIPT` instead of python or torchrun. For replicas that are threads of "
            "one process, as in a test or a notebook: make a ftrun.torchft.LighthouseServer, and "
            "give its address() as lighthouse_addr."
        )
    size = _number("WORLD_SIZE", world_size, 1)
    store = _store(store_addr, store_port, size)
    wanted = SeatWanted(
        name=replica_id or (f"store {store}" if store else f"thread {os.urandom(8).hex()}"),
        rank=_number("RANK", rank, 0),
        group_size=size,
        store=store,
        lighthouse=address,
        min_replicas=min_replicas,
        timeout_s=timeout_s,
    )
    seat: ThreadSeat = importlib.import_module(THREAD_SEATS).take_seat(wanted)
    return seat


@contextlib.contextmanager
def given_back_on_error(seat: Seat) -> Iterator[None]:
    """Give the seat back if the Manager cannot be made."""
    try:
        yield
    except BaseException:
        seat.give_back()
        raise


def refuse_in_threads(seat: Seat, what: str) -> None:
    """Refuse what needs a launcher that knows all replicas from the start.

    Raises:
        UserError: the Manager has a seat among threads.
    """
    if seat.is_thread:
        raise UserError(
            f"{what}: replicas that are threads of one process come as they like, so it is not "
            "known whom to count or to wait for. Start the script with `ftrun --replicas N SCRIPT`."
        )


def ended(reason: str, name: str) -> PeerError:
    """The error of a Manager whose seat was ended."""
    return PeerError(
        f"replica group {name!r} is out of the job: {reason}. Its other threads get this error; "
        f"the rest of the job goes on. A new Manager(replica_id={name!r}, ...) begins its next "
        "incarnation, which heals from its peers."
    )


def _store(addr: str | None, port: int | None, group_size: int) -> str:
    """Where the ranks of the group meet; a group of one needs no store, so "" is well."""
    if group_size > 1:
        addr = addr or os.environ.get("MASTER_ADDR")
        port = port or int(os.environ.get("MASTER_PORT", "0"))
        if not addr or not port:
            raise UserError(
                f"Manager(world_size={group_size}): the ranks of a replica group meet at a store. "
                "Give store_addr and store_port, of a torch.distributed.TCPStore of this group."
            )
    return f"{addr}:{port}" if addr and port else ""


def _number(variable: str, given: int | None, default: int) -> int:
    """An argument; without one its variable of torchrun's, or the default."""
    if given is not None:
        return given
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else default
