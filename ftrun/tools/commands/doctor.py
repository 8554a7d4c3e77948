"""``ftrun doctor``: its options.

Not here: the checks (doctor/).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrun.base.errors import UserError
from ftrun.tools.commands.shared import TlsCa, TlsCert, TlsKey, WebAddress

if TYPE_CHECKING:
    from ftrun.tools.doctor.pairs import Trial


def doctor(
    lighthouse: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Also check the way to this lighthouse."),
    ] = None,
    web: WebAddress = None,
    log_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for logs, whose disk is checked.")
    ] = Path("ftrun-logs"),
    nodes: Annotated[
        bool, typer.Option("--nodes", help="In a step of Slurm: try each pair of its nodes.")
    ] = False,
    interface: Annotated[
        str | None,
        typer.Option(metavar="NAME|CIDR", help="With --nodes: the interface, as of a job."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Check this machine; the exit code is 1 if a job would fail on it."""
    from ftrun.base.addresses import parse_address
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
    if interface and not nodes:
        raise UserError("--interface is for --nodes. Nothing was checked. Give both, or neither.")
    trial = _trial(log_dir, interface or os.environ.get("GLOO_SOCKET_IFNAME")) if nodes else None
    raise typer.Exit(diagnose(way, log_dir, trial, as_json=as_json))


def _trial(log_dir: Path, interface: str | None) -> Trial:
    """This node's part in the trial of all.

    Raises:
        UserError: there are no nodes.
    """
    from ftrun.config.settings import check_writable
    from ftrun.engines.readers import read_place
    from ftrun.tools.doctor.pairs import Trial

    place = read_place(os.environ)
    if place is None or not place.others:
        raise UserError(
            "--nodes tries the nodes of a step of Slurm: srun --nodes=N --ntasks-per-node=1 ftrun "
            "doctor --nodes. Nothing was checked."
        )
    if place.task > 0:
        typer.echo(f"ftrun: {place.needless()}", err=True)
        raise typer.Exit
    directory = place.meeting(log_dir.absolute(), "doctor")
    check_writable(directory, "--log-dir")
    return Trial(place, directory, interface)
