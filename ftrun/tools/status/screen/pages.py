"""Pages over the main screen: details, help, stacks, an incident, a log; and the question.

Not here: what is on them (details.py, keys.py, requests.py, following.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.screen import ModalScreen, Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ftrun.logs.reading import Worker
from ftrun.tools.status.screen import keys
from ftrun.tools.status.screen.details import details, find
from ftrun.tools.status.screen.following import Following, LogText
from ftrun.tools.status.screen.host import Host, host_of, is_whole
from ftrun.tools.status.screen.lines import Lines, changed, palette_of, strip_of
from ftrun.tools.status.screen.pieces import (
    DIM,
    KEY,
    NOTE,
    STRONG,
    TEXT,
    Line,
    cut,
    line,
    rule,
    wrapped,
)

LOG_LINES_MAX = 10_000


class Paper(ScrollView, can_focus=True):
    """Lines that scroll."""

    DEFAULT_CSS = "Paper { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", show=False),
        Binding("k", "scroll_up", show=False),
        Binding("g", "scroll_home", show=False),
        Binding("G", "scroll_end", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: Sequence[Line] = ()
        self._strips: list[Strip] = []

    def show(self, lines: Sequence[Line], *, at_end: bool = False) -> None:
        """Show these, from where they are scrolled to or from their end."""
        self._lines = lines
        self.virtual_size = Size(self.size.width, len(lines))
        if at_end:
            self.scroll_end(animate=False, immediate=True, force=True)
        before, self._strips = self._strips, self._visible()
        regions = changed(before, self._strips, self.size.width)
        if regions and self.size:
            self.refresh(*regions)

    @property
    def is_at_end(self) -> bool:
        """Whether the last line is seen."""
        return self.scroll_y >= self.max_scroll_y - 0.5

    @property
    def lines(self) -> Sequence[Line]:
        """What is shown."""
        return self._lines

    def repaint(self) -> None:
        """Paint all of it."""
        self._strips = []
        self.refresh()

    def on_resize(self) -> None:
        """Called by textual."""
        self.virtual_size = Size(self.size.width, len(self._lines))
        self._strips = []

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Called by textual."""
        super().watch_scroll_y(old_value, new_value)
        self._strips = []

    def render_line(self, y: int) -> Strip:
        """Called by textual."""
        if len(self._strips) != self.size.height:
            self._strips = self._visible()
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def _visible(self) -> list[Strip]:
        cells, palette, first = self.size.width, palette_of(self.app), round(self.scroll_y)
        rows = list(self._lines[first : first + self.size.height])
        rows += [()] * (self.size.height - len(rows))
        return [strip_of(cut(row, cells), cells, palette) for row in rows]


class Page(Screen[None]):
    """A title, lines that scroll, and the line of keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace,left,h", "back", show=False),
    ]
    hints: ClassVar[tuple[keys.Hint, ...]] = keys.PAGE

    def __init__(self, title: str, rows: Sequence[Line] = ()) -> None:
        super().__init__()
        self.heading = title
        self._rows = rows

    def compose(self) -> ComposeResult:
        """Called by textual."""
        yield Lines(id="title")
        yield Paper(id="paper")
        yield Lines(id="keys")

    def on_mount(self) -> None:
        """Called by textual."""
        self.query_one(Paper).focus()
        self._show()

    def on_resize(self) -> None:
        """Called by textual, before its parts have their new sizes."""
        self.call_after_refresh(self.refresh_page)

    def refresh_page(self) -> None:
        """Show all lines as they are now."""
        if is_whole(self):
            self._show()

    def _show(self) -> None:
        cells = self.size.width
        self.query_one("#title", Lines).show([rule(self.title_line(), cells)])
        self.query_one("#keys", Lines).show([keys.key_line(self.hints, cells)])
        self.query_one(Paper).show(self.rows(cells))

    def repaint(self) -> None:
        """The colours have changed."""
        for part in (*self.query(Lines), *self.query(Paper)):
            part.repaint()

    def title_line(self) -> Line:
        """The title."""
        return line((f" {self.heading}", STRONG))

    def rows(self, _cells: int) -> Sequence[Line]:
        """The lines for this width."""
        return self._rows

    def action_back(self) -> None:
        """Go back to the screen below."""
        self.dismiss()

    @property
    def _host(self) -> Host:
        return host_of(self)


class TextPage(Page):
    """Lines of plain text, wrapped to the width."""

    def __init__(self, title: str, text: Sequence[str]) -> None:
        super().__init__(title)
        self._text = text

    def rows(self, cells: int) -> Sequence[Line]:
        """The lines for this width; an indented line keeps its indent."""
        found: list[Line] = []
        for text in self._text:
            indent = min(len(text) - len(text.lstrip()), max(0, cells // 3))
            if not text.strip():
                found.append(())
            parts = wrapped(text, max(8, cells - 3 - indent)) if text.strip() else ()
            found += [((" " * (indent + 1), TEXT), *part) for part in parts]
        return found


class DetailPage(Page):
    """One replica, kept up to date."""

    hints = keys.DETAIL
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "log", show=False),
        Binding("s", "stacks", show=False),
        Binding("d", "drain", show=False),
        Binding("r", "restart", show=False),
        Binding("K", "kill", show=False),
        Binding("e", "explain", show=False),
    ]

    def __init__(self, replica_id: str, rank: int | None) -> None:
        super().__init__(f"replica {replica_id}")
        self._replica_id = replica_id
        self._rank = rank

    def rows(self, cells: int) -> Sequence[Line]:
        """The present facts about it."""
        status = self._host.picture.status
        replica = None if status is None else find(status, self._replica_id)
        if status is None or replica is None:
            return [line((" The job has no such replica any more.", DIM))]
        return details(status, replica, self._host.history, cells)

    def on_picture(self) -> None:
        """A new picture has come."""
        self.refresh_page()

    def action_log(self) -> None:
        """Its log."""
        self._host.show_log(self._replica_id, self._rank or 0)

    def action_stacks(self) -> None:
        """Its stacks."""
        self._host.operate("stack", self._replica_id, self._rank)

    def action_drain(self) -> None:
        """Drain it."""
        self._host.operate("drain", self._replica_id, None)

    def action_restart(self) -> None:
        """Restart it."""
        self._host.operate("restart", self._replica_id, None)

    def action_kill(self) -> None:
        """Kill it."""
        self._host.operate("kill", self._replica_id, self._rank)

    def action_explain(self) -> None:
        """Its last incident."""
        self._host.explain(self._replica_id, None)


class LogPage(Page):
    """A worker's log; it follows while its end is seen."""

    hints = keys.LOG
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("G,end", "follow", show=False),
        Binding("w", "wrap", show=False),
    ]

    def __init__(self, directory: Path, worker: Worker) -> None:
        super().__init__(f"log of worker {worker}")
        self._lines: deque[LogText] = deque(maxlen=LOG_LINES_MAX)
        self._wraps = False
        self._following = Following(directory, worker, self._come)
        self._place = str(directory)

    def on_mount(self) -> None:
        """Called by textual."""
        super().on_mount()
        self.call_after_refresh(self._following.start)  # its first lines find a whole page

    def on_unmount(self) -> None:
        """Called by textual."""
        self._following.stop()

    def title_line(self) -> Line:
        """The worker, and where its log is."""
        return line((f" {self.heading}", STRONG), (f"  {self._place}", DIM))

    def rows(self, cells: int) -> Sequence[Line]:
        """The lines that are kept, the oldest first."""
        if not self._lines:
            return [line((" Nothing has been printed yet.", DIM))]
        found: list[Line] = []
        for text in self._lines:
            role = NOTE if text.is_note else TEXT
            if not self._wraps:
                found.append(((f" {text.text}", role),))
                continue
            size = max(8, cells - 2)
            parts = [text.text[at : at + size] for at in range(0, len(text.text), size)] or [""]
            found += [((f" {part}", role),) for part in parts]
        return found

    def action_follow(self) -> None:
        """Go to the end, and stay there."""
        self.query_one(Paper).show(self.rows(self.size.width), at_end=True)

    def action_wrap(self) -> None:
        """Wrap long lines, or cut them."""
        self._wraps = not self._wraps
        self.refresh_page()

    def _come(self, lines: list[LogText]) -> None:
        """New lines, in the thread that reads."""
        self._host.deliver(lambda: self._add(lines))

    def _add(self, lines: list[LogText]) -> None:
        self._lines += lines
        if not is_whole(self):
            return
        paper = self.query_one(Paper)
        follows = paper.is_at_end
        paper.show(self.rows(self.size.width), at_end=follows)


class Question(ModalScreen[bool]):
    """Asks before something is changed."""

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question Vertical {
        width: 64; max-width: 100%; height: auto; border: round $primary; background: $background;
        padding: 0 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "answer(True)", show=False),
        Binding("n,escape,q", "answer(False)", show=False),
    ]

    def __init__(self, text: str, verb: str, then: Callable[[], None]) -> None:
        super().__init__()
        self._text = text
        self._verb = verb
        self._then = then

    def compose(self) -> ComposeResult:
        """Called by textual."""
        with Vertical():
            yield Lines(id="question")
            yield Lines(id="answers")

    def on_mount(self) -> None:
        """Called by textual."""
        self._show()

    def on_resize(self, _event: events.Resize) -> None:
        """Called by textual."""
        self.call_after_refresh(self._show)

    @property
    def text(self) -> str:
        """The question."""
        return self._text

    def repaint(self) -> None:
        """The colours have changed."""
        self._show()

    def action_answer(self, is_yes: bool) -> None:
        """Close it, and do what was asked if the answer is yes."""
        self.dismiss(is_yes)
        if is_yes:
            self._then()

    def action_yes(self) -> None:
        """A click."""
        self.action_answer(True)

    def action_no(self) -> None:
        """A click."""
        self.action_answer(False)

    def _show(self) -> None:
        cells = max(8, min(64, self.size.width) - 4)
        rows = [(), *wrapped(self._text, cells), ()]
        question = self.query_one("#question", Lines)
        question.styles.height = len(rows)
        self.call_after_refresh(question.show, rows)
        yes = (("y", f"do:yes:{KEY}"), (f" {self._verb}", f"do:yes:{DIM}"))
        no = (("   ", TEXT), ("n", f"do:no:{KEY}"), (" leave it", f"do:no:{DIM}"))
        self.call_after_refresh(self.query_one("#answers", Lines).show, [(*yes, *no)])
