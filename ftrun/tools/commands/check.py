"""``ftrun check``: its options.

Not here: the trial (check/).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ftrun.base.errors import UserError

REPLICAS_MIN = WORKERS_MIN = 2
STEPS_MIN = 6


def check(
    script: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]...", show_default=False)
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(metavar="N", help="Replicas of the trial. [default: 2; of W: 1]")
    ] = None,
    workers: Annotated[
        int,
        typer.Option("-w", "--workers-per-replica", metavar="W", help="Workers of each; some die."),
    ] = 1,
    nodes: Annotated[
        int,
        typer.Option(metavar="N", help="Of the one replica of W workers; one is lost."),
    ] = 1,
    steps: Annotated[int, typer.Option(metavar="S", help="Steps after which each run ends.")] = 60,
    memory_snapshots: Annotated[
        str,
        typer.Option(metavar="off|auto", help="off: a worker's replica restarts, of several."),
    ] = "",
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="When a run is ended.")
    ] = 300.0,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda", help="Device to train on.")
    ] = "auto",
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in `python -m`.")
    ] = False,
) -> None:
    """Try an unmodified script with deaths, and compare it with an undisturbed run.

    It runs in copies of the current directory. The exit code is 1 if it does not heal.
    """
    if not script:
        raise UserError("Give a script: ftrun check [OPTIONS] SCRIPT [ARGS]...")
    replicas = replicas or (1 if workers > 1 else REPLICAS_MIN)
    if replicas * workers < WORKERS_MIN or workers < 1 or steps < STEPS_MIN or timeout_s <= 0:
        raise UserError(
            f"ftrun check needs --replicas {REPLICAS_MIN} or more, or --workers-per-replica "
            f"{WORKERS_MIN} or more, --steps {STEPS_MIN} or more, and a --timeout above 0. Nothing "
            "was started."
        )
    if nodes < 1 or workers % nodes or (nodes > 1 and replicas > 1):
        raise UserError(
            f"--nodes {nodes}: ftrun check loses a node of one replica, whose workers are equally "
            f"many on each: give --workers-per-replica {max(nodes, 2)}, or a multiple, and no "
            "--replicas. Nothing was started."
        )
    usual = ("auto",) if replicas == 1 else ("auto", "off")
    if memory_snapshots not in ("", *usual):
        raise UserError(
            f"--memory-snapshots {memory_snapshots}: give off or auto for several replicas. A "
            "group without replicas has them in each trial. Nothing was started."
        )
    from ftrun.agent.devices import gpu_count
    from ftrun.config import script as config
    from ftrun.config.forms import why_no_memory_snapshots
    from ftrun.config.layers import CONFIG_VARIABLE, gather
    from ftrun.config.settings import resolve
    from ftrun.tools.check.command import INJECT, check_script

    kind = config.TargetKind.MODULE if module else config.TargetKind.FILE
    config.check_script(config.Script(config.own_path(script[0]), kind, tuple(script[1:])))
    shape = {"replicas": str(replicas), "workers_per_replica": str(workers)}
    if nodes > 1:
        each, at = str(workers // nodes), "127.0.0.1:1"
        shape = {"nnodes": str(nodes), "nproc_per_node": each, "rdzv_endpoint": at}
        memory_snapshots = "auto"
    stated = {
        **shape,
        "memory_snapshots": memory_snapshots or None,
        "device": device,
        "inject": INJECT,
        "module": module or None,
    }
    file = os.environ.get(CONFIG_VARIABLE)
    known = gather(stated, os.environ, Path(file) if file else None)
    settings = resolve(script, known, gpu_count(os.environ))
    why_not = why_no_memory_snapshots(settings)
    if nodes > 1 and why_not:
        raise UserError(
            f"--nodes {nodes}: without memory snapshots a lost node is the end of its replica, and "
            f"there are none: {why_not}. Nothing was started."
        )
    is_group = replicas == 1 or not why_not
    options = ["--device", device, *(["--module"] if module else [])]
    if is_group or memory_snapshots:
        options += ["--memory-snapshots", memory_snapshots or "auto"]
    how = replicas, steps, timeout_s, workers
    raise typer.Exit(check_script(script, options, *how, is_group=is_group, nodes=nodes))
