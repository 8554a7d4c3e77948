"""``ftrun [run] SCRIPT``: the command whose options come from one table.

typer builds a command from a function's signature, so the signature is made from the table. Not
here: the options (config/options.py), what follows from them (config/settings.py).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ftrun.base.errors import UserError
from ftrun.config.options import COMMAND_ONLY, OPTIONS, SECTIONS, Option
from ftrun.config.words import respell

EPILOG = (
    "Every option of torchrun is accepted in its spelling, or refused with what to use instead: "
    "docs/TORCHRUN_REFERENCE.md. Each option may also stand in the environment "
    "(FTRUN_MAX_RESTARTS, PET_MAX_RESTARTS) or in ftrun.toml (max-restarts = 3)."
)
HELP = "Run SCRIPT in replica groups; words after SCRIPT are its own."


def run(ctx: typer.Context, script: list[str] | None = None, **options: Any) -> None:
    """Resolve, check, then show the plan or become the agent."""
    if not script:
        raise UserError("Give a script: ftrun [OPTIONS] SCRIPT [ARGS]..., or -m MODULE [ARGS]...")
    if options["as_json"] and not options["dry_run"]:
        raise UserError("--json is for --dry-run: give both, or neither.")
    from ftrun.config.layers import advice_notice, file_notice, gather, unknown_variables
    from ftrun.engines.kubernetes import HEEDED, read_kubernetes
    from ftrun.engines.readers import place_of_task

    config = _config_file(options["config"], os.environ)
    stated = gather(options, os.environ, config)
    place = place_of_task(stated, os.environ)
    if place is not None and place.task > 0:
        typer.echo(f"ftrun: {place.needless()}", err=True)
        raise typer.Exit
    has_use = place is not None and bool(place.others or stated["requeue"].value)
    is_kept = has_use and not options["dry_run"]
    launch = None if options["dry_run"] or is_kept else ctx.obj()
    from ftrun.agent.devices import gpu_count
    from ftrun.config.forms import without_effect
    from ftrun.config.settings import resolve
    from ftrun.config.tasks import check_alone
    from ftrun.config.torchrun import notices, variable_notices

    if place is not None and is_kept:
        from ftrun.tools.keep import keep_node

        environ = {**os.environ, **place.variables(stated)}
        if ctx.obj.token:
            raise UserError(
                f"FTRUN_TOKEN: the nodes of a step of {place.engine} have a token of their own. "
                "Nothing was started. Leave it out, or give --token-file FILE."
            )
        stated = gather(options, environ, config)
        raise typer.Exit(keep_node(place, resolve(script, stated), environ))
    from ftrun.tools.start import start_run

    gpus, pod = gpu_count(os.environ), read_kubernetes(stated, os.environ)
    advice = pod.variables(stated, gpus) if pod is not None else {}
    stated = gather(options, {**os.environ, **advice}, config)
    settings = resolve(script, stated, gpus)
    if place is None:
        check_alone(stated, os.environ)
    lines = [*unknown_variables(os.environ), *file_notice(stated), *notices(stated)]
    lines += without_effect(settings)
    lines += advice_notice(stated, os.environ, HEEDED if pod is not None else ())
    lines += filter(None, [pod.notice(advice)] if pod is not None else [])
    for line in (*lines, *variable_notices(os.environ)):
        typer.echo(f"ftrun: {line}", err=True)
    as_json = bool(options["as_json"])
    raise typer.Exit(start_run(settings, launch, as_json=as_json, token=ctx.obj.token))


def _config_file(given: str | None, environ: Mapping[str, str]) -> Path | None:
    from ftrun.config.layers import CONFIG_VARIABLE

    named = given or environ.get(CONFIG_VARIABLE)
    return Path(named) if named else None


class RunCommand(TyperCommand):
    """The command ``run``, with all spellings of its options, and with headings in its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse words in which each option has the spelling of the table."""
        return super().parse_args(ctx, respell(args, is_final=not ctx.resilient_parsing))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options under their headings, in the order of the table."""
        rows = {item.name: item.get_help_record(ctx) for item in self.get_params(ctx)}
        for heading, names in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([row for name in names if (row := rows[name]) is not None])


def _parameters() -> Iterator[inspect.Parameter]:
    """``run``'s parameters as typer reads them."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    yield inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    words = typer.Argument(metavar="SCRIPT [ARGS]...", show_default=False)
    yield inspect.Parameter(
        "script", keyword, default=None, annotation=Annotated[list[str] | None, words]
    )
    for option in (*OPTIONS, *COMMAND_ONLY):
        yield inspect.Parameter(option.name, keyword, default=None, annotation=_annotation(option))


def _annotation(option: Option) -> Any:
    """The text as typed, or None: the table parses it, as it parses variables."""
    words = option.shown_default()
    text = option.help + (f" [default: {words}]" if words else "")
    info = typer.Option(
        *option.flags, metavar=option.metavar or None, help=text, hidden=option.hidden,
        show_default=False,
    )  # fmt: skip
    return Annotated[bool | None if option.kind is bool else str | None, info]


run.__signature__ = inspect.Signature(list(_parameters()))  # type: ignore[attr-defined]
run.__annotations__ = {p.name: p.annotation for p in _parameters()}
