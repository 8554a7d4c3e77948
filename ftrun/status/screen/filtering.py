"""The line in which the words of a filter are typed. It is loaded at the first use.

Not here: which replicas have the words (rows.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import Input

if TYPE_CHECKING:
    from ftrun.status.screen.main import MainScreen

WORDS_CHARS_MAX = 200


class FilterInput(Input):
    """Enter keeps the words, Esc ends the filter."""

    DEFAULT_CSS = """
    FilterInput, FilterInput:focus {
        height: 1; border: none; padding: 0 1; background: $background; color: $foreground;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "end", show=False),
        Binding("down,tab", "keep", show=False, priority=True),
    ]

    def __init__(self, words: str) -> None:
        super().__init__(
            words, placeholder="words: a number, a node, a state …", max_length=WORDS_CHARS_MAX
        )

    def on_mount(self) -> None:
        """Called by textual."""
        self.focus()

    @on(Input.Changed)
    def _typed(self) -> None:
        self._main.filter_by(self.value)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.action_keep()

    def action_keep(self) -> None:
        """Go on with the replicas that have the words."""
        main = self._main
        main.query_one("#replicas").focus()
        self.remove()

    def action_end(self) -> None:
        """Show all replicas again."""
        self._main.filter_by("")
        self.action_keep()

    @property
    def _main(self) -> MainScreen:
        return cast("MainScreen", self.screen)
