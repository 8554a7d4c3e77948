"""``ftrun drain``, ``restart``, ``kill``, ``stack``, ``ps`` and ``chaos``: their options.

Not here: the requests and what is shown (operate/), the kills (chaos/).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from ftrun.tools.commands.shared import JobId, TlsCa, TlsCert, TlsKey, TokenFile, WebAddress

Timeout = Annotated[
    float, typer.Option("--timeout", metavar="S", help="Seconds to wait for the outcome.")
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Send the request and leave.")]


Replica = Annotated[
    str | None,
    typer.Argument(metavar="[REPLICA]", help="[default: the whole job, as SIGTERM does]"),
]
OneReplica = Annotated[str | None, typer.Argument(metavar="REPLICA", help="Its number.")]
OneWorker = Annotated[
    str | None, typer.Argument(metavar="REPLICA[.RANK]", help="Its number, and a worker's.")
]
Workers = Annotated[
    str | None,
    typer.Argument(metavar="[REPLICA[.RANK]]", help="[default: all workers of the job]"),
]
Node = Annotated[
    str | None, typer.Option(metavar="NAME", help="All of one node; others take its replicas.")
]

SHARED: dict[str, tuple[Any, Any]] = {
    "timeout_s": (Timeout, 120.0),
    "lighthouse": (WebAddress, None),
    "token_file": (TokenFile, None),
    "tls_cert": (TlsCert, None),
    "tls_key": (TlsKey, None),
    "tls_ca": (TlsCa, None),
}
"""The options that all of them have after their own, with their defaults."""


def _operation(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that declares its own arguments only.

    The command has those and ``SHARED``; ``defaults`` replaces some of its defaults. typer
    reads the signature, so the wrapper's is put together here.
    """

    def decorate(declared: Callable[..., None]) -> Callable[..., None]:
        @wraps(declared)
        def command(**options: Any) -> None:
            _operate(declared.__name__, options)

        own = inspect.signature(declared, eval_str=True).parameters.values()
        shared = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, default),
                annotation=kind,
            )
            for name, (kind, default) in SHARED.items()
        ]
        parameters = [x.replace(kind=inspect.Parameter.KEYWORD_ONLY) for x in own] + shared
        command.__dict__["__signature__"] = inspect.Signature(parameters)
        command.__annotations__ = {x.name: x.annotation for x in parameters}
        return command

    return decorate


def _operate(command: str, options: dict[str, Any]) -> None:
    """Send one request for a job."""
    from ftrun.base.errors import UserError
    from ftrun.protocol.tls import TlsFiles
    from ftrun.tools.operate.operation import Target, parse_words, run_operation
    from ftrun.tools.status.once import StatusQuery

    needs_replica = command in ("restart", "kill")
    words = options["job"], options["replica"]
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


@_operation()
def drain(
    job: JobId = None, replica: Replica = None, node: Node = None, no_wait: NoWait = False
) -> None:
    """A drained replica stays away until ``ftrun restart``."""


@_operation()
def restart(job: JobId = None, replica: OneReplica = None, no_wait: NoWait = False) -> None:
    """Peers lose no step."""


@_operation()
def kill(job: JobId = None, replica: OneWorker = None, no_wait: NoWait = False) -> None:
    """It counts as a failure of the replica."""


@_operation(timeout_s=30.0)
def stack(job: JobId = None, replica: Workers = None) -> None:
    """Workers go on."""


def ps(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    lighthouse: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="HTTP address of `ftrun lighthouse --jobs`: its jobs instead."
        ),
    ] = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Ask the lighthouse of each job once."""
    from ftrun.protocol.tls import TlsFiles
    from ftrun.tools.operate.ps import show_jobs, show_jobs_of
    from ftrun.tools.status.once import StatusQuery, find_lighthouse

    if lighthouse is None:
        raise typer.Exit(show_jobs(as_json=as_json))
    query = StatusQuery(lighthouse, None, token_file, TlsFiles(tls_cert, tls_key, tls_ca))
    raise typer.Exit(show_jobs_of(*find_lighthouse(query, "ftrun ps"), as_json=as_json))


def chaos(
    job_id: JobId = None,
    manifest: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Carry out this campaign of faults by step."),
    ] = None,
    result: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --manifest: the result. [default: chaos-result.json]"
        ),
    ] = None,
    mtbf: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Average time between kills: 30s, 2m, 1h. [default: 30s]"
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time to continue. [default: until the job ends, or Ctrl-C]"
        ),
    ] = None,
    kills: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of kills. [default: no limit]")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Seed of the random draws. [default: random; it is printed]"
        ),
    ] = None,
    signal: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="KILL, SEGV, ABRT, BUS or TERM. [default: KILL]"),
    ] = None,
    only_replica: Annotated[
        str | None, typer.Option(metavar="ID", help="Kill workers of this replica only.")
    ] = None,
    token_file: TokenFile = None,
) -> None:
    """Kill workers for a time or a number of times, or carry out a campaign (docs/CHAOS.md)."""
    from ftrun.base.errors import UserError
    from ftrun.tools.chaos.campaign import run_campaign
    from ftrun.tools.chaos.draws import parse_duration, parse_signal
    from ftrun.tools.chaos.session import ChaosSettings, run_chaos

    drawn = (mtbf, duration, kills, signal, only_replica)
    if manifest is not None and any(value is not None for value in drawn):
        raise UserError(
            "--manifest states each fault: --mtbf, --duration, --kills, --signal and "
            "--only-replica would have no effect. Nothing was done."
        )
    if result is not None and manifest is None:
        raise UserError("--result is of a campaign: give --manifest too. Nothing was done.")
    settings = ChaosSettings(
        mtbf_s=parse_duration(mtbf or "30s", "--mtbf"),
        job_id=job_id,
        duration_s=None if duration is None else parse_duration(duration, "--duration"),
        kills=kills,
        seed=seed,
        signal=parse_signal(signal or "KILL"),
        only_replica=only_replica,
        token_file=token_file,
        result=result,
    )
    if manifest is not None:
        raise typer.Exit(run_campaign(settings, manifest))
    raise typer.Exit(run_chaos(settings))
