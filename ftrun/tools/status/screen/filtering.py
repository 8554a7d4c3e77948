"""The line in which a filter is typed. It is loaded on first use.

Not here: which replicas match (rows.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import Input

WORDS_CHARS_MAX = 200


class FilterInput(Input):
    """Enter keeps the filter, Esc ends it."""

    DEFAULT_CSS = """
    FilterInput, FilterInput:focus {
        height: 1; border: none; padding: 0 1; background: $background; color: $foreground;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "give_up", show=False),
        Binding("down,tab", "keep", show=False, priority=True),
    ]

    def __init__(self, words: str, typed: Callable[[str], None], left: Callable[[], None]) -> None:
        super().__init__(
            words,
            placeholder="filter by words: a number, a node, a state …",
            max_length=WORDS_CHARS_MAX,
        )
        self._typed = typed
        self._left = left

    def on_mount(self) -> None:
        """Called by textual."""
        self.focus()

    @on(Input.Changed)
    def _show(self) -> None:
        self._typed(self.value)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.action_keep()

    def action_keep(self) -> None:
        """Keep showing the replicas that match."""
        self._left()
        self.remove()

    def action_give_up(self) -> None:
        """Show all replicas again."""
        self._typed("")
        self.action_keep()
