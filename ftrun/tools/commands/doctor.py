"""``ftrun doctor``: its options.

Not here: the checks (doctor/).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ftrun.tools.commands.shared import TlsCa, TlsCert, TlsKey, WebAddress


def doctor(
    lighthouse: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Also check the way to this lighthouse."),
    ] = None,
    web: WebAddress = None,
    log_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for logs, whose disk is checked.")
    ] = Path("ftrun-logs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Check this machine; the exit code is 1 if a job would fail on it."""
    from ftrun.base.addresses import parse_address
    from ftrun.base.errors import UserError
    from ftrun.protocol.tls import TlsFiles
    from ftrun.tools.doctor.command import diagnose
    from ftrun.tools.doctor.network import Way

    way = None
    tls = TlsFiles(tls_cert, tls_key, tls_ca)
    if lighthouse is not None:
        parse_address(lighthouse, "--lighthouse")
        tls.check_client()
        way = Way(lighthouse, web, tls)
    elif web is not None or tls:
        raise UserError("--web and the --tls files are for the way to a lighthouse: --lighthouse")
    raise typer.Exit(diagnose(way, log_dir, as_json=as_json))
