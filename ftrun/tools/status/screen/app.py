"""The app: the last picture, the screen that suits it, and the requests by keys.

Not here: fetching (status/source.py), the screens (main.py, pages.py, waiting.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol

from textual.app import App
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.geometry import Size

from ftrun.base import clock
from ftrun.base.words import plain
from ftrun.core.lighthouse.status import OperationStatus
from ftrun.logs.reading import Worker
from ftrun.tools.status.once import StatusQuery
from ftrun.tools.status.screen import keys
from ftrun.tools.status.screen.details import find
from ftrun.tools.status.screen.following import has_log
from ftrun.tools.status.screen.history import History
from ftrun.tools.status.screen.host import Shown
from ftrun.tools.status.screen.main import MainScreen
from ftrun.tools.status.screen.pages import (
    DetailPage,
    LogPage,
    Page,
    Question,
    TorchftPage,
    indented,
)
from ftrun.tools.status.screen.palette import DARK, LIGHT, NAMES, TERMINAL, THEMES, role_styles
from ftrun.tools.status.screen.requests import Order, Requests
from ftrun.tools.status.screen.waiting import ChoiceScreen, WaitScreen
from ftrun.tools.status.source import Picture, State

NOTICE_S = 12.0
TICK_S = 1.0
_QUESTIONS = {
    "drain": "Drain {}? It leaves at the next boundary, its peers lose no step, and it stays away "
    "until it is restarted.",
    "restart": "Restart {}? It leaves at the next boundary and starts again; its peers lose no "
    "step.",
    "kill": "Kill {} now, by SIGKILL? It counts as a failure and is healed as any other.",
}


class Doors(Protocol):
    """The app's only access to a job: a ``Source``, or a stand-in that shows one picture."""

    def choose(self, job_id: str | None) -> None:
        """Watch this job; None: choose again."""

    def query(self) -> StatusQuery:
        """The current job, for other requests to its lighthouse."""

    def stop(self) -> None:
        """Stop fetching."""


class StatusApp(App[int]):
    """``ftrun status`` on a terminal."""

    TITLE = "ftrun status"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: $background; color: $foreground; overflow: hidden; }
    Question { background: $background 65%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("question_mark", "help", show=False),
        Binding("t", "theme", show=False),
    ]

    def __init__(
        self, doors: Doors, picture: Picture | None = None, *, is_light: bool | None = None
    ) -> None:
        plainly = bool(os.environ.get("NO_COLOR"))
        super().__init__(ansi_color=True if plainly else None)
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = TERMINAL if plainly else LIGHT if is_light else DARK
        self.console.push_theme(role_styles(self.get_css_variables()))
        self.animation_level = "none"
        self.picture = Picture(State.LOOKING) if picture is None else picture
        self.history = History()
        self.notice = ""
        self._notice_until = 0.0
        self._doors = doors
        self._requests = Requests(doors.query, self.deliver)
        self._came_from_choice = False
        self._base: MainScreen | ChoiceScreen | WaitScreen | None = None
        if self.picture.status is not None:
            self.history.add(self.picture.status)

    # ------------------------------------------------------------ the picture

    def on_mount(self) -> None:
        """Called by textual."""
        self._base = _suiting(self.picture)()
        self.push_screen(self._base)
        self.set_interval(TICK_S, self._tick)

    def on_unmount(self) -> None:
        """Called by textual: the end."""
        self._requests.stop()
        self._doors.stop()

    def take(self, picture: Picture) -> None:
        """Show a new picture. In the app's own thread."""
        is_new = picture.taken_at != self.picture.taken_at
        self.picture = picture
        if is_new and picture.status is not None:
            self.history.add(picture.status)
        wanted = _suiting(picture)
        if self._base is None or isinstance(self._base, wanted):
            self._show()
            return
        while self.screen is not self._base:
            self.pop_screen()
        self._base = wanted()
        self.switch_screen(self._base)

    def deliver(self, call: Callable[[], None]) -> None:
        """Run this in the app's thread. From any thread."""
        self.call_later(call)

    def _show(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, Shown):
                screen.on_picture()

    def _tick(self) -> None:
        """Update ages while no picture comes, and end a notice."""
        self._look_at_size()
        now = clock.now()
        if self.notice and now >= self._notice_until:
            self.notice = ""
            self._show()
        elif self.picture.state in (State.GONE, State.REFUSED):
            self._show()

    def _look_at_size(self) -> None:
        """Send the screen its size again, in case it missed a resize."""
        stdout = sys.__stdout__
        if self.is_headless or stdout is None or not stdout.isatty():
            return
        size = Size(*os.get_terminal_size(stdout.fileno()))
        if size not in (self.size, Size(0, 0)) or self.screen.size != self.size:
            self.post_message(Resize(size, size))

    def tell(self, words: str) -> None:
        """Show a notice for a while."""
        self.notice = words
        self._notice_until = clock.now() + NOTICE_S
        self._show()

    # ------------------------------------------------------------ keys

    def action_press(self, action: str) -> None:
        """Do what the key does, after a click on its name."""
        name, *words = action.split()
        method = getattr(self.screen, f"action_{name}", None) or getattr(self, f"action_{name}")
        method(*words)

    async def action_quit(self) -> None:
        self.exit(2 if self.picture.state is State.REFUSED else 0)

    def action_help(self) -> None:
        if not isinstance(self.screen, Page):
            self.push_screen(Page("help", keys.help_text()))

    def action_theme(self) -> None:
        """Switch to the next colours."""
        self.theme = NAMES[(NAMES.index(self.theme) + 1) % len(NAMES)]
        self.console.pop_theme()
        self.console.push_theme(role_styles(self.get_css_variables()))
        self._show()

    def choose(self, job_id: str) -> None:
        """Watch this one of several jobs."""
        self._came_from_choice = True
        self._doors.choose(job_id)

    def back_to_choice(self) -> None:
        """Show the list of jobs again, if there was one."""
        if self._came_from_choice:
            self._doors.choose(None)

    def show_details(self, replica_id: str, rank: int | None) -> None:
        self.push_screen(DetailPage(replica_id, rank))

    def show_log(self, replica_id: str, rank: int) -> None:
        """Show the log of a worker, or where it is."""
        job, status = self.picture.job, self.picture.status
        worker = Worker(replica_id, rank)
        if job is not None and job.log_dir and has_log(Path(job.log_dir), worker):
            self.push_screen(LogPage(Path(job.log_dir), worker))
            return
        replica = None if status is None else find(status, replica_id)
        host = None if replica is None else replica["host"]
        where = f"on node {plain(host)}" if host else "on no node yet"
        job_id = "JOB" if status is None else plain(status["job"]["job_id"])
        command = f"ftrun logs --job {job_id} {replica_id}/{rank}"
        self.tell(f"The log of worker {worker} is {where}, not on this machine: {command} there.")

    def operate(self, command: str, replica_id: str, rank: int | None) -> None:
        """Send a request to the lighthouse. Asks for confirmation unless it only reads."""
        order = Order(command, replica_id, rank)
        if command == "stack":
            self.tell(f"Asks {order.subject} for its stacks …")
            self._requests.operate(order, self.tell, self._show_stacks)
            return
        question = _QUESTIONS[command].format(order.subject)

        def send() -> None:
            self.tell(f"Asks the lighthouse: {command} {order.subject} …")
            self._requests.operate(order, self.tell, self._ended)

        self.push_screen(Question(question, command, send))

    def show_torchft(self) -> None:
        self.push_screen(TorchftPage())

    def explain(self, replica_id: str | None, number: int | None) -> None:
        self._requests.explain(replica_id, number, self._show_incident, self.tell)

    def _ended(self, operation: OperationStatus) -> None:
        if operation["state"] == "failed":
            self.tell(f"Not done: {plain(operation['text'])}")

    def _show_stacks(self, operation: OperationStatus) -> None:
        if operation["state"] == "failed":
            self.tell(f"No stacks: {plain(operation['text'])}")
            return
        text: list[str] = []
        for stack in operation["stacks"]:
            text += ["", f"worker {stack['replica_id']}.{stack['group_rank']}"]
            rows = stack["text"].splitlines() or [
                "none: it has not reached its script, or has ended"
            ]
            text += [f"  {plain(row, 2000)}" for row in rows]
        self.notice = ""
        self.push_screen(Page("Python stacks", indented(text[1:])))

    def _show_incident(self, text: list[str]) -> None:
        self.push_screen(Page("explain", indented(text)))


def _suiting(picture: Picture) -> type[MainScreen | ChoiceScreen | WaitScreen]:
    """The screen for a picture."""
    if picture.state is State.CHOOSING:
        return ChoiceScreen
    return WaitScreen if picture.status is None else MainScreen
