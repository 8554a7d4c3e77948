"""Pages generated from the code: the command line, and the public names of the Python API.

The options of ``ftrun run`` come from their table, the other commands from typer, and the names of
the API from the package's list. Not here: the docstrings, which mkdocstrings reads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

import ftrun
from docs_site.links import ROOT
from ftrun.config.options import COMMAND_ONLY, OPTIONS, SECTIONS, Option

CLI_INTRODUCTION = """# Command line

`ftrun SCRIPT` is `ftrun run SCRIPT`. What torchrun's options mean here:
[torchrun's options](TORCHRUN_REFERENCE.md).

An option of `ftrun run` may also stand in the environment or in `ftrun.toml`. The command line wins
over the environment, and the environment over the file. In `ftrun.toml` its key is the long flag
without dashes in front (`max-restarts = 3`). `ftrun --dry-run` prints the plan, and what states
each value.
"""
API_INTRODUCTION = """# Python API

The public names of the package. How to write a script with them:
[A script with the Manager](MANAGER.md). How to start a job from a program:
[Launching from Python](PYTHON_API.md).
"""


def command_line() -> str:
    """The page of all commands and their options."""
    import typer

    from ftrun.tools.commands.app import app

    group: Any = typer.main.get_command(app)
    parts = [CLI_INTRODUCTION]
    for name, command in group.commands.items():
        context = command.make_context(name, [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        parts.append(f"## ftrun {name}\n\n{command.help}\n\n```\nftrun {name} {usage}\n```\n")
        parts += run_options() if name == "run" else [_table(_rows(command, context))]
    return "\n".join(parts)


def run_options() -> Iterator[str]:
    """The options of ``ftrun run``, a table for each heading of its ``--help``."""
    known = {option.name: option for option in (*OPTIONS, *COMMAND_ONLY)}
    for heading, names in SECTIONS.items():
        yield f"### {heading}\n"
        options = [known[name] for name in names if name in known]  # not --help
        rows = [(_flags(option), _meaning(option), _variables(option)) for option in options]
        yield _table(rows, ("option", "meaning", "environment"))


def _flags(option: Option) -> str:
    flags = ", ".join(f"`{flag}`" for word in option.flags for flag in word.split("/"))
    return flags + (f" `{option.metavar}`" if option.metavar else "")


def _meaning(option: Option) -> str:
    default = option.shown_default()
    return option.help + (f" Default: {default}." if default else "")


def _variables(option: Option) -> str:
    names = () if option in COMMAND_ONLY else option.variables()
    return ", ".join(f"`{name}`" for name in names)


def _rows(command: Any, context: Any) -> list[tuple[str, ...]]:
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    return [(f"`{flags}`", meaning) for flags, meaning in filter(None, records)]


def _table(
    rows: Sequence[tuple[str, ...]], headings: tuple[str, ...] = ("option", "meaning")
) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def python_api() -> str:
    """The page of the public names, with a directive for each, which mkdocstrings expands."""
    parts = [API_INTRODUCTION]
    for name in ftrun.__all__:
        home = ftrun._HOMES[name]
        if origin := _torchs_own(home, name):
            parts.append(f"## ftrun.{name}\n\nThe same class as `{origin}.{name}`.\n")
        else:
            parts.append(f"::: {home}.{name}\n    options:\n      heading: ftrun.{name}\n")
    return "\n".join(parts)


def _torchs_own(home: str, name: str) -> str:
    """The module of torch from which ``home`` has this name; empty if the name is ftrun's."""
    path = ROOT / home.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            module = node.module or ""
            return module if module.partition(".")[0] == "torch" else ""
    return ""
