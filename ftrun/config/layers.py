"""Which source of an option wins: flag, environment, file, default, in this order.

Each value keeps its source, for ``--dry-run``. Not here: the options (options.py), the meaning of
their values (settings.py, torchrun.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftrun.base.errors import UserError
from ftrun.config.options import BY_NAME, OPTIONS, Option, nearest
from ftrun.protocol import auth

FILE_NAME = "ftrun.toml"
FILE_BYTES_MAX = 1 << 20
DEFAULT = "default"
INHERITED = frozenset(
    {"FTRUN_CHECK", "FTRUN_CHAOS_DIR",
        "FTRUN_JOB_ID", "FTRUN_REPLICA_ID", "FTRUN_GROUP_RANK", "FTRUN_INCARNATION",
        "FTRUN_OWNER", "FTRUN_GUARD_ID", "FTRUN_AGENT_ID", "FTRUN_MEMORY", "FTRUN_OWN_MEMORY",
    }
)  # fmt: skip
"""Variables of every worker, which are no options in a command that a worker runs."""
CONFIG_VARIABLE = "FTRUN_CONFIG"
ADVICE = "PET_"
"""The prefix of torchrun's variables."""
_PORT = r"PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?"
SERVICE_LINK = re.compile(rf"FTRUN_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|{_PORT})")
"""Variables that Kubernetes sets in all pods for a Service whose name begins with ``ftrun``."""
URL = re.compile(r"(?:tcp|udp|sctp)://.*")


@dataclass(frozen=True, slots=True)
class Stated:
    """One option's value; ``source``: the flag, variable or file that states it, or ``default``."""

    value: Any
    source: str

    @property
    def is_given(self) -> bool:
        return self.source != DEFAULT


def gather(
    flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None
) -> dict[str, Stated]:
    """Every option's value with its source.

    ``flags``: the text on the command line by option name; None: not given. ``config``: the file
    that ``--config`` names.

    Raises:
        UserError: a value of the wrong kind, an unknown key, a file that cannot be read.
    """
    entries, path = _read_file(config)
    environ = {n: text for n, text in environ.items() if not _is_service_link(n, text)}

    def state(option: Option, environ: Mapping[str, str]) -> Stated:
        return _state(option, flags.get(option.name), environ, entries, path)

    if state(BY_NAME["replicas"], environ).is_given:
        environ = {name: value for name, value in environ.items() if not name.startswith(ADVICE)}
    return {option.name: state(option, environ) for option in OPTIONS}


def as_variables(values: Mapping[str, str], stated: Mapping[str, Stated]) -> dict[str, str]:
    """An engine's values as variables, for options that are not stated."""
    return {
        f"FTRUN_{name.upper()}": value
        for name, value in values.items()
        if value and not stated[name].is_given
    }


def _is_service_link(name: str, text: str) -> bool:
    """Whether this is Kubernetes' variable. If its name equals an option's, its value is a URL."""
    if not SERVICE_LINK.fullmatch(name):
        return False
    is_option = any(name in option.variables() for option in OPTIONS)
    return not is_option or bool(URL.fullmatch(text))


def advice_notice(
    stated: Mapping[str, Stated], environ: Mapping[str, str], heeded: Collection[str] = ()
) -> list[str]:
    """A line about torchrun's variables that have no effect, because of --replicas.

    A cluster sets them for the job that it would start: ranks of one world over its nodes.
    ``heeded``: variables that an engine's reader has read.
    """
    names = {n for option in OPTIONS for n in option.variables() if n.startswith(ADVICE)}
    given = [f"{name}={environ[name]}" for name in sorted(names - {*heeded}) if environ.get(name)]
    if not (given and stated["replicas"].is_given):
        return []
    return [
        f"{' and '.join(given)}: torchrun's variables have no effect beside --replicas. Give "
        "ftrun's own flags (`ftrun run --help`)."
    ]


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """``FTRUN_…`` and ``PET_…`` variables that are no option, each with a hint."""
    options = {name for option in OPTIONS for name in option.variables()} | {CONFIG_VARIABLE}
    known = options | INHERITED | {auth.VARIABLE}
    odd = sorted(
        name
        for name, text in environ.items()
        if name.startswith(("FTRUN_", "PET_")) and name not in known
        if not _is_service_link(name, text)
    )
    return [
        f"The variable {name} is not an option and has no effect.{nearest(name, options)}"
        for name in odd
    ]


def file_notice(stated: Mapping[str, Stated]) -> list[str]:
    """A line about the options that the working directory's ftrun.toml states, if any."""
    names = [one.source for one in stated.values() if one.source.startswith(f"{FILE_NAME}: ")]
    keys = ", ".join(name.removeprefix(f"{FILE_NAME}: ") for name in names)
    return [f"{FILE_NAME} of this directory states: {keys}."] if keys else []


def _state(
    option: Option,
    given: Any,
    environ: Mapping[str, str],
    entries: Mapping[str, Any],
    path: Path | None,
) -> Stated:
    """One option. An empty variable counts as unset, because clusters and scripts set such."""
    if given is not None:
        flag = option.flag
        return Stated(option.parse(given, flag) if isinstance(given, str) else given, flag)
    is_worker = "FTRUN_INCARNATION" in environ
    for name in option.variables():
        if environ.get(name) and not (is_worker and name in INHERITED):
            return Stated(option.parse(environ[name], name), name)
    if option.key in entries:
        source = f"{path}: {option.key}"
        return Stated(option.accept(entries[option.key], source), source)
    return Stated(option.default, DEFAULT)


def _read_file(config: Path | None) -> tuple[dict[str, Any], Path | None]:
    """The entries of ``config``, or of ftrun.toml in the working directory if there is one."""
    path = config if config is not None else Path(FILE_NAME)
    if config is None and not path.is_file():
        return {}, None
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UserError(f"{path}: larger than 1 MiB. Nothing was started.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--config: {path} cannot be read ({error.strerror}).") from None
    except ValueError:
        raise UserError(f"{path} is not text in UTF-8. Nothing was started.") from None
    entries = {key.replace("_", "-"): value for key, value in parse_toml(text, path).items()}
    keys = {option.key for option in BY_NAME.values()}
    for key in entries:
        if isinstance(entries[key], dict):
            raise UserError(
                f"{path}: [{key}] is a table, and the file has none: all keys stand by themselves. "
                "Nothing was started. Remove that line."
            )
        if key not in keys:
            raise UserError(
                f"{path}: {key!r} is not an option.{nearest(key, keys)} Nothing was started. "
                "The keys are the flags of `ftrun run --help`, without the dashes in front."
            )
    return entries, path


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """The entries of a TOML file.

    Raises:
        UserError: it is not valid; names the line.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        entries: dict[str, Any] = tomllib.loads(text)
        return entries
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}. Nothing was started.") from None
