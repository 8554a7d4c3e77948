"""``ftrun status``: its options.

Not here: the request and what is shown (status/).
"""

from __future__ import annotations

from typing import Annotated

import typer

from ftrun.commands.shared import JobId, TlsCa, TlsCert, TlsKey, TokenFile, WebAddress
from ftrun.errors import UserError


def status(
    job_id: JobId = None,
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
    """Send the lighthouse one request."""
    from ftrun.protocol.tls import TlsFiles
    from ftrun.status.once import StatusQuery, show_json, show_once

    if web and as_json:
        raise UserError("--web prints a link and --json a document: give one of them.")
    tls = TlsFiles(tls_cert, tls_key, tls_ca)
    query = StatusQuery(lighthouse, job_id, token_file, tls)
    if web:
        from ftrun.status.weblink import show_link

        raise typer.Exit(show_link(query))
    raise typer.Exit(show_json(query) if as_json else show_once(query))
