"""``ftrun status --once``: the screen's content as text, one part below the other.

What does not fit is cut at the edge; ``--json`` has everything. Not here: the parts (screen/), the
status (once.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text
from rich.theme import Theme

from ftrun.base import clock
from ftrun.base.errors import ExitCode
from ftrun.core.lighthouse.status import Status
from ftrun.tools.status.once import StatusQuery, find_status
from ftrun.tools.status.screen.changes import CHANGES, INCIDENTS, changes, incidents
from ftrun.tools.status.screen.columns import COLUMNS, Sight
from ftrun.tools.status.screen.header import header
from ftrun.tools.status.screen.history import History
from ftrun.tools.status.screen.layout import Column, widths
from ftrun.tools.status.screen.pieces import BAD, CARE, DIM, GOOD, NOTE, STRONG, fit, line
from ftrun.tools.status.screen.rows import Fold, View, build, straggler_limit_s
from ftrun.tools.status.screen.torchft import torchft_text
from ftrun.tools.status.source import Picture, State

ROLES = Theme({GOOD: "green", CARE: "yellow", BAD: "red", STRONG: "bold", NOTE: "cyan", DIM: "dim"})
LINES_MAX = 10
"""Limit for the timeline, and for the incidents."""


def show_once(query: StatusQuery, out: TextIO | None = None) -> int:
    """Print the status for people. Returns the exit code.

    Raises:
        UserError: there is no such job, or the token is another job's.
        LighthouseUnreachable: no lighthouse answers.
    """
    status = find_status(query)
    Console(file=out, markup=False, highlight=False, emoji=False).print(render(status))
    return ExitCode.OK


def render(status: Status) -> RenderableType:
    """The whole view: the job, its replicas, its recent changes, its incidents."""
    return _Once(status)


class _Once:
    """The parts of the view, laid out when the console's width is known."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich."""
        with console.use_theme(ROLES):
            for part in _parts(self._status, options.max_width):
                part.rstrip()
                part.truncate(options.max_width, overflow="ellipsis")
                yield part


def _parts(status: Status, cells: int) -> Iterator[Text]:
    history, now = History(), clock.now()
    history.add(status)
    picture = Picture(State.LIVE, status, now, outcome=status["outcome"])
    yield from header(picture, history, now, cells).split()
    has_ranks = status["job"]["workers_per_replica"] > 1
    sight = Sight(history, straggler_limit_s(status), Fold.NONE, status["waiting"], has_ranks)
    rows = build(status, View(Fold.NONE))
    yield from _table(COLUMNS, rows, lambda column, row, size: column.cell(row, sight, size), cells)
    for columns, found in ((CHANGES, changes(status)), (INCIDENTS, incidents(status))):
        shown = [entry for _, entry in found[:LINES_MAX]]
        yield from _table(columns, shown, lambda column, entry, _: column.cell(entry), cells)
    torchft = status.get("torchft")
    if torchft is not None:
        yield line()
        yield from torchft_text(torchft).split(allow_blank=True)


def _table(
    columns: Sequence[Column[Any]],
    rows: Sequence[Any],
    cell: Callable[[Column[Any], Any, int], Text],
    cells: int,
) -> Iterator[Text]:
    """The lines of a table, with a blank one before it; none if it has no row."""
    if not rows:
        return
    wanted = [
        max(len(column.title), *(cell(column, row, column.limit).cell_len for row in rows))
        for column in columns
    ]
    shown = [(columns[index], size) for index, size in widths(columns, wanted, cells).items()]
    titles = [fit(line((column.title, DIM)), size, right=column.right) for column, size in shown]
    yield line()
    yield line("  ").join(titles)
    for row in rows:
        parts = [fit(cell(column, row, size), size, right=column.right) for column, size in shown]
        yield line("  ").join(parts)
