"""The keys and their effects, for the line of keys and the page of help.

Pure. Not here: the actions (main.py, pages.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from ftrun.tools.status.screen.pieces import DIM, KEY, Piece, button, line


@dataclass(frozen=True, slots=True)
class Hint:
    """A key in the line of keys. ``action``: the screen's action, which a click starts.

    ``rank``: if the line is too short, keys of high rank are left out first.
    """

    key: str
    word: str
    action: str
    rank: int


MAIN = (
    Hint("↵", "detail", "open", 5),
    Hint("l", "log", "log", 2),
    Hint("s", "stacks", "operate stack", 6),
    Hint("d", "drain", "operate drain", 7),
    Hint("r", "restart", "operate restart", 8),
    Hint("K", "kill", "operate kill", 9),
    Hint("/", "filter", "filter", 3),
    Hint("e", "explain", "explain", 4),
    Hint("f", "fold", "fold", 10),
    Hint("⇥", "pane", "pane", 11),
    Hint("t", "theme", "theme", 12),
    Hint("?", "help", "help", 1),
    Hint("q", "quit", "quit", 0),
)
TORCHFT = Hint("T", "torchft", "torchft", 3)
"""Only if the lighthouse serves torchft's clients."""
PAGE = (
    Hint("esc", "back", "back", 0),
    Hint("↑↓", "scroll", "", 1),
    Hint("q", "quit", "quit", 2),
)
DETAIL = (
    Hint("esc", "back", "back", 0),
    Hint("↑↓", "scroll", "", 7),
    Hint("l", "log", "log", 1),
    Hint("s", "stacks", "operate stack", 3),
    Hint("d", "drain", "operate drain", 4),
    Hint("r", "restart", "operate restart", 5),
    Hint("K", "kill", "operate kill", 6),
    Hint("e", "explain", "explain", 2),
    Hint("q", "quit", "quit", 8),
)
LOG = (
    Hint("esc", "back", "back", 0),
    Hint("↑↓", "scroll", "", 2),
    Hint("G", "follow", "follow", 1),
    Hint("w", "wrap", "wrap", 3),
    Hint("q", "quit", "quit", 4),
)
CHOICE = (Hint("↵", "show this job", "open", 0), Hint("q", "quit", "quit", 1))
WAIT = (Hint("q", "quit", "quit", 0),)


def main_hints(has_torchft: bool) -> tuple[Hint, ...]:
    """The keys of the main screen."""
    return (*MAIN[:-2], TORCHFT, *MAIN[-2:]) if has_torchft else MAIN


def key_line(hints: Sequence[Hint], cells: int) -> Text:
    """The hints that fit, in their order; each is a button."""
    shown = list(hints)
    while len(shown) > 1 and _line(shown).cell_len > cells:
        shown.remove(max(shown, key=lambda hint: hint.rank))
    return _line(shown)


def _line(hints: Sequence[Hint]) -> Text:
    return line(" ", Text("  ").join(map(_hint, hints)))


def _hint(hint: Hint) -> Text:
    parts: tuple[Piece, ...] = (hint.key, KEY), (f" {hint.word}", DIM)
    return button(hint.action, *parts) if hint.action else line(*parts)


HELP = (
    ("Move", ""),
    ("↑ ↓  j k", "up and down; PgUp, PgDn, Home or g, End or G"),
    ("Tab", "the next pane: replicas, timeline, incidents"),
    ("Space  ← →", "open or close a group, or a replica's ranks"),
    ("f", "fold the replicas: not at all, by state, by node"),
    ("/", "filter by words: a number, a node, a state, a device, a pid; Esc ends it"),
    ("mouse", "a click chooses, another one opens; the wheel scrolls; the keys below are buttons"),
    ("Look", ""),
    ("Enter", "all about the replica, or the incident"),
    ("l", "the worker's log as it grows"),
    ("s", "the Python stacks of all its threads; it runs on meanwhile"),
    ("e", "explain: the record of the chosen or of the last incident"),
    ("T", "torchft's replicas, where the lighthouse serves them (--torchft-bind)"),
    ("t", "dark, light, or the terminal's own colours"),
    ("Act, after a question", ""),
    ("d", "drain: the replica leaves at a boundary, and its peers lose no step"),
    ("r", "restart: it leaves at a boundary and starts again"),
    ("K", "kill: SIGKILL now; it counts as a failure and is healed as any other"),
    ("What is shown", ""),
    ("now, run", "committed steps per second, in the last half minute and since the job began"),
    ("goodput", "the share of the replicas' time that went into training"),
    ("lost, cost", "the time in which replicas could not train, of all replicas together"),
    ("own", "the part of a step that the replica did not wait for its peers in"),
    ("▲", "a straggler: its own part is a quarter longer than the others', so they wait"),
    ("restarts", "used, of the budget"),
    ("memory, use", "of the GPU, where there is one; else the process's memory and CPU"),
)


def help_text() -> Text:
    """The page of help."""
    rows: list[Text] = []
    for key, words in HELP:
        title = line("\n" if rows else "", (f" {key}", DIM))
        rows.append(line((f"   {key:<12}", KEY), words) if words else title)
    return Text("\n").join(rows)
