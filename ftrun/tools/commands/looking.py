"""Commands that look at a job: ``ftrun status``, ``explain``, ``report``, ``logs``; their options.

Not here: the requests and what is shown (status/, explain/, report/, logs/).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ftrun.base.errors import UserError
from ftrun.tools.commands.shared import (
    JobId,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
    WebAddress,
    jobs,
)


def status(
    job_id: JobId = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print what the screen shows, once, as text.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Print one line every second.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Print a link to the lighthouse's page, which works once.")
    ] = False,
    lighthouse: WebAddress = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Show the live screen on a terminal; else send the lighthouse one request."""
    from ftrun.protocol.tls import TlsFiles
    from ftrun.tools.status.once import StatusQuery, show_json

    if once + watch + as_json + web > 1:
        raise UserError("--once, --watch, --web and --json exclude each other: give one of them.")
    tls = TlsFiles(tls_cert, tls_key, tls_ca)
    query = StatusQuery(lighthouse, job_id, token_file, tls)
    if web:
        from ftrun.tools.status.weblink import show_link

        raise typer.Exit(show_link(query))
    if watch:
        from ftrun.tools.status.watch import show_lines

        raise typer.Exit(show_lines(query))
    if as_json:
        raise typer.Exit(show_json(query))
    if once or not _is_live():
        from ftrun.tools.status.view import show_once

        raise typer.Exit(show_once(query))
    from ftrun.tools.status.screen.run import run_screen

    raise typer.Exit(run_screen(query))


def _is_live() -> bool:
    """Whether there is a terminal that can show a screen, with somebody at its keys."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def explain(
    job_id: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            help="[default: of the jobs in --log-dir the one that failed or ended last]",
            autocompletion=jobs,
        ),
    ] = None,
    incident: Annotated[
        int | None, typer.Argument(metavar="INCIDENT", help="Its number. [default: the latest]")
    ] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="List all incidents.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
    log_dir: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Directory for logs of jobs. One without jobs: the job that runs."
        ),
    ] = Path("ftrun-logs"),
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Ask the job's lighthouse or, once the job has ended, read its log directory.

    News are a job's end and its incidents. Where ./ftrun-logs has no job, it is the one that runs.
    """
    from ftrun.protocol.tls import TlsFiles
    from ftrun.tools.explain.command import explain as show
    from ftrun.tools.explain.finding import Query

    query = Query(job_id, log_dir, token_file, TlsFiles(tls_cert, tls_key, tls_ca))
    raise typer.Exit(show(query, incident, as_json=as_json, all_of_them=all_of_them))


def report(
    job_id: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            help="[default: of the jobs in --log-dir the one with the latest events]",
            autocompletion=jobs,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")
    ] = Path("report.html"),
    log_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for logs of jobs.")
    ] = Path("ftrun-logs"),
) -> None:
    """Write one HTML file about a job: its account, steps, failures and changes of membership.

    The file needs nothing else: it can be sent by mail. It is made of the job's events.jsonl.
    """
    from ftrun.tools.report.command import report as write

    raise typer.Exit(write(job_id, log_dir, output))


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
            "-f", "--follow", help="Continue until the job ends: look for more five times a second."
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
