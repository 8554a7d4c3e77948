"""The screens without a job: several to choose from, none yet, or an unreachable lighthouse.

Not here: finding jobs (status/jobs.py, status/source.py).
"""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.widgets import DataTable, Static

from ftrun.base import clock
from ftrun.base.words import counted, plain
from ftrun.tools.status.jobs import RunningJob, jobs_dir
from ftrun.tools.status.screen import keys
from ftrun.tools.status.screen.host import Shown
from ftrun.tools.status.screen.layout import Column
from ftrun.tools.status.screen.pieces import BAD, CARE, DIM, STRONG, line, rule
from ftrun.tools.status.screen.widgets import Contents, Line, Table
from ftrun.tools.status.source import State

ELSEWHERE = "For a job that runs elsewhere: ftrun status --lighthouse HOST:PORT"


def _since(job: RunningJob) -> Text:
    return line((plain(job.started).partition("+")[0].replace("T", " ")[:19], DIM))


JOBS: tuple[Column[Callable[[RunningJob], Text]], ...] = (
    Column("job", 8, 0, lambda job: line((plain(job.job_id), STRONG)), most=40),
    Column("since (UTC)", 19, 1, _since),
    Column("pid", 6, 2, lambda job: line((str(job.pid), DIM)), right=True, most=8),
    Column("lighthouse", 12, 4, lambda job: line((plain(job.http), DIM)), most=30),
    Column("logs", 10, 3, lambda job: line((plain(job.log_dir), DIM)), most=200),
)


class ChoiceScreen(Shown):
    """Several jobs run here."""

    def compose(self) -> ComposeResult:
        """Called by textual."""
        yield Line(id="title")
        yield Table(id="jobs")
        yield Line(id="keys")

    def show(self) -> None:
        """Show the jobs that run now."""
        jobs, cells = self.host.picture.jobs, self.size.width
        title = line((f" {counted(len(jobs), 'job')} of yours run here", STRONG))
        self.query_one("#title", Line).update(rule(title, cells))
        self.query_one("#keys", Line).update(keys.key_line(keys.CHOICE, cells))
        names = [job.job_id for job in jobs]
        self.query_one(Table).show(
            Contents(JOBS, names, lambda row, column, _cells: column.cell(jobs[row]))
        )

    @on(DataTable.RowSelected)
    def action_open(self) -> None:
        """Watch the chosen job."""
        key = self.query_one(Table).key
        if key is not None:
            self.host.choose(key)


class WaitScreen(Shown):
    """There is nothing to show yet. The text has the reason, and what happens next."""

    CSS = """
    WaitScreen { align: center middle; }
    #words { width: 100%; max-width: 72; padding: 0 2; }
    WaitScreen #keys { dock: bottom; }
    """

    def compose(self) -> ComposeResult:
        """Called by textual."""
        yield Static(id="words")
        yield Line(id="keys")

    def show(self) -> None:
        """Show the words in the middle."""
        self.query_one("#words", Static).update(Text("\n").join(map(line, self._words())))
        self.query_one("#keys", Line).update(keys.key_line(keys.WAIT, self.size.width))

    def _words(self) -> list[tuple[str, str]]:
        """Paragraphs with their roles; an empty one is an empty line."""
        picture = self.host.picture
        if picture.state is State.LOOKING and not picture.tried_at:
            return []  # no status was requested yet
        if picture.state is State.LOOKING:
            return [
                ("No job runs on this machine yet.", STRONG),
                ("", ""),
                (f"It is shown as soon as one starts (looks in {jobs_dir()} every second).", ""),
                (ELSEWHERE, DIM),
            ]
        again_s = max(0.0, picture.tried_at + picture.next_s - clock.now())
        if picture.state is State.ENDED:
            reason = "" if picture.outcome is None else picture.outcome["reason"]
            return [("The job has ended.", STRONG), ("", ""), (plain(reason), "")]
        if picture.state is State.REFUSED:
            return [
                ("The lighthouse does not let this request in.", BAD),
                ("", ""),
                (plain(picture.words), ""),
            ]
        return [
            ("Waits for the lighthouse.", CARE),
            ("", ""),
            (plain(picture.words), ""),
            ("", ""),
            (f"It is asked again in {again_s:.0f} s.", DIM),
        ]
