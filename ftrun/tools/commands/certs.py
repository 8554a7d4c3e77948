"""``ftrun certs``: its options.

Not here: the certificates (``ftrun.tools.certs``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def certs(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory to write to.")] = Path(
        "ftrun-certs"
    ),
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|IP",
            help="Name or address of the lighthouse; may be repeated. [default: this machine]",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write the files and print how to use them."""
    from ftrun.tools.certs import write_certificates

    for line in write_certificates(out, tuple(host or ()), force=force).lines():
        typer.echo(line)
