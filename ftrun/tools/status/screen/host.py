"""The common base of all screens, and the keys that several of them have.

Not here: the app's methods that they call (app.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.binding import Binding, BindingType
from textual.screen import Screen

if TYPE_CHECKING:
    from ftrun.tools.status.screen.app import StatusApp


OF_REPLICA: tuple[BindingType, ...] = (
    Binding("l", "log", show=False),
    Binding("s", "operate('stack')", show=False),
    Binding("d", "operate('drain')", show=False),
    Binding("r", "operate('restart')", show=False),
    Binding("K", "operate('kill')", show=False),
    Binding("e", "explain", show=False),
)
"""The keys for one replica, where one is chosen."""


class Shown(Screen[None]):
    """A screen that shows the app's picture, updated with each new one."""

    def on_mount(self) -> None:
        """Called by textual."""
        self.on_picture()

    def on_resize(self) -> None:
        """Called by textual, before the parts have their new sizes."""
        self.call_after_refresh(self.on_picture)

    def on_picture(self) -> None:
        """A new picture, or new colours, must be shown.

        It may come before the parts are there, or between the screen's removal and its end.
        """
        if self.is_mounted and self.is_running:
            self.show()

    def show(self) -> None:
        """Fill the parts."""
        raise NotImplementedError

    @property
    def host(self) -> StatusApp:
        return cast("StatusApp", self.app)
