"""Lines of text in pieces, each with the role that its colour follows from.

A role is a meaning, not a look: palette.py gives it a colour. Text from the
network goes through ``words.plain`` before it comes here. Pure. Not here: colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

Piece = tuple[str, str]
Line = tuple[Piece, ...]

TEXT, DIM, STRONG, GOOD, CARE, BAD, KEY, NOTE, RULE = (
    "text", "dim", "strong", "good", "care", "bad", "key", "note", "rule",
)  # fmt: skip
ELLIPSIS = "…"


def line(*parts: Piece | str) -> Line:
    """Pieces as a line; a bare text has the role ``TEXT``."""
    return tuple((part, TEXT) if isinstance(part, str) else part for part in parts)


def width(pieces: Line) -> int:
    """The cells that it takes on a terminal."""
    return sum(cell_len(text) for text, _ in pieces)


def text_of(pieces: Line) -> str:
    """Its text alone."""
    return "".join(text for text, _ in pieces)


def cut(pieces: Line, cells: int) -> Line:
    """At most this number of cells; an ellipsis stands for the rest."""
    if width(pieces) <= cells:
        return pieces
    if cells <= 0:
        return ()
    left, kept = cells - 1, []
    for text, role in pieces:
        size = cell_len(text)
        if size > left:
            kept.append((set_cell_size(text, left).rstrip() + ELLIPSIS, role))
            break
        kept.append((text, role))
        left -= size
    return tuple(kept)


def fit(pieces: Line, cells: int, *, right: bool = False) -> Line:
    """Exactly this number of cells: cut, or filled with spaces."""
    pieces = cut(pieces, cells)
    fill = (" " * (cells - width(pieces)), TEXT)
    if not fill[0]:
        return pieces
    return (fill, *pieces) if right else (*pieces, fill)


def joined(parts: Iterable[Line], between: str = "  ") -> Line:
    """Lines side by side."""
    found: list[Piece] = []
    for part in parts:
        if found:
            found.append((between, TEXT))
        found += part
    return tuple(found)


def apart(left: Line, right: Line, cells: int) -> Line:
    """One line at the left edge, one at the right; the left one is cut if both do not fit."""
    size = width(right)
    if size + 4 > cells:
        return cut(left, cells)
    return (*fit(left, cells - size - 1), (" ", TEXT), *right)


def wrapped(text: str, cells: int, role: str = TEXT) -> list[Line]:
    """Words on as many lines as they need; a word that is too long is cut into pieces."""
    lines: list[str] = [""]
    for word in text.split():
        while cell_len(word) > cells > 0:
            head = set_cell_size(word, cells).rstrip()
            lines += [head, ""] if lines[-1] else []
            if len(lines) == 1:
                lines = [head, ""]
            word = word[len(head) :]
        space = " " if lines[-1] else ""
        if cell_len(lines[-1]) + len(space) + cell_len(word) <= cells:
            lines[-1] += space + word
        else:
            lines.append(word)
    return [((row, role),) for row in lines if row] or [()]


def rule(title: Line, cells: int, end: Line = ()) -> Line:
    """A title with a thin line after it, to the edge or to ``end``."""
    left = (*title, (" ", TEXT))
    right = ((" ", TEXT), *end) if end else ()
    size = cells - width(left) - width(right)
    if size < 1:
        return cut(left, cells)
    return (*left, ("─" * size, RULE), *right)


def bar(shares: Sequence[tuple[float, str]], cells: int) -> Line:
    """Shares of a whole side by side, in eighths of a cell only at the end of the last one."""
    whole = sum(share for share, _ in shares)
    if whole <= 0 or cells <= 0:
        return (("─" * max(0, cells), RULE),)
    found: list[Piece] = []
    done, filled = 0.0, 0
    for share, role in shares:
        done += share
        end = round(done / whole * cells)
        if end > filled:
            found.append(("━" * (end - filled), role))
            filled = end
    return tuple(found)
