"""``ftrun logs``: its options.

Not here: how logs are read and shown (logs/).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ftrun.tools.commands.shared import jobs


def logs(
    target: Annotated[
        str | None, typer.Argument(metavar="REPLICA[/RANK]", help="[default: all workers]")
    ] = None,
    job_id: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="JOB",
            help="[default: the one that runs, or the newest]",
            autocompletion=jobs,
        ),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where finished jobs' logs are. [default: ftrun-logs]"),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "-f", "--follow", help="Go on until the job ends: look for more five times a second."
        ),
    ] = False,
    grep: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only lines that match.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="AGE|TIME", help="Only lines from then on: 10m, 2026-11-23T08:30."),
    ] = None,
    lines: Annotated[
        int | None,
        typer.Option("-n", "--lines", metavar="N", min=0, max=1_000_000, help="The last N lines."),
    ] = None,
    attempt: Annotated[
        str | None,
        typer.Option(
            metavar="N|all", help="The start of each worker, from 0 on. [default: the newest]"
        ),
    ] = None,
    stream: Annotated[
        str | None, typer.Option(metavar="out|err", help="Only standard output, or error.")
    ] = None,
    times: Annotated[bool, typer.Option("--times", help="Begin lines with their times.")] = False,
) -> None:
    """Find the job's directory of logs, and show it."""
    from ftrun.base import clock
    from ftrun.logs.show import LogQuery, find_log_dir, show_logs
    from ftrun.logs.units import parse_since
    from ftrun.tools.status.once import find_log_place

    since_s = None if since is None else parse_since(since, clock.wall())
    directory = find_log_place(job_id) if log_dir is None else None
    if directory is None:
        directory = find_log_dir(log_dir or Path("ftrun-logs"), job_id)
    query = LogQuery(target, follow, grep, since_s, attempt, lines, stream, times)
    raise typer.Exit(show_logs(directory, query))
