"""The commands: ``ftrun [run] SCRIPT``, ``ftrun lighthouse``, ``ftrun status``, ``ftrun chaos`` …

Each is one call into a room, imported when it is called: ``ftrun --help`` loads none of them. Not
here: what the options mean and what is wrong with them (config.py and the rooms' settings), and the
spawner's launch, which comes before all this (cli.py): ``app`` is given a call that yields it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ftrun.errors import ExitCode, UserError

TlsCert = Annotated[
    Path | None, typer.Option(metavar="PEM", help="TLS: the certificate that is shown.")
]
TlsKey = Annotated[Path | None, typer.Option(metavar="PEM", help="TLS: its private key.")]
TlsCa = Annotated[
    Path | None, typer.Option(metavar="PEM", help="TLS: who must have signed the other's.")
]


class _RunByDefault(TyperGroup):
    """``ftrun train.py`` is ``ftrun run train.py``: what is no command is the start of a run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``run`` in front where no command is named."""
        if args and args[0] not in (*self.commands, "--help", "--version"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="ftrun",
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
    """The options before a command."""


@app.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
    help="Run SCRIPT in replica groups; what follows SCRIPT is its own.",
)
def run(
    ctx: typer.Context,
    script: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT [ARGS]...", show_default=False),
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in `python -m`.")
    ] = False,
    replicas: Annotated[
        str, typer.Option(metavar="N|MIN:MAX", help="How many replica groups.")
    ] = "1",
    workers_per_replica: Annotated[
        int, typer.Option("--workers-per-replica", "-w", metavar="W", help="Workers in each.")
    ] = 1,
    min_replicas: Annotated[
        int | None,
        typer.Option(metavar="N", help="Train with no fewer than this. [default: 1]"),
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", help="Agents that share the replicas.")] = 1,
    rebalance: Annotated[
        bool, typer.Option(help="Move replicas to nodes that come late, one by one.")
    ] = True,
    lighthouse: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A lighthouse that runs; else ftrun runs one."),
    ] = None,
    job_id: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The job's name, the same on all nodes."),
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(metavar="N", help="Per replica group; progress refills it.")
    ] = 10,
    join_timeout: Annotated[
        float, typer.Option(metavar="S", help="Wait so long for replicas, or a lighthouse.")
    ] = 60.0,
    heartbeat_timeout: Annotated[
        float, typer.Option(metavar="S", help="An agent silent for so long is lost.")
    ] = 5.0,
    isolation_limit: Annotated[
        float, typer.Option(metavar="S", help="Stop committing after so long alone.")
    ] = 60.0,
    hang_timeout: Annotated[
        float, typer.Option(metavar="S", help="Replace a worker stopped for so long; 0: never.")
    ] = 60.0,
    grace: Annotated[
        float, typer.Option(metavar="S", help="From SIGTERM to SIGKILL, for a script to save.")
    ] = 10.0,
    log_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where logs go.")] = Path(
        "ftrun-logs"
    ),
    state_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The embedded lighthouse's journal. [default: temporary]"),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The job's token, mode 0600."),
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda", help="What to train on.")
    ] = "auto",
    inject: Annotated[
        str, typer.Option(metavar="explicit|off", help="How ftrun reaches the script.")
    ] = "explicit",
    preload: Annotated[
        str, typer.Option(metavar="MODULES", help="Import these once, before workers are forked.")
    ] = "",
    standby: Annotated[
        int,
        typer.Option(metavar="K", help="Keep K workers started, up to the script's first line."),
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved plan and start nothing.")
    ] = False,
) -> None:
    """Resolve, check, then show the plan or become the agent."""
    words = list(script or [])
    if not words:
        raise UserError("Give a script: ftrun [OPTIONS] SCRIPT [ARGS]..., or -m MODULE [ARGS]...")
    launch = None if dry_run else ctx.obj()
    from ftrun import config
    from ftrun.addresses import normal_address
    from ftrun.protocol.tls import TlsFiles
    from ftrun.script import Script

    what = Script(words[0], is_module=module, args=tuple(words[1:]))
    low, high = config.parse_replicas(replicas, min_replicas)
    settings = config.RunSettings(
        script=what,
        job_id=job_id if job_id is not None else config.default_job_id(what, lighthouse),
        replicas=high,
        min_replicas=low,
        workers_per_replica=workers_per_replica,
        nodes=nodes,
        rebalance=rebalance,
        lighthouse=normal_address(lighthouse),
        max_restarts=max_restarts,
        join_timeout_s=join_timeout,
        heartbeat_timeout_s=heartbeat_timeout,
        isolation_limit_s=isolation_limit,
        hang_timeout_s=hang_timeout,
        grace_s=grace,
        device=device,
        inject=inject,
        preload=tuple(name for name in preload.replace(",", " ").split() if name),
        standbys=standby,
        log_dir=log_dir,
        state_dir=state_dir,
        token_file=token_file,
        tls=TlsFiles(tls_cert, tls_key, tls_ca),
    )
    raise typer.Exit(_run(settings, launch))


def _run(settings: Any, launch: Any | None) -> int:
    """``launch``: the spawner that is starting, or None for a dry run."""
    from ftrun.agent.devices import check_own_address, inspect_machine
    from ftrun.descriptors import allow_descriptors, descriptors_needed

    settings.check()
    machine = inspect_machine(settings, os.environ)
    if settings.lighthouse is not None and settings.tls:
        from ftrun.protocol.handshake import check_handshake

        host, port = settings.lighthouse_address()
        check_handshake(host, port, settings.tls)
    if launch is None:
        from ftrun.agent.plan import print_plan

        print_plan(settings, machine)
        return ExitCode.OK
    here, workers = machine.capacity, settings.workers_per_replica
    allow_descriptors(
        descriptors_needed(here, workers, settings.replicas, settings.standbys),
        f"{here} x {workers} workers on this node", launch.process.pid,
    )  # fmt: skip
    check_own_address(machine.host)
    settings.check_directories()

    from ftrun.protocol.quiet import load_grpc_quietly

    load_grpc_quietly()
    from ftrun.agent.shell import Neighbours, run_agent
    from ftrun.lighthouse.embedded import child_environment
    from ftrun.protocol.auth import default_token_path, load_or_create_token, new_token

    token_file: Path | None = None
    token = new_token()
    if settings.token_file is not None or settings.lighthouse is not None:
        token_file = (settings.token_file or default_token_path()).absolute()
        token = load_or_create_token(token_file)
    neighbours = Neighbours(child_environment, *_job_file(settings))
    return run_agent(settings, machine, token, token_file, launch, neighbours)


def _job_file(settings: Any) -> tuple[Callable[[str, Path], None], Callable[[], None]]:
    """How the agent says where its job can be asked for, and takes that back."""
    from ftrun import clock
    from ftrun.status.jobs import RunningJob, birth_mark, read_job, remove_job, write_job

    started = clock.wall().isoformat(timespec="seconds")

    def announce(http: str, token_file: Path) -> None:
        log_dir = str(settings.job_log_dir.absolute())
        tls = settings.tls.absolute()
        cert, key, ca = (str(path or "") for path in (tls.cert, tls.key, tls.ca))
        job = RunningJob(
            settings.job_id, http, os.getpid(), log_dir, str(token_file), started, cert, key, ca,
            birth=birth_mark(os.getpid()),
        )  # fmt: skip
        write_job(job)

    def withdraw() -> None:
        job = read_job(settings.job_id)
        # Another agent of the job on this machine may have written it since.
        if job is not None and job.pid == os.getpid():
            remove_job(settings.job_id)

    return announce, withdraw


@app.command(help="Run a lighthouse alone, for jobs of several nodes.")
def lighthouse(
    bind: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="For agents; port 0 takes any.")
    ] = "127.0.0.1:29510",
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Status and metrics. [default: the next port]"),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The journal. [default: in ~/.local/state/ftrun]"),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The token that agents must show, mode 0600."),
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="HTTP may be asked under this name; may be repeated."),
    ] = None,
    insecure_plaintext: Annotated[
        bool, typer.Option("--insecure-plaintext", help="Other addresses than loopback, no TLS.")
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


@app.command(help="Show a job: its replicas, steps, and what has changed of late.")
def status(
    job_id: Annotated[
        str | None, typer.Argument(metavar="JOB", help="[default: the one that runs here]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False,
    lighthouse: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Its lighthouse's HTTP address.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The job's token.")
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Ask the lighthouse once."""
    from ftrun.protocol.tls import TlsFiles
    from ftrun.status.once import StatusQuery, show_json, show_once

    tls = TlsFiles(tls_cert, tls_key, tls_ca)
    query = StatusQuery(lighthouse, job_id, token_file, tls)
    raise typer.Exit(show_json(query) if as_json else show_once(query))


@app.command(help="Kill random workers of a running job now and then, to try a script.")
def chaos(
    job_id: Annotated[
        str | None, typer.Argument(metavar="JOB", help="[default: the one that runs here]")
    ] = None,
    mtbf: Annotated[
        str, typer.Option(metavar="TIME", help="Between kills on average: 30s, 2m, 1h.")
    ] = "30s",
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="[default: until the job ends, or Ctrl-C]")
    ] = None,
    kills: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after so many. [default: no limit]")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of the draws. [default: any; it is printed]")
    ] = None,
    signal: Annotated[
        str, typer.Option(metavar="NAME", help="KILL, SEGV, ABRT, BUS or TERM.")
    ] = "KILL",
    only_replica: Annotated[
        str | None, typer.Option(metavar="ID", help="Kill workers of this replica only.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The job's token.")
    ] = None,
) -> None:
    """Torment it until the time is over, or the kills are."""
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
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where they go.")] = Path("ftrun-certs"),
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|IP", help="Of the lighthouse; may be repeated. [default: this machine]"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Write them and say how to use them."""
    from ftrun.certs import write_certificates

    for line in write_certificates(out, tuple(host or ()), force=force).lines():
        typer.echo(line)
