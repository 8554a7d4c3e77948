"""Where a Manager belongs: this process's own place, or a seat that a program's launcher gives.

A worker that ftrun has started has one place for all its life. In a program that ftrun did not
start, whoever serves its Managers gives each a *seat* (``serve``): ``import ftrun.torchft`` makes
replicas of threads (compat/threads/).

Not here: any launcher.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from ftrun.base.errors import UserError
from ftrun.training import context as process
from ftrun.training.context import Place, WorkerContext
from ftrun.training.keeper import Keeper


class Seat:
    """A Manager's place. All methods are for the Manager alone; by default they do nothing.

    ``context``: what the Manager knows of itself. ``is_thread``: it is a seat among threads.
    """

    is_thread = False

    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    def managers_before(self) -> int:
        """How many Managers have had this place and were shut down."""
        return 0

    def claim(self) -> None:
        """The Manager is about to connect."""

    def keeper(self) -> Keeper | None:
        """What keeps this worker, so that another process can take its place; None: none does."""
        return None

    def left(self, engine: Any) -> Any:  # noqa: ARG002
        """A claim to what this replica's earlier processes have left; None: there is none."""
        return None

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
        raise NotImplementedError

    def on_end(self, end: Callable[[Exception], None]) -> None:
        """Call ``end`` if the seat ends before the Manager does; from another thread."""


class ProcessSeat(Seat):
    """The place of a process that ftrun has started. The agent ends it by killing the process.

    ``give_back`` does nothing, because ``claim`` may have been refused: another Manager has it.
    """

    def managers_before(self) -> int:
        return process.managers_before(self.context.key)

    def claim(self) -> None:
        process.claim(self.context.key)

    def keeper(self) -> Keeper | None:
        return None if self.managers_before() else process.Process.keeper

    def left(self, engine: Any) -> Any:
        keeper, claim = process.Process.keeper, process.Process.left
        if keeper is not None:
            return keeper.resuming(engine)
        return None if claim is None else claim(engine)

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
    """A Manager's arguments that determine where it belongs, as its script gives them."""

    lighthouse_addr: str | None
    replica_id: str | None
    rank: int | None
    world_size: int | None
    store_addr: str | None
    store_port: int | None
    min_replicas: int
    timeout_s: float


Launcher: TypeAlias = Callable[[SeatAsked], Seat]
"""Gives a seat to a Manager that this thread makes, in a program that ftrun did not start.

It raises a UserError if no lighthouse is given, or if that takes no such Manager, and a PeerError
if the lighthouse does not answer.
"""


class _Process:
    launcher: Launcher | None = None


def serve(launcher: Launcher) -> None:
    """Managers that are made in this process outside ftrun have their seats from ``launcher``."""
    _Process.launcher = launcher


def take(asked: SeatAsked) -> Seat:
    """The place of a Manager that is made now.

    Raises:
        UserError: ftrun did not start this process, and nobody serves it or no seat fits.
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
