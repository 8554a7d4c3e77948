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
from ftrun.errors import exit_codes_text

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
    epilog=f"{running.EPILOG}\n\n\b\n{exit_codes_text()}",
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


@app.command(help="Tell what failed in a job that runs here, or that has ended.")
def explain(
    job_id: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="[default: the one that runs here, or ended last]"),
    ] = None,
    incident: Annotated[
        int | None, typer.Argument(metavar="INCIDENT", help="Its number. [default: the latest]")
    ] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="List all incidents.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
    log_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for logs of jobs that have ended.")
    ] = Path("ftrun-logs"),
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the job's token.")
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Ask the job's lighthouse or, once the job has ended, read its log directory."""
    from ftrun.explain.command import explain as show
    from ftrun.explain.finding import Query
    from ftrun.protocol.tls import TlsFiles

    query = Query(job_id, log_dir, token_file, TlsFiles(tls_cert, tls_key, tls_ca))
    raise typer.Exit(show(query, incident, as_json=as_json, all_of_them=all_of_them))


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
