"""The common base of all screens, and the interface that they need of their app.

Not here: how it is done (app.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

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


class Shown(Screen[None]):
    """A screen that shows the app's picture, each time that one comes."""

    def on_mount(self) -> None:
        """Called by textual."""
        self.on_picture()

    def on_resize(self) -> None:
        """Called by textual, before the parts have their new sizes."""
        self.call_after_refresh(self.on_picture)

    def on_picture(self) -> None:
        """A new picture has come, or other colours.

        It may come before the parts are there, or between the screen's removal and its end.
        """
        if self.is_mounted and self.is_running:
            self.show()

    def show(self) -> None:
        """Fill the parts."""
        raise NotImplementedError

    @property
    def host(self) -> Host:
        return cast(Host, self.app)
