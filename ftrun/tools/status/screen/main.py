"""The main screen: head, replicas, timeline and incidents, the line of keys.

Not here: the text of its parts (header.py, columns.py, changes.py), the pages over it (pages.py).
"""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable

from ftrun.base import clock
from ftrun.base.words import counted, plain
from ftrun.core.lighthouse.status import Status
from ftrun.tools.status.screen import keys
from ftrun.tools.status.screen.changes import CHANGES, INCIDENTS, changes, incidents
from ftrun.tools.status.screen.columns import COLUMNS, Sight
from ftrun.tools.status.screen.header import header, small
from ftrun.tools.status.screen.host import OF_REPLICA, Shown
from ftrun.tools.status.screen.pieces import CARE, DIM, KEY, STRONG, Piece, button, line, rule
from ftrun.tools.status.screen.rows import Fold, Row, View, build, straggler_limit_s
from ftrun.tools.status.screen.widgets import Contents, Line, Table

SMALL_CELLS, SMALL_ROWS = 60, 12
WIDE_CELLS = 150
TALL_ROWS = 34

_FOLDED = {Fold.NONE: "", Fold.STATE: "by state", Fold.NODE: "by node"}


class MainScreen(Shown):
    """Everything about one job."""

    CSS = """
    MainScreen #head { height: 5; }
    MainScreen.-tall #head { height: 9; }
    #replicas { height: 3fr; }
    #below { height: 1fr; }
    MainScreen #small, MainScreen.-small * { display: none; }
    MainScreen.-small #small { display: block; height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "flip", show=False),
        Binding("f", "fold", show=False),
        Binding("tab", "pane(1)", show=False, priority=True),
        Binding("shift+tab", "pane(-1)", show=False, priority=True),
        Binding("slash", "filter", show=False),
        Binding("escape", "clear", show=False),
        *OF_REPLICA,
        Binding("T", "torchft", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.view = View()
        self.rows: list[Row] = []
        self.pane = "replicas"
        """The pane that has the keys. textual moves the focus later, and keys may come earlier."""
        self._bottom = "changes"

    # ------------------------------------------------------------ parts

    def compose(self) -> ComposeResult:
        """Called by textual."""
        yield Line(id="head")
        yield Line(id="rule")
        yield Table(id="replicas")
        yield Line(id="tabs")
        with Horizontal(id="below"):
            yield Table(id="changes")
            yield Table(id="incidents")
        yield Line(id="keys")
        yield Line(id="small")

    # ------------------------------------------------------------ the picture

    def show(self) -> None:
        host = self.host
        status, cells = host.picture.status, self.size.width
        if status is None:
            return
        is_small = cells < SMALL_CELLS or self.size.height < SMALL_ROWS
        tall = self.size.height >= TALL_ROWS
        self.set_class(is_small, "-small")
        self.set_class(tall, "-tall")
        if is_small:
            self.query_one("#small", Line).update(small(host.picture))
            return
        self.rows = build(status, self.view)
        self.query_one("#replicas").styles.max_height = len(self.rows) + 1 + tall
        for name in ("changes", "incidents"):
            self.query_one(f"#{name}").display = cells >= WIDE_CELLS or name == self._bottom
        hints = keys.main_hints(status.get("torchft") is not None)
        lines = {
            "head": header(
                host.picture, host.history, clock.now(), cells, notice=host.notice, tall=tall
            ),
            "rule": self._rule(status, cells),
            "tabs": self._tabs(status, cells),
            "keys": keys.key_line(hints, cells),
        }
        for name, text in lines.items():
            self.query_one(f"#{name}", Line).update(text, layout=False)
        self._show_replicas(status)
        self._show_below(status)

    def _show_replicas(self, status: Status) -> None:
        rows = self.rows
        sight = Sight(
            self.host.history,
            straggler_limit_s(status),
            self.view.fold_of(status),
            status["waiting"],
            status["job"]["workers_per_replica"] > 1,
        )

        empty = "no replica is found by this filter" if self.view.words else "no replica yet"
        if status.get("torchft") is not None and not status["job"]["job_id"]:
            empty = "no job of ftrun's; T: torchft's replicas"
        self.query_one("#replicas", Table).show(
            Contents(
                COLUMNS,
                [row.key for row in rows],
                lambda row, column, cells: column.cell(rows[row], sight, cells),
                empty,
            )
        )

    def _show_below(self, status: Status) -> None:
        found = changes(status)
        self.query_one("#changes", Table).show(
            Contents(
                CHANGES,
                [key for key, _ in found],
                lambda row, column, _cells: column.cell(found[row][1]),
                "no change yet",
            )
        )
        failures = incidents(status)
        self.query_one("#incidents", Table).show(
            Contents(
                INCIDENTS,
                [key for key, _ in failures],
                lambda row, column, _cells: column.cell(failures[row][1]),
                "nothing has failed",
            )
        )

    def _rule(self, status: Status, cells: int) -> Text:
        parts: list[Piece] = [" ", self._title("replicas", "replicas")]
        folded = _FOLDED[self.view.fold_of(status)]
        if folded:
            parts.append((f"  {folded}", DIM))
        if self.view.words:
            parts.append((f"  filter: {plain(self.view.words)}", CARE))
        return rule(line(*parts), cells)

    def _tabs(self, status: Status, cells: int) -> Text:
        left = self._title("changes", "timeline")
        right = self._title("incidents", counted(len(status["incidents"]), "incident"))
        if cells < WIDE_CELLS:
            return rule(line(" ", left, "   ", right), cells)
        half = cells // 2
        return line(rule(line(" ", left), half), rule(line(" ", right), cells - half))

    def _title(self, pane: str, word: str) -> Text:
        is_shown = pane != "incidents" or self._bottom == pane or self.size.width >= WIDE_CELLS
        shown = STRONG if is_shown and pane == self._bottom else DIM
        return button(f"to {pane}", (word, KEY if self.pane == pane else shown))

    # ------------------------------------------------------------ keys

    def action_pane(self, by: int = 1) -> None:
        """Give the keys to the next pane."""
        names = ["replicas", "changes", "incidents"]
        self.action_to(names[(names.index(self.pane) + by) % len(names)])

    def action_to(self, name: str) -> None:
        """Give the keys to a pane, also after a click on its title."""
        if name != "replicas":
            self._bottom = name
        self.pane = name
        table = self.query_one(f"#{name}", Table)
        table.display = True
        table.focus()
        self.call_after_refresh(self.on_picture)

    def on_descendant_focus(self) -> None:
        """Called by textual, also after a click: the titles show which pane has the keys."""
        if isinstance(self.focused, Table):
            self.pane = self.focused.id or self.pane
        self.call_after_refresh(self.on_picture)

    @on(DataTable.RowSelected)
    def action_open(self) -> None:
        """Details of a replica, the ranks of a group, the record of an incident."""
        if self.pane == "incidents":
            self.action_explain()
            return
        row = self._row()
        if self.pane == "replicas" and row is not None:
            if row.group is not None:
                self.action_flip()
            elif row.replica is not None:
                self.host.show_details(row.replica["replica_id"], _rank(row))

    def action_flip(self) -> None:
        """Open or close the row."""
        row = self._row()
        if row is not None and row.is_open is not None:
            self.view.flip(row.key)
            self.on_picture()

    def action_unfold(self) -> None:
        """Open the row."""
        row = self._row()
        if row is not None and row.is_open is False:
            self.action_flip()

    def action_close(self) -> None:
        """Close the row, or go to its parent row."""
        row = self._row()
        if row is None:
            return
        if row.is_open:
            self.action_flip()
            return
        table = self.query_one("#replicas", Table)
        above = [at for at in range(table.cursor_row) if self.rows[at].depth < row.depth]
        if above:
            table.move_cursor(row=above[-1])

    def action_fold(self) -> None:
        """Switch to the next way of folding."""
        status = self.host.picture.status
        if status is not None:
            self.view.next_fold(status)
            self.on_picture()
            self.query_one("#replicas", Table).move_cursor(row=0)

    def action_filter(self) -> None:
        """Ask for words. While they are typed, show only the replicas that match."""
        from ftrun.tools.status.screen.filtering import FilterInput

        if not self.query(FilterInput):
            found = FilterInput(self.view.words, self.filter_by, lambda: self.action_to("replicas"))
            self.mount(found, before=self.query_one("#keys"))

    def filter_by(self, words: str) -> None:
        """Show only replicas with these words."""
        self.view.words = words
        self.on_picture()

    def action_clear(self) -> None:
        """End the filter. If there is none, go back to the choice of jobs."""
        if self.view.words:
            self.filter_by("")
        else:
            self.host.back_to_choice()

    def action_log(self) -> None:
        row = self._chosen()
        if row is not None and row.replica is not None:
            rank = row.worker["group_rank"] if row.worker is not None else 0
            self.host.show_log(row.replica["replica_id"], rank)

    def action_explain(self) -> None:
        """Show the chosen incident, the replica's last one, or the last one of all."""
        status = self.host.picture.status
        if self.pane == "incidents" and status is not None:
            key = self.query_one("#incidents", Table).key
            number = None if key is None else int(key.partition(":")[2])
            self.host.explain(None, number)
            return
        row = self._row() if self.pane == "replicas" else None
        named = row is not None and row.replica is not None and status is not None
        replica_id = row.replica["replica_id"] if named and row and row.replica else None
        has_one = status is not None and any(
            replica_id in found["replicas"] for found in status["incidents"]
        )
        self.host.explain(replica_id if has_one else None, None)

    def action_torchft(self) -> None:
        self.host.show_torchft()

    def action_operate(self, command: str) -> None:
        """Show the stacks of the chosen worker or replica, or drain, restart or kill it."""
        row = self._chosen()
        if row is not None and row.replica is not None:
            rank = _rank(row) if command in ("kill", "stack") else None
            self.host.operate(command, row.replica["replica_id"], rank)

    def _chosen(self) -> Row | None:
        """The row of the replica or worker under the cursor."""
        row = self._row()
        if row is None or row.replica is None:
            self.host.tell("Choose a replica first: Space opens a group.")
            return None
        return row

    def _row(self) -> Row | None:
        cursor = self.query_one("#replicas", Table).cursor_row
        return self.rows[cursor] if 0 <= cursor < len(self.rows) else None


def _rank(row: Row) -> int | None:
    """The rank, if the row is about one of several workers."""
    is_rank = row.worker is not None and row.key.rpartition(".")[2] != row.key
    return row.worker["group_rank"] if is_rank and row.worker is not None else None
