"""The colours of the roles, for dark and light backgrounds and for the terminal's own palette.

A mark or a word shows the same as a colour, so nothing is lost without colours. Not here: the role
of each piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rich.style import Style
from textual.theme import Theme

from ftrun.tools.status.screen import pieces as p

DARK, LIGHT, TERMINAL = "ftrun-dark", "ftrun-light", "ftrun-terminal"
NAMES = (DARK, LIGHT, TERMINAL)


@dataclass(frozen=True, slots=True)
class Palette:
    """``base``: text on the background; ``cursor``: what the chosen row adds to it."""

    base: Style
    cursor: Style
    roles: Mapping[str, Style]

    def style(self, role: str, *, chosen: bool = False) -> Style:
        """How a piece is painted."""
        style = self.base + self.roles.get(role, Style.null())
        return style + self.cursor if chosen else style


def _colours(names: dict[str, str], background: str, cursor: str) -> Palette:
    roles = {role: Style(color=colour) for role, colour in names.items()}
    roles[p.STRONG] += Style(bold=True)
    roles[p.BAD] += Style(bold=True)
    roles[p.KEY] += Style(bold=True)
    base = roles[p.TEXT] + Style(bgcolor=background)
    return Palette(base, Style(bgcolor=cursor), MappingProxyType(roles))


_DARK_BACKGROUND, _LIGHT_BACKGROUND = "#11141a", "#fbfbf9"
_DARK_COLOURS = {
    p.TEXT: "#c6ccd6", p.DIM: "#7b8594", p.STRONG: "#f1f4f9", p.GOOD: "#62bd85", p.CARE: "#e0ad3f",
    p.BAD: "#ff6b66", p.KEY: "#7aaef5", p.NOTE: "#8fb4de", p.RULE: "#2d3541",
}  # fmt: skip
_LIGHT_COLOURS = {
    p.TEXT: "#363d48", p.DIM: "#69727f", p.STRONG: "#0d1117", p.GOOD: "#19783f", p.CARE: "#8a5b00",
    p.BAD: "#c01f2e", p.KEY: "#1d5cb8", p.NOTE: "#32649b", p.RULE: "#d5dae1",
}  # fmt: skip
_TERMINAL_ROLES = {
    p.TEXT: Style(), p.DIM: Style(dim=True), p.STRONG: Style(bold=True),
    p.GOOD: Style(color="green"), p.CARE: Style(color="yellow"),
    p.BAD: Style(color="red", bold=True), p.KEY: Style(color="cyan", bold=True),
    p.NOTE: Style(color="cyan"), p.RULE: Style(dim=True),
}  # fmt: skip

PALETTES: Mapping[str, Palette] = MappingProxyType(
    {
        DARK: _colours(_DARK_COLOURS, _DARK_BACKGROUND, "#242c38"),
        LIGHT: _colours(_LIGHT_COLOURS, _LIGHT_BACKGROUND, "#e3eaf4"),
        TERMINAL: Palette(
            Style(color="default", bgcolor="default"),
            Style(reverse=True),
            MappingProxyType(_TERMINAL_ROLES),
        ),
    }
)


def themes() -> tuple[Theme, ...]:
    """The same colours as themes, for scroll bars and the line of input."""
    found = []
    for name, colours, background in (
        (DARK, _DARK_COLOURS, _DARK_BACKGROUND),
        (LIGHT, _LIGHT_COLOURS, _LIGHT_BACKGROUND),
    ):
        rule = colours[p.RULE]
        bars = {
            "scrollbar": rule,
            "scrollbar-hover": colours[p.DIM],
            "scrollbar-active": colours[p.KEY],
            "scrollbar-background": background,
            "scrollbar-background-hover": background,
            "scrollbar-background-active": background,
            "scrollbar-corner-color": background,
        }
        found.append(
            Theme(
                name,
                primary=colours[p.KEY],
                foreground=colours[p.TEXT],
                background=background,
                surface=background,
                panel=background,
                dark=name == DARK,
                variables=bars,
            )
        )
    found.append(
        Theme(
            TERMINAL,
            primary="ansi_cyan",
            foreground="ansi_default",
            background="ansi_default",
            surface="ansi_default",
            panel="ansi_default",
            boost="ansi_default",
            ansi=True,
            variables={
                "ansi-background": "ansi_default",
                "ansi-foreground": "ansi_default",
                "border-blurred": "ansi_default",
                "scrollbar": "ansi_bright_black",
                "scrollbar-background": "ansi_default",
            },
        )
    )
    return tuple(found)
