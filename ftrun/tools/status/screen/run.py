"""Starts the screen: the first request is sent before textual is loaded.

Not here: the app (app.py).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from ftrun.base.addresses import parse_address
from ftrun.tools.status.once import StatusQuery, find_job
from ftrun.tools.status.screen.background import Background, said_by
from ftrun.tools.status.source import Picture, Source

if TYPE_CHECKING:
    from ftrun.tools.status.screen.app import StatusApp


def run_screen(query: StatusQuery) -> int:
    """Show the job until the user quits with q. Returns the exit code.

    Raises:
        UserError: the address is invalid, or the job that was named does not run here.
        ModuleNotFoundError: textual is not installed; the terminal was not changed.
    """
    if importlib.util.find_spec("textual") is None:
        raise ModuleNotFoundError(name="textual")
    if query.lighthouse is not None:
        parse_address(query.lighthouse, "--lighthouse")
    elif query.job_id is not None:
        find_job(query.job_id)
    first = _First()
    source = Source(query, first.come)
    source.start()
    background = None if os.environ.get("NO_COLOR") else Background()

    from ftrun.tools.status.screen.app import StatusApp

    light = None if background is None else background.is_light()
    light = said_by(os.environ) if light is None else light
    app = StatusApp(source, first.picture, is_light=light)
    first.app = app
    app.call_later(first.hand_over)
    code = app.run()
    sys.stdout.flush()
    return code or 0


class _First:
    """Keeps pictures that come before there is an app."""

    def __init__(self) -> None:
        self.app: StatusApp | None = None
        self.picture: Picture | None = None

    def come(self, picture: Picture) -> None:
        """Take a picture, in the source's thread."""
        self.picture = picture
        app = self.app
        if app is not None:
            app.deliver(lambda: app.take(picture))

    def hand_over(self) -> None:
        """Show the picture that came while the app was made."""
        if self.app is not None and self.picture is not None:
            self.app.take(self.picture)
