"""Lines of text made of pieces, each with a role that determines its colour.

A role is a meaning, not a look: palette.py assigns the colour. Text from the network goes through
``words.plain`` before it comes here. Pure. Not here: colours.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

Piece = Text | str | tuple[str, str]

TEXT, DIM, STRONG, GOOD, CARE, BAD, KEY, NOTE, RULE = (
    "", "dim", "strong", "good", "care", "bad", "key", "note", "rule",
)  # fmt: skip


def line(*parts: Piece) -> Text:
    """A line of pieces. A pair is a text and its role."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def button(action: str, *parts: Piece) -> Text:
    """Pieces that act on a click like the key of this action."""
    return line(*parts).on(click=f"app.press({action!r})")


def fit(text: Text, cells: int, *, right: bool = False) -> Text:
    """Exactly this number of cells, at least one: padded with spaces, or cut with an ellipsis."""
    text = text.copy()
    text.truncate(cells, overflow="ellipsis")
    text.align("right" if right else "left", cells)
    return text


def apart(left: Text, right: Text, cells: int) -> Text:
    """One line at the left edge, one at the right. The left one is cut if both do not fit."""
    if right.cell_len + 4 > cells:
        return left
    return line(fit(left, cells - right.cell_len - 1), " ", right)


def rule(title: Text, cells: int) -> Text:
    """A title followed by a thin line to the edge."""
    return line(title, " ", ("─" * max(0, cells - title.cell_len - 1), RULE))


def bar(shares: Sequence[tuple[float, str]], cells: int) -> Text:
    """Shares of a whole, side by side."""
    whole = sum(share for share, _ in shares)
    if whole <= 0:
        return line(("─" * cells, RULE))
    found, done = line(), 0.0
    for share, role in shares:
        done += share
        found.append("━" * (round(done / whole * cells) - len(found)), role)
    return found
