"""The screens without a job: several to choose from, none yet, or one whose lighthouse is silent.

Not here: finding jobs (status/jobs.py, status/source.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from ftrun.base import clock
from ftrun.tools.status.jobs import RunningJob, jobs_dir
from ftrun.tools.status.screen import keys
from ftrun.tools.status.screen.host import host_of, is_whole
from ftrun.tools.status.screen.lines import Lines
from ftrun.tools.status.screen.pieces import BAD, CARE, DIM, STRONG, TEXT, Line, line, rule, wrapped
from ftrun.tools.status.screen.sheet import Contents, Sheet
from ftrun.tools.status.source import State
from ftrun.tools.status.words import counted, plain

WORDS_CELLS_MAX = 72
ELSEWHERE = "For a job that runs elsewhere: ftrun status --lighthouse HOST:PORT"


@dataclass(frozen=True, slots=True)
class JobColumn:
    """A column of the list of jobs."""

    title: str
    cells: int
    rank: int
    cell: Callable[[RunningJob], Line]
    right: bool = False
    most: int = 0
    short: str = ""
    eager: bool = False
    is_core: bool = True


def _since(job: RunningJob) -> Line:
    return line((plain(job.started).partition("+")[0].replace("T", " ")[:19], DIM))


JOBS = (
    JobColumn("job", 8, 0, lambda job: line((plain(job.job_id), STRONG)), most=40),
    JobColumn("since (UTC)", 19, 1, _since),
    JobColumn("pid", 6, 2, lambda job: line((str(job.pid), DIM)), right=True, most=8),
    JobColumn("lighthouse", 12, 4, lambda job: line((plain(job.http), DIM)), most=30),
    JobColumn("logs", 10, 3, lambda job: line((plain(job.log_dir), DIM)), most=200),
)


class ChoiceScreen(Screen[None]):
    """Several jobs run here."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "open", show=False)]

    def compose(self) -> ComposeResult:
        """Called by textual."""
        yield Lines(id="title")
        yield Sheet(id="jobs")
        yield Lines(id="keys")

    def on_mount(self) -> None:
        """Called by textual."""
        self.query_one(Sheet).focus()
        self.on_picture()

    def on_resize(self) -> None:
        """Called by textual."""
        self.call_after_refresh(self.on_picture)

    def on_picture(self) -> None:
        """Show the jobs that run now."""
        if not is_whole(self):
            return
        jobs, cells = host_of(self).picture.jobs, self.size.width
        title = line((f" {counted(len(jobs), 'job')} of yours run here", STRONG))
        self.query_one("#title", Lines).show([rule(title, cells)])
        self.query_one("#keys", Lines).show([keys.key_line(keys.CHOICE, cells)])
        names = [job.job_id for job in jobs]
        self.query_one(Sheet).show(
            Contents(JOBS, names, lambda row, column, size: JOBS[column].cell(jobs[row]))
        )

    def repaint(self) -> None:
        """The colours have changed."""
        for part in (*self.query(Lines), *self.query(Sheet)):
            part.repaint()

    @on(Sheet.Opened)
    def _opened(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        """Watch the chosen job."""
        key = self.query_one(Sheet).key
        if key is not None:
            host_of(self).choose(key)


class WaitScreen(Screen[None]):
    """Nothing can be shown yet. The text has the reason, and what happens next."""

    def compose(self) -> ComposeResult:
        """Called by textual."""
        yield Lines(id="words")
        yield Lines(id="keys")

    def on_mount(self) -> None:
        """Called by textual."""
        self.on_picture()

    def on_resize(self) -> None:
        """Called by textual."""
        self.call_after_refresh(self.on_picture)

    def on_picture(self) -> None:
        """Show the words in the middle."""
        if not is_whole(self):
            return
        cells, height = self.size.width, self.query_one("#words").size.height
        size = max(8, min(WORDS_CELLS_MAX, cells - 4))
        rows = [
            row for part in self._words() for row in ([()] if not part[0] else _rows(part, size))
        ]
        left = " " * max(0, (cells - size) // 2)
        above: list[Line] = [()] * max(0, (height - len(rows)) // 2)
        shown = [*above, *(((left, TEXT), *row) for row in rows)]
        self.query_one("#words", Lines).show(shown)
        self.query_one("#keys", Lines).show([keys.key_line(keys.WAIT, cells)])

    def repaint(self) -> None:
        """The colours have changed."""
        for part in self.query(Lines):
            part.repaint()

    def _words(self) -> list[tuple[str, str]]:
        """Paragraphs with their roles; an empty one is an empty line."""
        picture = host_of(self).picture
        if picture.state is State.LOOKING and not picture.tried_at:
            return []  # nobody has looked yet
        if picture.state is State.LOOKING:
            return [
                ("No job runs on this machine yet.", STRONG),
                ("", TEXT),
                (f"It is shown as soon as one starts (looks in {jobs_dir()} every second).", TEXT),
                (ELSEWHERE, DIM),
            ]
        again_s = max(0.0, picture.tried_at + picture.next_s - clock.now())
        if picture.state is State.ENDED:
            reason = "" if picture.outcome is None else picture.outcome["reason"]
            return [("The job has ended.", STRONG), ("", TEXT), (plain(reason), TEXT)]
        if picture.state is State.REFUSED:
            return [
                ("The lighthouse does not let this request in.", BAD),
                ("", TEXT),
                (plain(picture.words), TEXT),
            ]
        return [
            ("Waits for the lighthouse.", CARE),
            ("", TEXT),
            (plain(picture.words), TEXT),
            ("", TEXT),
            (f"It is asked again in {again_s:.0f} s.", DIM),
        ]


def _rows(part: tuple[str, str], cells: int) -> list[Line]:
    return wrapped(part[0], cells, part[1])
