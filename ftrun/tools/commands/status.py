"""``ftrun status``: its options.

Not here: the requests and what is shown (status/).
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ftrun.base.errors import UserError
from ftrun.tools.commands.shared import JobId, TlsCa, TlsCert, TlsKey, TokenFile, WebAddress


def status(
    job_id: JobId = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print one table and end, as without a terminal.")
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
    from ftrun.tools.status.once import StatusQuery, show_json, show_once

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
        raise typer.Exit(show_once(query))
    from ftrun.tools.status.screen.run import run_screen

    raise typer.Exit(run_screen(query))


def _is_live() -> bool:
    """Whether there is a terminal that can show a screen, with somebody at its keys."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
