"""The commands: ``ftrun [run] SCRIPT``, ``ftrun lighthouse``, ``ftrun status``, ``ftrun chaos`` …

Each command calls into a package that is imported only then: ``ftrun --help`` loads none. Not here:
their options (the files beside this one), the checks of these (config/ and the packages' settings);
the launch of the spawner, which comes first (cli.py). ``app`` gets it as its ``obj``: a call that
returns the launch.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ftrun.tools.commands import run as running
from ftrun.tools.commands.certs import certs
from ftrun.tools.commands.check import check
from ftrun.tools.commands.doctor import doctor
from ftrun.tools.commands.lighthouse import lighthouse
from ftrun.tools.commands.looking import explain, logs, report, status
from ftrun.tools.commands.operate import chaos, drain, kill, ps, restart, stack
from ftrun.tools.commands.sbatch import SbatchCommand, sbatch

GROUPS = {
    "Run a job": ("run", "check", "sbatch", "lighthouse"),
    "Look at a job": ("status", "ps", "logs", "explain", "report", "stack"),
    "Act on a job": ("drain", "restart", "kill", "chaos"),
    "Prepare machines": ("doctor", "certs"),
}
"""The headings of ``ftrun --help``, and the commands below each."""
HELP_CHARS_MAX = 200


class _RunByDefault(TyperGroup):
    """Makes ``run`` the command if none is named: ``ftrun train.py`` is ``ftrun run train.py``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``run`` in front unless the first word is a command or an option of ``ftrun``."""
        own = {flag for parameter in self.get_params(ctx) for flag in parameter.opts}
        if args and args[0] not in own | set(self.commands):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write the commands under their headings."""
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                commands = ((name, self.commands[name]) for name in names)
                rows = [(name, x.get_short_help_str(HELP_CHARS_MAX)) for name, x in commands]
                formatter.write_dl(rows)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete the first word: a command, or an option of ``ftrun`` or ``ftrun run``."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            command = self.commands["run"]
            with command.make_context("run", [], parent=ctx, resilient_parsing=True) as inner:
                known = {item.value for item in found}
                more = command.shell_complete(inner, incomplete)
                found += [item for item in more if item.value not in known]
        return found


def _dashed(word: str) -> str:
    return word.replace("_", "-")


app = typer.Typer(
    name="ftrun",
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": _dashed},
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
    cls=running.RunCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
    help=running.HELP,
    epilog=running.EPILOG,
)(running.run)
app.command(cls=SbatchCommand, options_metavar="[--print]")(sbatch)
app.command(help="Run a lighthouse by itself, for jobs of several nodes.")(lighthouse)
app.command(help="Show a job live: its replicas, its steps, what failures cost.")(status)
app.command(help="Show what failed in a job, also after its end.")(explain)
app.command(help="Write one HTML file about a job, for a mail or a colleague.")(report)
app.command(help="Show the logs of a job's workers, also after its end.")(logs)
app.command(help="Check this machine before a job does, with remedies.")(doctor)
app.command(
    help="Try a script with deaths: what heals, and what does not.",
    context_settings={"allow_interspersed_args": False},
)(check)
app.command(help="Kill random workers of a job now and then, to test a script.")(chaos)
app.command(help="Write certificates to try TLS with.")(certs)
app.command(help="Let a replica, node or job leave in order; peers lose nothing.")(drain)
app.command(help="Let a replica leave in order and start again; also a drained one.")(restart)
app.command(help="Kill a replica or one of its workers now (SIGKILL); it heals.")(kill)
app.command(help="Print the Python stacks of all threads of a job's workers.")(stack)
app.command(help="List the jobs of this user on this machine.")(ps)
