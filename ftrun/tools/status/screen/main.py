"""The main screen: head, replicas, timeline and incidents, the line of keys.

Not here: the text of its parts (header.py, columns.py, changes.py), the pages over it (pages.py).
"""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen

from ftrun.base import clock
from ftrun.core.lighthouse.status import Status
from ftrun.tools.status.screen import keys
from ftrun.tools.status.screen.changes import CHANGES, INCIDENTS, changes, incidents
from ftrun.tools.status.screen.columns import COLUMNS, Sight
from ftrun.tools.status.screen.header import HEIGHT, HEIGHT_TALL, header, small
from ftrun.tools.status.screen.host import Host, host_of, is_whole
from ftrun.tools.status.screen.lines import Lines
from ftrun.tools.status.screen.pieces import CARE, DIM, KEY, STRONG, TEXT, Line, Piece, line, rule
from ftrun.tools.status.screen.rows import Fold, Row, View, build, straggler_limit_s
from ftrun.tools.status.screen.sheet import Contents, Sheet
from ftrun.tools.status.words import counted, plain

SMALL_CELLS, SMALL_ROWS = 60, 12
WIDE_CELLS = 150
TALL_ROWS = 34
BELOW_MIN, BELOW_SHARE = 4, 0.22
OTHER_ROWS = 3
"""The two rules and the line of keys."""

_FOLDED = {Fold.NONE: "", Fold.STATE: "by state", Fold.NODE: "by node"}


class MainScreen(Screen[None]):
    """All about one job."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", show=False),
        Binding("space", "flip", show=False),
        Binding("right", "unfold", show=False),
        Binding("left", "close", show=False),
        Binding("f", "fold", show=False),
        Binding("tab", "pane(1)", show=False, priority=True),
        Binding("shift+tab", "pane(-1)", show=False, priority=True),
        Binding("slash", "filter", show=False),
        Binding("escape", "clear", show=False),
        Binding("l", "log", show=False),
        Binding("s", "stacks", show=False),
        Binding("d", "drain", show=False),
        Binding("r", "restart", show=False),
        Binding("K", "kill", show=False),
        Binding("e", "explain", show=False),
        Binding("T", "torchft", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.view = View()
        self.rows: list[Row] = []
        self.pane = "replicas"
        """The pane that has the keys. textual moves the focus later, and keys may come before."""
        self._bottom = "changes"
        self._heights = (0, 0, 0)
        self._has_filter = False

    # ------------------------------------------------------------ parts

    def compose(self) -> ComposeResult:
        """Called by textual."""
        yield Lines(id="head")
        yield Lines(id="rule")
        yield Sheet(id="replicas")
        yield Lines(id="tabs")
        with Horizontal(id="below"):
            yield Sheet(id="changes")
            yield Sheet(id="incidents")
        yield Lines(id="keys")
        yield Lines(id="small")

    def on_mount(self) -> None:
        """Called by textual."""
        self.query_one("#replicas", Sheet).focus()
        self.on_picture()

    def on_resize(self) -> None:
        """Called by textual, before the parts have their new sizes."""
        self._heights = (0, 0, 0)
        self.call_after_refresh(self.on_picture)

    @property
    def _host(self) -> Host:
        return host_of(self)

    # ------------------------------------------------------------ the picture

    def on_picture(self) -> None:
        """Show the app's picture."""
        host = self._host
        status, cells = host.picture.status, self.size.width
        if status is None or not is_whole(self):
            return
        is_small = cells < SMALL_CELLS or self.size.height < SMALL_ROWS
        self.set_class(is_small, "-small")
        if is_small:
            self.query_one("#small", Lines).show(small(host.picture, cells))
            return
        self.rows = build(status, self.view)
        self._arrange(len(self.rows), max(len(status["history"]), len(status["incidents"])))
        tall = self.size.height >= TALL_ROWS
        head = header(host.picture, host.history, clock.now(), cells, notice=host.notice, tall=tall)
        self.query_one("#head", Lines).show(head)
        self.query_one("#rule", Lines).show([self._rule(status, cells)])
        self.query_one("#tabs", Lines).show([self._tabs(status, cells)])
        hints = keys.main_hints(status.get("torchft") is not None)
        self.query_one("#keys", Lines).show([keys.key_line(hints, cells)])
        self._show_replicas(status)
        self._show_below(status)

    def repaint(self) -> None:
        """The colours have changed."""
        for part in (*self.query(Lines), *self.query(Sheet)):
            part.repaint()

    def _arrange(self, rows: int, rows_below: int) -> None:
        """Share the height: first what is below gets what it needs, up to a share of it."""
        height = self.size.height
        tall = height >= TALL_ROWS
        head = HEIGHT_TALL if tall else HEIGHT
        left = height - head - OTHER_ROWS - self._has_filter
        below = max(BELOW_MIN, min(rows_below + 1, round(height * BELOW_SHARE)))
        replicas = max(3, min(rows + 1 + tall, left - below))
        if (head, replicas, left) == self._heights:
            return
        self._heights = (head, replicas, left)
        self.query_one("#head").styles.height = head
        self.query_one("#replicas").styles.height = replicas
        self.query_one("#below").styles.height = max(1, left - replicas)
        is_wide = self.size.width >= WIDE_CELLS
        for name in ("changes", "incidents"):
            self.query_one(f"#{name}").display = is_wide or name == self._bottom

    def _show_replicas(self, status: Status) -> None:
        rows = self.rows
        sight = Sight(
            self._host.history,
            straggler_limit_s(status),
            self.view.fold_of(status),
            status["waiting"],
            status["job"]["workers_per_replica"] > 1,
        )

        def cell(row: int, column: int, cells: int) -> Line:
            return COLUMNS[column].cell(rows[row], sight, cells)

        empty = "no replica is found by this filter" if self.view.words else "no replica yet"
        if status.get("torchft") is not None and not status["job"]["job_id"]:
            empty = "no job of ftrun's; T: torchft's replicas"
        found = Contents(COLUMNS, [row.key for row in rows], cell, empty)
        self.query_one("#replicas", Sheet).show(found)

    def _show_below(self, status: Status) -> None:
        found = changes(status)
        self.query_one("#changes", Sheet).show(
            Contents(
                CHANGES,
                [key for key, _ in found],
                lambda row, column, cells: CHANGES[column].cell(found[row][1]),
                "no change yet",
            )
        )
        failures = incidents(status)
        self.query_one("#incidents", Sheet).show(
            Contents(
                INCIDENTS,
                [key for key, _ in failures],
                lambda row, column, cells: INCIDENTS[column].cell(failures[row][1]),
                "nothing has failed",
            )
        )

    def _rule(self, status: Status, cells: int) -> Line:
        parts: list[Piece] = [(" ", TEXT), self._title("replicas", "replicas")]
        folded = _FOLDED[self.view.fold_of(status)]
        if folded:
            parts.append((f"  {folded}", DIM))
        if self.view.words:
            parts.append((f"  filter: {plain(self.view.words)}", CARE))
        return rule(tuple(parts), cells)

    def _tabs(self, status: Status, cells: int) -> Line:
        number = len(status["incidents"])
        left = self._title("changes", "timeline")
        right = self._title("incidents", counted(number, "incident"))
        if cells < WIDE_CELLS:
            return rule(line((" ", TEXT), left, ("   ", TEXT), right), cells)
        half = cells // 2
        return (*rule((((" "), TEXT), left), half), *rule((((" "), TEXT), right), cells - half))

    def _title(self, pane: str, word: str) -> Piece:
        has_keys = self.pane == pane
        is_shown = pane != "incidents" or self._bottom == pane or self.size.width >= WIDE_CELLS
        role = KEY if has_keys else STRONG if is_shown and pane == self._bottom else DIM
        return word, f"do:pane_{pane}:{role}"

    # ------------------------------------------------------------ keys

    def action_pane(self, by: int = 1) -> None:
        """Give the keys to the next pane."""
        names = ["replicas", "changes", "incidents"]
        self._to(names[(names.index(self.pane) + by) % len(names)])

    def action_pane_replicas(self) -> None:
        """A click on the title."""
        self._to("replicas")

    def action_pane_changes(self) -> None:
        """A click on the title."""
        self._to("changes")

    def action_pane_incidents(self) -> None:
        """A click on the title."""
        self._to("incidents")

    def _to(self, name: str) -> None:
        if name != "replicas":
            self._bottom = name
            self._heights = (0, 0, 0)
        self.pane = name
        sheet = self.query_one(f"#{name}", Sheet)
        sheet.display = True
        sheet.focus()
        self.call_after_refresh(self.on_picture)

    def on_descendant_focus(self) -> None:
        """Called by textual, also after a click: the titles show which pane has the keys."""
        if isinstance(self.focused, Sheet):
            self.pane = self.focused.id or self.pane
        self.call_after_refresh(self.on_picture)

    @on(Sheet.Opened)
    def _opened(self) -> None:
        self.action_open()

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
                self._host.show_details(row.replica["replica_id"], _rank(row))

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
        """Close the row, or go to the row that this one is below."""
        row = self._row()
        if row is None:
            return
        if row.is_open:
            self.action_flip()
            return
        sheet = self.query_one("#replicas", Sheet)
        above = [at for at in range(sheet.cursor) if self.rows[at].depth < row.depth]
        if above:
            sheet.action_put(above[-1])

    def action_fold(self) -> None:
        """Fold in the next way."""
        status = self._host.picture.status
        if status is not None:
            self.view.next_fold(status)
            self.on_picture()
            self.query_one("#replicas", Sheet).action_put(0)

    def action_filter(self) -> None:
        """Ask for words, and show the replicas that have them while they are typed."""
        from ftrun.tools.status.screen.filtering import FilterInput

        if not self.query(FilterInput):
            self._has_filter = True
            found = FilterInput(self.view.words, self.filter_by, self._back_to_rows)
            self.mount(found, before=self.query_one("#keys"))
            self.on_picture()

    def _back_to_rows(self) -> None:
        self._has_filter = False
        self._to("replicas")
        self.on_picture()

    def filter_by(self, words: str) -> None:
        """Show only replicas with these words."""
        self.view.words = words
        self.on_picture()

    def action_clear(self) -> None:
        """End the filter; without one, go back to the choice of jobs."""
        if self.view.words:
            self.filter_by("")
        else:
            self._host.back_to_choice()

    def action_log(self) -> None:
        """The log of the chosen worker."""
        row = self._chosen()
        if row is not None and row.replica is not None:
            rank = row.worker["group_rank"] if row.worker is not None else 0
            self._host.show_log(row.replica["replica_id"], rank)

    def action_stacks(self) -> None:
        """The stacks of the chosen worker or replica."""
        self._operate("stack")

    def action_drain(self) -> None:
        """Drain the replica."""
        self._operate("drain")

    def action_restart(self) -> None:
        """Restart the replica."""
        self._operate("restart")

    def action_kill(self) -> None:
        """Kill the worker or the replica."""
        self._operate("kill")

    def action_explain(self) -> None:
        """The record of the chosen incident, of the replica's last one, or of the last one."""
        status = self._host.picture.status
        if self.pane == "incidents" and status is not None:
            key = self.query_one("#incidents", Sheet).key
            number = None if key is None else int(key.partition(":")[2])
            self._host.explain(None, number)
            return
        row = self._row() if self.pane == "replicas" else None
        named = row is not None and row.replica is not None and status is not None
        replica_id = row.replica["replica_id"] if named and row and row.replica else None
        has_one = status is not None and any(
            replica_id in found["replicas"] for found in status["incidents"]
        )
        self._host.explain(replica_id if has_one else None, None)

    def action_torchft(self) -> None:
        """torchft's replicas."""
        self._host.show_torchft()

    def _operate(self, command: str) -> None:
        row = self._chosen()
        if row is not None and row.replica is not None:
            rank = _rank(row) if command in ("kill", "stack") else None
            self._host.operate(command, row.replica["replica_id"], rank)

    def _chosen(self) -> Row | None:
        """The row of a replica or worker that the cursor is on."""
        row = self._row()
        if row is None or row.replica is None:
            self._host.tell("Choose a replica first: Space opens a group.")
            return None
        return row

    def _row(self) -> Row | None:
        sheet = self.query_one("#replicas", Sheet)
        return self.rows[sheet.cursor] if 0 <= sheet.cursor < len(self.rows) else None


def _rank(row: Row) -> int | None:
    """The rank, on a row that is about one of several workers."""
    is_rank = row.worker is not None and row.key.rpartition(".")[2] != row.key
    return row.worker["group_rank"] if is_rank and row.worker is not None else None
