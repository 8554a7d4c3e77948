"""A Manager's seat among threads of one program.

Not here: the slot and incarnation of a seat (replicas.py), who assigns it (seats.py).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ftrun.base.errors import PeerError, UserError
from ftrun.training.context import WorkerContext
from ftrun.training.leaving import Drained
from ftrun.training.seats import Seat, SeatAsked, no_agent

LIGHTHOUSE_ENV = "TORCHFT_LIGHTHOUSE"
STARTED_BY_FTRUN = "FTRUN_INCARNATION"
"""Processes that a worker has started inherit this variable."""
FAILURE_CHARS_MAX = 500


class ThreadSeat(Seat):
    """A seat among threads. It belongs to the thread that has made it. Only its Manager uses it.

    Args:
        context: the Manager's identity and job.
        leave: reports the close of the Manager to the agent, with its failure; "": none.
        await_newcomers: waits a moment for Managers that exist and have not joined.
    """

    is_thread = True

    def __init__(
        self,
        context: WorkerContext,
        leave: Callable[[str], None],
        await_newcomers: Callable[[Callable[[], bool]], None],
    ) -> None:
        super().__init__(context)
        self._await_newcomers = await_newcomers
        self.thread = threading.current_thread()
        self._leave = leave
        self._before = sys.exc_info()[1]
        self._lock = threading.Lock()
        self._is_released = False
        self._ended: Exception | None = None
        self._end: Callable[[Exception], None] | None = None

    def release(self) -> None:
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
        self._leave(self._failure())

    def give_back(self) -> None:
        self.release()

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
        """Called by the agent: the Manager's next call raises ``error``."""
        with self._lock:
            self._ended = self._ended or error
            end = self._end
        if end is not None:
            end(error)

    def _failure(self) -> str:
        """The exception by which this thread leaves the Manager's block; "": none.

        An exception that was being handled when the Manager was made does not count.
        """
        error = sys.exc_info()[1]
        if error is None or error is self._before or isinstance(error, (Drained, GeneratorExit)):
            return ""
        if isinstance(error, SystemExit) and not error.code:
            return ""
        return f"{type(error).__name__}: {error}"[:FAILURE_CHARS_MAX]


@dataclass(frozen=True, slots=True)
class SeatWanted:
    """A Manager's arguments that determine where it belongs.

    Attributes:
        name: of its replica group.
        store: where the ranks of the group meet, ``HOST:PORT``.
        lighthouse: ``HOST:PORT``.
        min_replicas: used if the lighthouse has no number of its own.
    """

    name: str
    rank: int
    group_size: int
    store: str
    lighthouse: str
    min_replicas: int
    timeout_s: float

    @classmethod
    def of(cls, asked: SeatAsked) -> SeatWanted:
        """The place according to a Manager's arguments and the environment.

        Raises:
            UserError: they name no lighthouse, or no store for a group of several.
        """
        started_by_ftrun = STARTED_BY_FTRUN in os.environ
        found = None if started_by_ftrun else os.environ.get(LIGHTHOUSE_ENV)
        address = asked.lighthouse_addr or found
        if not address:
            raise no_agent()
        size = _number("WORLD_SIZE", asked.world_size, 1)
        store = _store(asked.store_addr, asked.store_port, size)
        name = f"store {store}" if store else f"thread {os.urandom(8).hex()}"
        return cls(
            name=asked.replica_id or name,
            rank=_number("RANK", asked.rank, 0),
            group_size=size,
            store=store,
            lighthouse=address,
            min_replicas=asked.min_replicas,
            timeout_s=asked.timeout_s,
        )


@dataclass(frozen=True, slots=True)
class LighthouseHere:
    """The conditions for the first quorum, of a lighthouse in this process."""

    min_replicas: int
    join_timeout_s: float


def ended(reason: str, name: str) -> PeerError:
    """The error of a Manager whose seat was ended."""
    return PeerError(
        f"replica group {name!r} is out of the job: {reason}. Its other threads get this error; "
        f"the rest of the job continues. A new Manager(replica_id={name!r}, ...) begins its next "
        "incarnation, which heals from its peers."
    )


def _store(addr: str | None, port: int | None, group_size: int) -> str:
    """Where the ranks of the group meet. "" is valid for a group of one, which needs no store."""
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
    """An argument; if it is not given, torchrun's variable for it, or the default."""
    if given is not None:
        return given
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else default
