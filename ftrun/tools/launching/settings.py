"""The settings of a launch, by the names of ``ftrun run``'s options.

A setting from the program counts as a flag. Others may be set in the environment or in ftrun.toml,
as for the command. Not here: the options (config/options.py), their meaning (config/settings.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftrun.base.errors import UserError
from ftrun.config.layers import DEFAULT, Stated, gather
from ftrun.config.options import BY_NAME, Option, nearest

NOT_SETTINGS = frozenset({"module", "no_python", "run_path"})
OF_SEVERAL_GROUPS = ("replicas", "min_replicas", "workers_per_replica")


def stated_options(
    settings: Mapping[str, Any], environ: Mapping[str, str], *, one_group: bool
) -> dict[str, Stated]:
    """Every option with its source.

    ``one_group``: the program launches one replica group, so the environment and ftrun.toml do not
    set the number of groups.

    Raises:
        UserError: there is no such setting, or its option refuses the value.
    """
    flags: dict[str, Any] = {}
    config = environ.get("FTRUN_CONFIG") or None
    for name, value in settings.items():
        if name == "config":
            config = value or config
        elif value is not None:
            flags[_option(name).name] = _as_typed(value)
    stated = gather(flags, environ, None if config is None else Path(config))
    if one_group:
        stated |= {name: Stated(BY_NAME[name].default, DEFAULT) for name in OF_SEVERAL_GROUPS}
    return stated


def _option(name: str) -> Option:
    """An option by its field's name or its own name: ``grace_s`` or ``grace``."""
    known = {alias: option for option in BY_NAME.values() for alias in _aliases(option)}
    found = known.get(name)
    if found is None or found.name in NOT_SETTINGS:
        hint = nearest(name, known) or " `ftrun run --help` lists the options."
        raise UserError(f"There is no setting {name!r}. Nothing was started.{hint}")
    return found


def _aliases(option: Option) -> set[str]:
    return {option.name, option.key.replace("-", "_")}


def _as_typed(value: Any) -> Any:
    """The value as typed on a command line."""
    if isinstance(value, bool):
        return value
    return ",".join(str(one) for one in value) if isinstance(value, list) else str(value)
