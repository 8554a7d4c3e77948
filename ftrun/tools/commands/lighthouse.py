"""``ftrun lighthouse``: its options.

Not here: the service (lighthouse/), the checks of its settings (lighthouse/settings.py).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ftrun.base import defaults
from ftrun.base.errors import UserError
from ftrun.tools.commands.shared import TlsCa, TlsCert, TlsKey


def lighthouse(
    ctx: typer.Context,
    bind: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address for agents; port 0: any. "
            f"[default: {defaults.BIND}, for agents of this machine]",
            show_default=False,
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address for status and metrics. [default: the next port]"
        ),
    ] = None,
    state: Annotated[
        str,
        typer.Option(
            metavar="DIR|etcd://…|k8s://…",
            help="Where the job's state is: a directory, etcd://HOST:PORT,…/JOB, or a ConfigMap, "
            "k8s://NAMESPACE/NAME. Of several lighthouses with the same one, one leads and the "
            "others stand by. "
            "[default: a directory of this user's, for one lighthouse]",
            show_default=False,
        ),
    ] = "",
    jobs: Annotated[
        bool,
        typer.Option(
            "--jobs", help="Be the common address of many jobs: each has a lighthouse of its own."
        ),
    ] = False,
    once: Annotated[
        bool,
        typer.Option("--once", help="End when the first job has ended and its nodes have left."),
    ] = False,
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
    torchft_bind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[ROOM=]HOST:PORT",
            help="Address for torchft's own clients, which have no token (off by default); may be "
            "repeated, one room for each job.",
        ),
    ] = None,
    torchft_min_replicas: Annotated[
        int, typer.Option(metavar="N", help="The smallest quorum of torchft's replicas.")
    ] = 1,
    torchft_join_timeout: Annotated[
        float,
        typer.Option(
            metavar="S", help="Seconds that torchft's first joiner waits for others that live."
        ),
    ] = 60.0,
    torchft_heartbeat_timeout: Annotated[
        float,
        typer.Option(metavar="S", help="Seconds without a heartbeat: torchft's replica is dead."),
    ] = 5.0,
    insecure_plaintext: Annotated[
        bool,
        typer.Option(
            "--insecure-plaintext", help="Allow other addresses than loopback without TLS."
        ),
    ] = False,
) -> None:
    """Serve, or stand by, until SIGTERM or Ctrl-C."""
    from ftrun.protocol.quiet import load_grpc_quietly

    load_grpc_quietly()
    from ftrun.base import descriptors
    from ftrun.core.torchft_quorum.records import QuorumSettings
    from ftrun.lighthouse.main import run_lighthouse
    from ftrun.lighthouse.register.opening import files_beside
    from ftrun.lighthouse.settings import STANDALONE, ServiceSettings, TorchftSettings
    from ftrun.protocol.auth import (
        default_token_path,
        load_or_create_token,
        one_token,
        state_home,
    )
    from ftrun.protocol.tls import TlsFiles

    home = state_home() / "lighthouse"
    settings = ServiceSettings(
        state_dir=files_beside(state, home) if state else home,
        state=state,
        token=one_token(ctx.obj.token, token_file)
        or load_or_create_token(token_file or default_token_path()),
        bind=bind or defaults.BIND,
        http=http,
        tls=TlsFiles(tls_cert, tls_key, tls_ca),
        allowed_hosts=tuple(allow_host or ()),
        insecure_plaintext=insecure_plaintext,
        once=once,
        core=replace(STANDALONE, is_local=bind is None),
        torchft=TorchftSettings(
            binds=tuple(torchft_bind or ()),
            quorum=QuorumSettings(
                torchft_min_replicas, torchft_join_timeout, torchft_heartbeat_timeout
            ),
        ),
    )
    descriptors.allow_descriptors(descriptors.LIGHTHOUSE, "A lighthouse")
    if jobs:
        from ftrun.tools.door import run_door

        if once or torchft_bind or "://" in state:
            raise UserError(
                "--jobs has no --once, no --torchft-bind, and a directory as its --state: the door "
                "was not started. Leave them out."
            )
        raise typer.Exit(run_door(settings))
    if not torchft_bind:
        raise typer.Exit(run_lighthouse(settings))
    from ftrun.compat.torchft_wire.service import TorchftService

    raise typer.Exit(run_lighthouse(settings, torchft=TorchftService))
