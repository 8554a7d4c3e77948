"""The line under the workers' output: its text for a given width, with a bar while replicas start
or heal.

Facts go in, one row of terminal codes comes out; parts that do not fit are left out. rich measures
and draws, and is imported only when a terminal shows the line. Not here: the facts (job_view.py),
when the row is drawn and erased (under_line.py).
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftrun.base.words import age, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

BAR_CELLS, BAR_CELLS_SHORT = 16, 6
EVENT_CELLS_MIN = 16
COLUMNS_MAX = 4096
GAP = "  "


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of work, its progress, and the progress as text. ``total`` 0: not known yet."""

    name: str
    done: int
    total: int
    words: str


@dataclass(frozen=True, slots=True)
class LineFacts:
    """The facts on the line; None: not known. ``event``: ftrun's last line.

    ``up_s``: seconds since ftrun was started.
    """

    job_id: str
    step: int | None = None
    steps_per_s: float | None = None
    live: int | None = None
    wanted: int = 1
    lost_s: float | None = None
    bar: Bar | None = None
    event: str = ""
    up_s: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the line. The part with the highest ``rank`` is left out first."""

    rank: int
    text: Text


class StatusLine:
    """Renders the line. ``colours``: the terminal supports colours; ``utf8``: it can show a bar."""

    def __init__(self, *, colours: bool = True, utf8: bool = True) -> None:
        self._colours = colours
        self._utf8 = utf8
        self._console: Console | None = None

    def render(self, facts: LineFacts, columns: int) -> bytes:
        """The row, without a line end.

        The last column stays free, because some terminals wrap there.
        """
        from rich.text import Text

        room = max(0, min(columns, COLUMNS_MAX) - 1)
        parts = self._parts(facts, is_short=False)
        if _cells(parts) > room:
            parts = self._parts(facts, is_short=True)
        while len(parts) > 1 and _cells(parts) > room:
            parts.remove(max(parts, key=lambda part: part.rank))
        line = Text(GAP).join(part.text for part in parts)
        left = room - line.cell_len - len(GAP)
        event = printable(facts.event)
        if event and left >= EVENT_CELLS_MIN:
            line.append(GAP).append(event, style="dim")
        line.truncate(room, overflow="ellipsis" if self._utf8 else "crop")
        return self._codes(line)

    def _parts(self, facts: LineFacts, *, is_short: bool) -> list[_Part]:
        from rich.text import Text

        found = [_Part(5, Text(printable(facts.job_id), style="bold"))]
        if facts.step is not None:
            found.append(_Part(0, Text(f"step {facts.step:,}", style="bold")))
        if facts.steps_per_s is not None:
            found.append(_Part(3, Text(f"{facts.steps_per_s:.3g}/s")))
        if facts.live is not None:
            count = f"{facts.live} of {facts.wanted}" + ("" if is_short else " replicas")
            found.append(
                _Part(1, Text(count, style="" if facts.live >= facts.wanted else "yellow"))
            )
        if facts.bar is not None:
            found.append(_Part(2, self._bar(facts.bar, BAR_CELLS_SHORT if is_short else BAR_CELLS)))
        found.append(_Part(6, Text(f"up {age(facts.up_s)}", style="dim")))
        if facts.lost_s:
            found.append(_Part(4, Text(f"{age(facts.lost_s)} lost", style="yellow")))
        return found

    def _bar(self, bar: Bar, cells: int) -> Text:
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        text = Text(printable(bar.name) + " ")
        if bar.total > 0:
            drawn = ProgressBar(
                bar.total,
                min(bar.done, bar.total),
                cells,
                style="bright_black",
                complete_style="green",
                finished_style="green",
            )
            console = self._opened()
            for segment in console.render(drawn, console.options):
                text.append(segment.text, style=segment.style)
            text.append(" ")
        return text.append(bar.words)

    def _codes(self, line: Text) -> bytes:
        console = self._opened()
        with console.capture() as captured:
            console.print(line, end="", no_wrap=True, crop=False)
        return captured.get().encode("utf-8" if self._utf8 else "ascii", "replace")

    def _opened(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(
                file=_Utf8() if self._utf8 else _Ascii(),
                force_terminal=True,
                color_system="standard" if self._colours else None,
                no_color=not self._colours,
                highlight=False,
                markup=False,
                emoji=False,
                legacy_windows=False,
                width=COLUMNS_MAX,
                _environ={},
            )
        return self._console


class _Utf8(io.StringIO):
    """A file with the encoding UTF-8: rich chooses the characters of its bars by the encoding."""

    encoding = "utf-8"


class _Ascii(io.StringIO):
    """A file for a terminal without UTF-8."""

    encoding = "ascii"


def _cells(parts: list[_Part]) -> int:
    return sum(part.text.cell_len for part in parts) + len(GAP) * (len(parts) - 1)
