"""Pages over the main screen: details, help, stacks, an incident, a log; and the question.

Not here: what is on them (details.py, keys.py, requests.py, following.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import RichLog, Static

from ftrun.logs.reading import Worker
from ftrun.tools.status.screen import keys
from ftrun.tools.status.screen.details import details, find
from ftrun.tools.status.screen.following import Following, LogText
from ftrun.tools.status.screen.host import OF_REPLICA, Shown
from ftrun.tools.status.screen.pieces import DIM, KEY, NOTE, STRONG, TEXT, button, line, rule
from ftrun.tools.status.screen.torchft import torchft_text
from ftrun.tools.status.screen.widgets import Line

LOG_LINES_MAX = 10_000


class Page(Shown):
    """A title, text that scrolls, and the line of keys."""

    CSS = """
    VerticalScroll, RichLog { height: 1fr; overflow: hidden auto; scrollbar-size-vertical: 1; }
    RichLog { padding: 0 0 0 1; }
    RichLog, RichLog:focus { background: $background; background-tint: transparent; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace,left,h", "back", show=False),
        Binding("j", "focused.scroll_down", show=False),
        Binding("k", "focused.scroll_up", show=False),
        Binding("g", "focused.scroll_home", show=False),
        Binding("G", "focused.scroll_end", show=False),
    ]
    hints: ClassVar[tuple[keys.Hint, ...]] = keys.PAGE

    def __init__(self, title: str, text: RenderableType = "") -> None:
        super().__init__()
        self.heading = title
        self._text = text

    def compose(self) -> ComposeResult:
        """Called by textual."""
        yield Line(id="title")
        yield self.paper()
        yield Line(id="keys")

    def paper(self) -> Widget:
        """The part that scrolls."""
        return VerticalScroll(Static(id="body"))

    def show(self) -> None:
        """Show everything as it is now."""
        cells = self.size.width
        self.query_one("#title", Line).update(rule(self.title_line(), cells))
        self.query_one("#keys", Line).update(keys.key_line(self.hints, cells))
        self.show_body()

    def show_body(self) -> None:
        """Fill the part that scrolls."""
        self.query_one("#body", Static).update(self.body())

    def title_line(self) -> Text:
        return line((f" {self.heading}", STRONG))

    def body(self) -> RenderableType:
        """The text that scrolls."""
        return self._text

    def action_back(self) -> None:
        """Go back to the screen below."""
        self.dismiss()


def indented(rows: Sequence[str]) -> Group:
    """Lines wrapped to the width. An indented line keeps its indent."""
    return Group(
        *(Padding(Text(row.lstrip()), (0, 1, 0, len(row) - len(row.lstrip()) + 1)) for row in rows)
    )


class DetailPage(Page):
    """One replica, kept up to date."""

    hints = keys.DETAIL
    BINDINGS: ClassVar[list[BindingType]] = [*OF_REPLICA]

    def __init__(self, replica_id: str, rank: int | None) -> None:
        super().__init__(f"replica {replica_id}")
        self._replica_id = replica_id
        self._rank = rank

    def body(self) -> RenderableType:
        """The current facts about it."""
        status = self.host.picture.status
        replica = None if status is None else find(status, self._replica_id)
        if status is None or replica is None:
            return line((" The job has no such replica any more.", DIM))
        return details(status, replica, self.host.history, self.size.width)

    def action_log(self) -> None:
        self.host.show_log(self._replica_id, self._rank or 0)

    def action_operate(self, command: str) -> None:
        """Show its stacks, or drain, restart or kill it."""
        rank = self._rank if command in ("kill", "stack") else None
        self.host.operate(command, self._replica_id, rank)

    def action_explain(self) -> None:
        self.host.explain(self._replica_id, None)


class TorchftPage(Page):
    """torchft's replica groups, kept up to date."""

    def __init__(self) -> None:
        super().__init__("torchft's replicas")

    def body(self) -> Text:
        status = self.host.picture.status
        return torchft_text(None if status is None else status.get("torchft"))


class LogPage(Page):
    """A worker's log. It follows while the end is visible."""

    hints = keys.LOG
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("G,end", "follow", show=False),
        Binding("w", "wrap", show=False),
    ]

    def __init__(self, directory: Path, worker: Worker) -> None:
        super().__init__(f"log of worker {worker}")
        self._lines: deque[LogText] = deque(maxlen=LOG_LINES_MAX)
        self._written = (False, 0)
        self._following = Following(directory, worker, self._come)
        self._place = str(directory)

    def paper(self) -> Widget:
        """The part that scrolls."""
        return RichLog(max_lines=LOG_LINES_MAX, min_width=0)

    def on_mount(self) -> None:
        """Called by textual."""
        self.call_after_refresh(self._following.start)  # its first lines need a whole page

    def on_unmount(self) -> None:
        """Called by textual."""
        self._following.stop()

    def title_line(self) -> Text:
        """The worker, and where its log is."""
        return line((f" {self.heading}", STRONG), (f"  {self._place}", DIM))

    def show_body(self) -> None:
        """Write all lines again if the width or the wrapping has changed."""
        log = self.query_one(RichLog)
        now = (log.wrap, log.scrollable_content_region.width)
        if self._written != now:
            self._written = now
            log.clear()
            self._write(self._lines)

    def action_follow(self) -> None:
        """Go to the end, and stay there."""
        self.query_one(RichLog).scroll_end(animate=False)

    def action_wrap(self) -> None:
        """Wrap long lines, or cut them."""
        log = self.query_one(RichLog)
        log.wrap = not log.wrap
        self.show_body()

    def _come(self, lines: list[LogText]) -> None:
        """Show new lines. Called in the thread that reads."""
        self.host.deliver(lambda: self._add(lines))

    def _add(self, lines: list[LogText]) -> None:
        self._lines += lines
        if self.is_mounted and self.is_running:
            self._write(lines)

    def _write(self, lines: Iterable[LogText]) -> None:
        log = self.query_one(RichLog)
        follows, cells = log.is_vertical_scroll_end, log.scrollable_content_region.width
        for found in lines:
            text = Text.assemble((found.text, NOTE if found.is_note else TEXT))
            if not log.wrap:
                text.truncate(cells, overflow="ellipsis")
            log.write(text, cells, scroll_end=follows)


class Question(Shown, ModalScreen[None]):
    """Asks for confirmation before a change."""

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question Vertical {
        width: 64; max-width: 100%; height: auto; border: round $primary; background: $background;
        padding: 1 1 0 1;
    }
    #answers { margin-top: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "answer('yes')", show=False),
        Binding("n,escape,q", "answer('no')", show=False),
    ]

    def __init__(self, text: str, verb: str, then: Callable[[], None]) -> None:
        super().__init__()
        self._text = text
        self._verb = verb
        self._then = then

    def compose(self) -> ComposeResult:
        """Called by textual."""
        with Vertical():
            yield Static(self._text, markup=False)
            yield Line(id="answers")

    def show(self) -> None:
        """Fill the line of answers."""
        yes = button("answer yes", ("y", KEY), (f" {self._verb}", DIM))
        no = button("answer no", ("n", KEY), (" leave it", DIM))
        self.query_one("#answers", Line).update(line(yes, "   ", no))

    def action_answer(self, word: str) -> None:
        """Close it, and carry out the action if the answer is yes."""
        self.dismiss()
        if word == "yes":
            self._then()
