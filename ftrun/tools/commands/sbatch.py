"""``ftrun sbatch``: its words, all checked before anything is submitted to Slurm.

Not here: the batch script (engines/sbatch.py), the options of ftrun (config/options.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ftrun.base.errors import UserError

if TYPE_CHECKING:
    from ftrun.config.settings import RunSettings
    from ftrun.engines.sbatch import Batch

USAGE = "ftrun sbatch [--print] [SBATCH OPTIONS] -- [FTRUN OPTIONS] SCRIPT [ARGS]..."
PRINT = "--print"
NOTICE = "USR1"


def sbatch(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SBATCH OPTIONS] -- [OPTIONS] SCRIPT [ARGS]", show_default=False),
    ] = None,
    is_printed: Annotated[
        bool, typer.Option(PRINT, help="Print the batch script, and submit nothing.")
    ] = False,
) -> None:
    """Submit a job to Slurm as sbatch does, with the flags of ftrun.

    For example: ftrun sbatch --nodes=4 --time=8:00:00 -- --replicas 4 train.py
    """
    if "--" not in (words := words or []):
        raise UserError(f"There is no -- behind sbatch's options. Nothing was submitted. {USAGE}")
    from ftrun.engines.sbatch import Batch

    at = words.index("--")
    batch, own = Batch(words[:at]), words[at + 1 :]
    settings = _resolve(ctx, own, batch)
    own_notice = (settings.preempt_signal or "").upper().removeprefix("SIG")
    if own_notice and batch.notice not in ("", own_notice):
        raise UserError(
            f"--signal={batch.notice} of sbatch and --preempt-signal {own_notice} differ. Nothing "
            "was submitted. Leave one of them out."
        )
    notice, requeues = own_notice or batch.notice or NOTICE, batch.requeues or settings.requeue
    own = [
        *([] if own_notice else ["--preempt-signal", notice]),
        *(["--requeue"] if requeues and not settings.requeue else []),
        *own,
    ]
    name = Path(_resolve(ctx, own, batch).script.target).stem
    script = batch.script([*_command(), *own], name, notice, requeues=requeues)
    if is_printed:
        typer.echo(script, nl=False)
        raise typer.Exit
    raise typer.Exit(_submit(script))


def _resolve(ctx: typer.Context, own: list[str], batch: Batch) -> RunSettings:
    """The settings that each node will have.

    Raises:
        UserError: ftrun would refuse them there.
    """
    from ftrun.config.checks import check
    from ftrun.config.layers import gather
    from ftrun.config.settings import resolve
    from ftrun.engines.readers import is_settled

    assert ctx.parent is not None
    commands: Any = ctx.parent.command
    with commands.commands["run"].make_context("run", list(own), parent=ctx.parent) as inner:
        options = dict(inner.params)
    script = options.pop("script")
    if not script:
        raise UserError(f"There is no script. Nothing was submitted. {USAGE}")
    config = options["config"]
    stated = gather(options, os.environ, None if config is None else Path(config))
    settings = resolve(script, stated)
    own_nodes = stated["nodes"]
    if own_nodes.is_given and batch.nodes not in (None, own_nodes.value):
        raise UserError(
            f"--nodes {batch.nodes} of sbatch and {own_nodes.source} {own_nodes.value} of ftrun "
            "differ. Nothing was submitted. Leave the latter out: the nodes find each other."
        )
    if batch.has_nodes and not stated["replicas"].is_given:
        raise UserError(
            "A job of several nodes needs --replicas N behind --: groups that heal from each "
            "other, each on one node. Nothing was submitted. For one world of all nodes, as under "
            "torchrun, write a script with: srun ftrun --nnodes N --rdzv-endpoint HOST:PORT"
        )
    is_brought_together = batch.has_nodes and not is_settled(stated)
    check(replace(settings, lighthouse="node:0") if is_brought_together else settings)
    return settings


def _command() -> list[str]:
    """The command of this ftrun, independent of the nodes' PATH."""
    beside = Path(sys.executable).absolute().with_name("ftrun")
    return [str(beside) if beside.exists() else shutil.which("ftrun") or "ftrun"]


def _submit(script: str) -> int:
    if shutil.which("sbatch") is None:
        raise UserError(
            "There is no sbatch on this machine, so nothing was submitted. Submit on a machine of "
            f"the cluster, or print the script: {PRINT}."
        )
    return subprocess.run(["sbatch"], input=script, text=True, check=False).returncode


class SbatchCommand(TyperCommand):
    """Takes all words unchanged, except its own options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep sbatch's options and the ``--`` from being read as options of this command."""
        end = args.index("--") if "--" in args else len(args)
        first = [word for word in args[:end] if word in (PRINT, "--help", "-h")]
        rest = [word for word in args[:end] if word not in first]
        return super().parse_args(ctx, [*first, "--", *rest, *args[end:]])
