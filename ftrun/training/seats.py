"""Where a Manager belongs: this process's own place, or a seat that a program's launcher assigns.

A worker that ftrun has started has one place for all its life. In a program that ftrun did not
start, a launcher assigns each Manager a *seat* (``serve``). ``import ftrun.torchft`` installs one
that makes replicas of threads (compat/threads/).

Not here: any launcher.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ftrun.base.errors import UserError
from ftrun.training import context as process
from ftrun.training.context import Place, WorkerContext
from ftrun.training.keeper import Keeper


class Seat:
    """A Manager's place. Only the Manager calls these methods. By default they do nothing.

    ``context``: the worker's identity and job. ``is_thread``: it is a seat among threads.
    """

    is_thread = False

    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    def managers_before(self) -> int:
        """How many Managers had this place before and were shut down."""
        return 0

    def claim(self) -> None:
        """Called before the Manager connects."""

    def keeper(self) -> Keeper | None:
        """What keeps this worker, so that another process can take its place; None: it is not
        kept."""
        return None

    def release(self) -> None:
        """Called when the Manager is closed. Idempotent."""

    def give_back(self) -> None:
        """Called if the Manager could not be made."""

    def knows_place(self, place: Callable[[], Place]) -> None:
        """Register a function that returns the step, for the report of a failure."""

    def trains(self, leave: Callable[[], None]) -> None:
        """Called when the Manager begins its first step; ``leave`` leaves at once."""

    def between_steps(self, is_agreed: Callable[[], bool]) -> None:
        """Called before a step at which others may join.

        ``is_agreed``: whether the step at which they join is known.
        """

    def has_failed(self) -> bool:
        """Whether the script has failed, so that its end is not a success."""
        raise NotImplementedError

    def on_end(self, end: Callable[[Exception], None]) -> None:
        """Call ``end``, from another thread, if the seat ends before the Manager does."""


class ProcessSeat(Seat):
    """The place of a process that ftrun has started. The agent ends it by killing the process.

    ``give_back`` does nothing, because ``claim`` may have been refused: another Manager holds the
    place.
    """

    def managers_before(self) -> int:
        return process.managers_before(self.context.key)

    def claim(self) -> None:
        process.claim(self.context.key)

    def keeper(self) -> Keeper | None:
        return None if self.managers_before() else process.Process.keeper

    def release(self) -> None:
        process.release(self.context.key)

    def knows_place(self, place: Callable[[], Place]) -> None:
        process.Process.place = place

    def trains(self, leave: Callable[[], None]) -> None:
        process.Process.leave = leave

    def has_failed(self) -> bool:
        return process.Process.failed


@dataclass(frozen=True, slots=True)
class SeatAsked:
    """The arguments, as given by the script, that determine a Manager's place."""

    lighthouse_addr: str | None
    replica_id: str | None
    rank: int | None
    world_size: int | None
    store_addr: str | None
    store_port: int | None
    min_replicas: int
    timeout_s: float


Launcher: TypeAlias = Callable[[SeatAsked], Seat]
"""Assigns a seat to a Manager of the calling thread, in a program that ftrun did not start.

It raises a UserError if no lighthouse is given or if the lighthouse accepts no such Manager, and a
PeerError if the lighthouse does not answer.
"""


class _Process:
    launcher: Launcher | None = None


def serve(launcher: Launcher) -> None:
    """Let ``launcher`` assign the seats of Managers in this process, unless ftrun started it."""
    _Process.launcher = launcher


def take(asked: SeatAsked) -> Seat:
    """The place of a new Manager.

    Raises:
        UserError: ftrun did not start this process, and there is no launcher or no seat fits.
        PeerError: the lighthouse does not answer.
    """
    own = process.current()
    if own is not None:
        return ProcessSeat(own)
    if _Process.launcher is None:
        raise no_agent()
    return _Process.launcher(asked)


def no_agent() -> UserError:
    """The error of a Manager without a place."""
    return UserError(
        "a Manager needs an agent, and this process has none. Start the script with `ftrun "
        "--replicas N SCRIPT` instead of python or torchrun, or a function with ftrun.launch. For "
        "replicas that are threads of one process, as in a test or a notebook: import "
        "ftrun.torchft, make a ftrun.torchft.coordination.LighthouseServer, and give its "
        "address() as lighthouse_addr."
    )


@contextlib.contextmanager
def given_back_on_error(seat: Seat) -> Iterator[None]:
    """Return the seat if the Manager cannot be made."""
    try:
        yield
    except BaseException:
        seat.give_back()
        raise


def refuse_in_threads(seat: Seat, what: str) -> None:
    """Refuse a feature that needs a launcher that knows all replicas from the start.

    Raises:
        UserError: the Manager has a seat among threads.
    """
    if seat.is_thread:
        raise UserError(
            f"{what}: replicas that are threads of one process come as they like, so it is not "
            "known whom to count or to wait for. Start the script with `ftrun --replicas N SCRIPT`."
        )
