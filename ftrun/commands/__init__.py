"""The commands: ``ftrun [run] SCRIPT``, ``ftrun lighthouse``, ``ftrun status``, ``ftrun chaos`` …

The first one is in run.py, because its options come from a table.

Each command is one call into a room that is imported only then: ``ftrun --help`` loads none. Not
here: the checks of options (config/ and the rooms' settings); the launch of the spawner, which
comes first (cli.py) and which ``app`` gets as its ``obj``, a call that returns the launch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ftrun import defaults
from ftrun.commands import run as running
from ftrun.config.options import normaliser

TlsCert = Annotated[Path | None, typer.Option(metavar="PEM", help="TLS: certificate to present.")]
TlsKey = Annotated[
    Path | None, typer.Option(metavar="PEM", help="TLS: private key of that certificate.")
]
TlsCa = Annotated[
    Path | None, typer.Option(metavar="PEM", help="TLS: CA that signed the peer's certificate.")
]


class _RunByDefault(TyperGroup):
    """Makes ``run`` the command if none is named: ``ftrun train.py`` is ``ftrun run train.py``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``run`` in front unless the first word is a command."""
        if args and args[0] not in (*self.commands, "-h", "--help", "--version"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="ftrun",
    context_settings={"help_option_names": ["-h", "--help"]},
    cls=_RunByDefault,
    add_completion=True,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help=(
        "An elastic launcher for PyTorch: a replica group that dies heals from its peers per "
        "step, and nobody else restarts. `ftrun SCRIPT` is `ftrun run SCRIPT`; "
        "`ftrun run --help` shows its options."
    ),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"ftrun {version('ftrun')}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    """Options that stand before a command."""


app.command(
    "run",
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": normaliser(),
    },
    options_metavar="[OPTIONS]",
    help=running.HELP,
    epilog=running.EPILOG,
)(running.run)


@app.command(help="Run a lighthouse by itself, for jobs of several nodes.")
def lighthouse(
    bind: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for agents; port 0: any.")
    ] = defaults.BIND,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address for status and metrics. [default: the next port]"
        ),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory for the journal. [default: in ~/.local/state/ftrun]"
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with the token that agents must present, mode 0600."
        ),
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Further host name in HTTP requests; may be repeated."),
    ] = None,
    insecure_plaintext: Annotated[
        bool,
        typer.Option(
            "--insecure-plaintext", help="Allow other addresses than loopback without TLS."
        ),
    ] = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    from ftrun.protocol.quiet import load_grpc_quietly

    load_grpc_quietly()
    from ftrun import descriptors
    from ftrun.lighthouse.main import run_lighthouse
    from ftrun.lighthouse.settings import STANDALONE, ServiceSettings
    from ftrun.protocol.auth import default_token_path, load_or_create_token, state_home
    from ftrun.protocol.tls import TlsFiles

    settings = ServiceSettings(
        state_dir=state_dir or state_home() / "lighthouse",
        token=load_or_create_token(token_file or default_token_path()),
        bind=bind,
        http=http,
        tls=TlsFiles(tls_cert, tls_key, tls_ca),
        allowed_hosts=tuple(allow_host or ()),
        insecure_plaintext=insecure_plaintext,
        core=STANDALONE,
    )
    descriptors.allow_descriptors(descriptors.LIGHTHOUSE, "A lighthouse")
    raise typer.Exit(run_lighthouse(settings))


@app.command(help="Show a job: its replicas, its steps and its recent changes.")
def status(
    job_id: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="[default: the one that runs on this machine]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    lighthouse: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="HTTP address of the job's lighthouse.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the job's token.")
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Send the lighthouse one request."""
    from ftrun.protocol.tls import TlsFiles
    from ftrun.status.once import StatusQuery, show_json, show_once

    tls = TlsFiles(tls_cert, tls_key, tls_ca)
    query = StatusQuery(lighthouse, job_id, token_file, tls)
    raise typer.Exit(show_json(query) if as_json else show_once(query))


@app.command(help="Kill random workers of a running job now and then, to test a script.")
def chaos(
    job_id: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="[default: the one that runs on this machine]"),
    ] = None,
    mtbf: Annotated[
        str, typer.Option(metavar="TIME", help="Average time between kills: 30s, 2m, 1h.")
    ] = "30s",
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time to go on. [default: until the job ends, or Ctrl-C]"
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
        str, typer.Option(metavar="NAME", help="KILL, SEGV, ABRT, BUS or TERM.")
    ] = "KILL",
    only_replica: Annotated[
        str | None, typer.Option(metavar="ID", help="Kill workers of this replica only.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the job's token.")
    ] = None,
) -> None:
    """Kill workers until the time is over or the number of kills is reached."""
    from ftrun.chaos.draws import parse_duration, parse_signal
    from ftrun.chaos.session import ChaosSettings, run_chaos

    settings = ChaosSettings(
        mtbf_s=parse_duration(mtbf, "--mtbf"),
        job_id=job_id,
        duration_s=None if duration is None else parse_duration(duration, "--duration"),
        kills=kills,
        seed=seed,
        signal=parse_signal(signal),
        only_replica=only_replica,
        token_file=token_file,
    )
    raise typer.Exit(run_chaos(settings))


@app.command(help="Write a development CA, and certificates for a lighthouse and its agents.")
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
    from ftrun.certs import write_certificates

    for line in write_certificates(out, tuple(host or ()), force=force).lines():
        typer.echo(line)


Job = Annotated[
    str | None,
    typer.Argument(metavar="[JOB]", help="[default: the one that runs on this machine]"),
]
Lighthouse = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="HTTP address of the job's lighthouse.")
]
TokenFile = Annotated[Path | None, typer.Option(metavar="FILE", help="File with the job's token.")]
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


@app.command(help="Let a replica, a node or the whole job leave in order; peers lose nothing.")
def drain(
    job: Job = None,
    replica: Annotated[
        str | None,
        typer.Argument(metavar="[REPLICA]", help="[default: the whole job, as SIGTERM does]"),
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NAME", help="All of one node; others take its replicas.")
    ] = None,
    no_wait: NoWait = False,
    timeout_s: Timeout = 120.0,
    lighthouse: Lighthouse = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """A drained replica stays away until ``ftrun restart``."""
    _operate("drain", (job, replica), locals())


@app.command(help="Let a replica leave in order and start anew; a drained one starts again.")
def restart(
    job: Job = None,
    replica: Annotated[str | None, typer.Argument(metavar="REPLICA", help="Its number.")] = None,
    no_wait: NoWait = False,
    timeout_s: Timeout = 120.0,
    lighthouse: Lighthouse = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Peers lose no step."""
    _operate("restart", (job, replica), locals())


@app.command(
    help="Kill a replica or one of its workers now (SIGKILL); it heals as after any death."
)
def kill(
    job: Job = None,
    replica: Annotated[
        str | None, typer.Argument(metavar="REPLICA[.RANK]", help="Its number, and a worker's.")
    ] = None,
    no_wait: NoWait = False,
    timeout_s: Timeout = 120.0,
    lighthouse: Lighthouse = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """It counts as a failure of the replica."""
    _operate("kill", (job, replica), locals())


@app.command(help="Print the Python stacks of all threads of a job's workers.")
def stack(
    job: Job = None,
    replica: Annotated[
        str | None,
        typer.Argument(metavar="[REPLICA[.RANK]]", help="[default: all workers of the job]"),
    ] = None,
    timeout_s: Timeout = 30.0,
    lighthouse: Lighthouse = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Workers go on."""
    _operate("stack", (job, replica), locals())


@app.command(help="List the jobs of this user on this machine.")
def ps(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Ask the lighthouse of each job once."""
    from ftrun.operate.ps import show_jobs

    raise typer.Exit(show_jobs(as_json=as_json))
