"""Counts, durations and untrusted text as words on one line of a terminal.

Not here: how a status is laid out (view.py).
"""

from __future__ import annotations

from collections.abc import Sequence

TEXT_CHARS_MAX = 300


def plain(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """One line of printable characters, cut at ``chars_max``."""
    kept = "".join(char if char.isprintable() else " " for char in text[:chars_max])
    return kept + "…" if len(text) > chars_max else kept


def counted(count: int, noun: str) -> str:
    """``1 restart``, ``2 restarts``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """A duration for people: ``4 ms``, ``1.25 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def age(seconds: float) -> str:
    """An age in at most six characters: ``0.2 s``, ``42 s``, ``17 min``, ``5 h``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for length, unit, most in ((1, "s", 100), (60, "min", 100), (3600, "h", 48)):
        if round(seconds / length) < most:
            return f"{round(seconds / length)} {unit}"
    return f"{round(seconds / 86400)} d"


def ranges(names: Sequence[str]) -> str:
    """Names in order, with runs of consecutive numbers as ranges: ``0-3 5 spare``."""
    runs: list[list[str]] = []
    for name in names:
        if runs and name.isdecimal() and runs[-1][-1] == str(int(name) - 1):
            runs[-1].append(name)
        else:
            runs.append([name])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else " ".join(run) for run in runs)
