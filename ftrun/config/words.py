"""Parses a command line: respells each option of ``ftrun run`` as in the table.

torchrun's spellings count too: ``_`` for ``-`` in a long flag, ``-r=3``, and unique prefixes of its
flags. Words after SCRIPT are the script's. Not here: the options (options.py), their values
(settings.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from ftrun.base.errors import UserError
from ftrun.config.options import COMMAND_ONLY, OPTIONS, TORCHRUN_NAMES, Option, nearest_words

HELP = ("--help", "-h")
_BY_FLAG: dict[str, Option] = {
    flag: option
    for option in (*OPTIONS, *COMMAND_ONLY)
    for word in option.flags
    for flag in word.split("/")
}


def respell(words: Sequence[str], *, is_final: bool = True) -> list[str]:
    """The same words, with every option before SCRIPT as a flag of the table and its value.

    ``is_final``: False while the shell completes an unfinished line, in which nothing is wrong yet.

    Raises:
        UserError: an unknown option; a switch with a value; two flags of one option that differ.
    """
    found: list[str] = []
    given: dict[str, tuple[str, str]] = {}
    at = 0
    while at < len(words) and _is_option(words[at]):
        name, value = _split(words[at])
        option = _BY_FLAG.get(name)
        takes_value = option is not None and option.kind is not bool
        if is_final and name not in HELP:
            _check(words[at], name, option, value)
        found.append(name)
        at += 1
        if value is None and takes_value and at < len(words):
            value = words[at]
            at += 1
        if value is not None:
            found.append(value)
        if is_final and option is not None:
            _check_alike(given, option, name, value)
    script, rest = list(words[at : at + 1]), words[at + 1 :]
    if rest[:1] == ["--"] and script != ["--"]:
        rest = rest[1:]  # as torchrun does, for which it ends its own words
    return [*found, *script, *rest]


def _check(word: str, name: str, option: Option | None, value: str | None) -> None:
    if option is None:
        raise UserError(_unknown(name))
    if value is not None and option.kind is bool:
        raise UserError(f"{name} takes no value, and {word!r} has one. Nothing was started.")


def _check_alike(
    given: dict[str, tuple[str, str]], option: Option, name: str, value: str | None
) -> None:
    """Check repetitions. One flag may be repeated, as under torchrun; two names must not differ."""
    first, other = given.setdefault(option.name, (name, value or ""))
    if option.kind is not bool and first != name and other != value:
        raise UserError(
            f"{first} {other} and {name} {value} are two names of one thing, and differ. Nothing "
            "was started. Give one of the two."
        )
    given[option.name] = (name, value or "")


def _is_option(word: str) -> bool:
    return word.startswith("-") and word not in ("-", "--")


def _split(word: str) -> tuple[str, str | None]:
    """An option's flag in the spelling of the table, and the value in the same word."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return _whole(name.replace("_", "-")), value if equals else None
    if word in HELP or len(word) == 2:
        return word, None
    return word[:2], word[2:].removeprefix("=")


def _whole(name: str) -> str:
    """The only flag with the prefix ``name``, if it is one of torchrun's; otherwise ``name``."""
    begun = [flag for flag in _BY_FLAG if flag.startswith(name)]
    is_theirs = len(begun) == 1 and _BY_FLAG[begun[0]].name in TORCHRUN_NAMES
    return begun[0] if is_theirs and len(name) > 3 else name


def _unknown(name: str) -> str:
    """The hint for an unknown flag: flags that begin with it, or similar ones."""
    flags = [flag for flag in _BY_FLAG if flag.startswith("--")]
    begun = [flag for flag in flags if len(name) > 3 and flag.startswith(name)]
    near = begun or nearest_words(name, flags, 2)
    hint = f" Did you mean {' or '.join(near[:3])}?" if near else ""
    return f"No such option: {name}.{hint} Nothing was started. `ftrun run --help` lists them."
