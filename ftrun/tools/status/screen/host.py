"""The interface that the screens need of their app.

Not here: how it is done (app.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from textual.screen import Screen

from ftrun.tools.status.screen.history import History
from ftrun.tools.status.source import Picture


class Host(Protocol):
    """The app, as its screens use it."""

    picture: Picture
    history: History
    notice: str

    def deliver(self, call: Callable[[], None]) -> None:
        """Run this in the app's thread; any thread may call it."""

    def tell(self, words: str) -> None:
        """Show a notice for a while."""

    def choose(self, job_id: str) -> None:
        """Watch this one of several jobs."""

    def back_to_choice(self) -> None:
        """Show the list of jobs again, if there was one."""

    def show_details(self, replica_id: str, rank: int | None) -> None:
        """The page of a replica."""

    def show_log(self, replica_id: str, rank: int) -> None:
        """The log of a worker, or where it is."""

    def operate(self, command: str, replica_id: str, rank: int | None) -> None:
        """Ask the lighthouse, after a question unless it only looks."""

    def show_torchft(self) -> None:
        """The page of torchft's replicas."""

    def explain(self, replica_id: str | None, number: int | None) -> None:
        """The record of an incident."""


def host_of(screen: Screen[None]) -> Host:
    """The app of a screen."""
    return cast(Host, screen.app)


def is_whole(screen: Screen[Any]) -> bool:
    """Its parts are there: it has been composed, and its removal has not begun.

    A picture or a line of a log may come before, or between its removal and its end.
    """
    return screen.is_mounted and screen.is_running
