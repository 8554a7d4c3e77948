"""Counts, sizes, durations, names and untrusted text as words on one line."""

from __future__ import annotations

from collections.abc import Sequence

TEXT_CHARS_MAX = 300
NAMED_MAX = 12


def printable(text: str) -> str:
    """The text without control characters, which could manipulate a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def plain(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """One line of printable characters, cut at ``chars_max``."""
    return printable(text[:chars_max]) + ("…" if len(text) > chars_max else "")


def counted(count: int, noun: str) -> str:
    """``1 restart``, ``2 restarts``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def first_of(names: Sequence[object], most: int = NAMED_MAX) -> str:
    """The first ``most`` names, and the number of the others: ``a, b and 7 more``."""
    more = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {more} more" if more > 0 else "")


def amount(count: float) -> str:
    """Bytes for people: ``412 MB``, ``4.1 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            digits = 1 if count < 99.95 and unit not in ("B", "kB") else 0
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


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
