"""``ftrun drain``, ``restart``, ``kill``, ``stack`` and ``ps``: their options.

Not here: the requests and what is shown (operate/).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ftrun.commands.shared import JobId, TlsCa, TlsCert, TlsKey, TokenFile, WebAddress

Timeout = Annotated[
    float, typer.Option("--timeout", metavar="S", help="Seconds to wait for the outcome.")
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Send the request and leave.")]


def _operate(command: str, words: tuple[str | None, str | None], options: dict[str, Any]) -> None:
    """Send one request for a job, with the options that all these commands have."""
    from ftrun.errors import UserError
    from ftrun.operate.operation import Target, parse_words, run_operation
    from ftrun.protocol.tls import TlsFiles
    from ftrun.status.once import StatusQuery

    needs_replica = command in ("restart", "kill")
    job_id, target = parse_words(command, *words, needs_replica=needs_replica)
    node = options.get("node")
    if node:
        if target.replica:
            raise UserError("Give --node or a replica, not both. Nothing was changed.")
        target = Target(node=node)
    tls = TlsFiles(options["tls_cert"], options["tls_key"], options["tls_ca"])
    query = StatusQuery(options["lighthouse"], job_id, options["token_file"], tls)
    wait = not options.get("no_wait", False)
    raise typer.Exit(
        run_operation(query, command, target, timeout_s=options["timeout_s"], wait=wait)
    )


def drain(
    job: JobId = None,
    replica: Annotated[
        str | None,
        typer.Argument(metavar="[REPLICA]", help="[default: the whole job, as SIGTERM does]"),
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NAME", help="All of one node; others take its replicas.")
    ] = None,
    no_wait: NoWait = False,
    timeout_s: Timeout = 120.0,
    lighthouse: WebAddress = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """A drained replica stays away until ``ftrun restart``."""
    _operate("drain", (job, replica), locals())


def restart(
    job: JobId = None,
    replica: Annotated[str | None, typer.Argument(metavar="REPLICA", help="Its number.")] = None,
    no_wait: NoWait = False,
    timeout_s: Timeout = 120.0,
    lighthouse: WebAddress = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Peers lose no step."""
    _operate("restart", (job, replica), locals())


def kill(
    job: JobId = None,
    replica: Annotated[
        str | None, typer.Argument(metavar="REPLICA[.RANK]", help="Its number, and a worker's.")
    ] = None,
    no_wait: NoWait = False,
    timeout_s: Timeout = 120.0,
    lighthouse: WebAddress = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """It counts as a failure of the replica."""
    _operate("kill", (job, replica), locals())


def stack(
    job: JobId = None,
    replica: Annotated[
        str | None,
        typer.Argument(metavar="[REPLICA[.RANK]]", help="[default: all workers of the job]"),
    ] = None,
    timeout_s: Timeout = 30.0,
    lighthouse: WebAddress = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Workers go on."""
    _operate("stack", (job, replica), locals())


def ps(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Ask the lighthouse of each job once."""
    from ftrun.operate.ps import show_jobs

    raise typer.Exit(show_jobs(as_json=as_json))
