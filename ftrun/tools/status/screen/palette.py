"""The colours of the roles, for dark and light backgrounds and for the terminal's own palette.

A mark or a word shows the same as each colour, so nothing is lost without colours. Not here: which
piece has which role.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.theme import Theme as RoleStyles
from textual.markup import parse_style
from textual.theme import Theme

from ftrun.tools.status.screen import pieces as p

DARK, LIGHT, TERMINAL = "ftrun-dark", "ftrun-light", "ftrun-terminal"
NAMES = (DARK, LIGHT, TERMINAL)

_ROLES = {
    p.DIM: "$dim", p.STRONG: "bold $strong", p.GOOD: "$success", p.CARE: "$warning",
    p.BAD: "bold $error", p.KEY: "bold $primary", p.NOTE: "$secondary", p.RULE: "$rule",
}  # fmt: skip


def role_styles(variables: Mapping[str, str]) -> RoleStyles:
    """The style of each role, from the variables of a theme."""
    return RoleStyles(
        {role: parse_style(style, dict(variables)).rich_style for role, style in _ROLES.items()}
    )


def _theme(name: str, background: str, colours: str, cursor_style: str = "none") -> Theme:
    """Colours: text, dim, strong, good, care, bad, key, note, rule, cursor, scroll bar."""
    text, dim, strong, good, care, bad, key, note, rule, cursor, bar = colours.split()
    return Theme(
        name,
        primary=key,
        secondary=note,
        success=good,
        warning=care,
        error=bad,
        foreground=text,
        background=background,
        surface=background,
        panel=background,
        boost=background,
        dark=name != LIGHT,
        ansi=name == TERMINAL,
        variables={
            "dim": dim,
            "strong": strong,
            "rule": rule,
            "cursor": cursor,
            "cursor-style": cursor_style,
            "ansi-background": background,
            "ansi-foreground": text,
            "border-blurred": text,
            "scrollbar": bar,
            "scrollbar-hover": key,
            "scrollbar-active": key,
            "scrollbar-background": background,
            "scrollbar-background-hover": background,
            "scrollbar-background-active": background,
            "scrollbar-corner-color": background,
        },
    )


THEMES = (
    _theme(
        DARK,
        "#11141a",
        "#c6ccd6 #7b8594 #f1f4f9 #62bd85 #e0ad3f #ff6b66 #7aaef5 #8fb4de #2d3541 #242c38 #2d3541",
    ),
    _theme(
        LIGHT,
        "#fbfbf9",
        "#363d48 #69727f #0d1117 #19783f #8a5b00 #c01f2e #1d5cb8 #32649b #d5dae1 #e3eaf4 #d5dae1",
    ),
    _theme(
        TERMINAL,
        "ansi_default",
        "ansi_default dim bold ansi_green ansi_yellow ansi_red ansi_cyan ansi_cyan dim ansi_default"
        " ansi_bright_black",
        cursor_style="reverse",
    ),
)
