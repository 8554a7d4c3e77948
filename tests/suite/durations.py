"""How long tests take: the slowest of a run, and the recorded seconds of each file.

``durations.txt`` beside this file has the files that took a second or more. ``scripts/test all
--write-durations`` writes it; commit it when the order has changed. Not here: what is measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = Path(__file__).with_name("durations.txt")
SLOWEST = ROOT / ".test-durations.txt"
SLOWEST_COUNT = 50


def write_slowest(seconds: Mapping[str, float], path: Path = SLOWEST) -> Path:
    """Write the slowest tests of a run, with their fixtures, and return the file."""
    return _write(path, _longest(seconds)[:SLOWEST_COUNT])


def write_files(seconds: Mapping[str, float], path: Path = FILES) -> Path:
    """Write how long each file took, the longest first."""
    files: defaultdict[str, float] = defaultdict(float)
    for name, found in seconds.items():
        files[name.partition("::")[0]] += found
    return _write(path, [(name, found) for name, found in _longest(files) if found >= 1.0])


def read_files(path: Path = FILES) -> dict[Path, float]:
    """The recorded seconds of each file."""
    rows = (line.split(maxsplit=1) for line in path.read_text().splitlines())
    return {ROOT / name: float(seconds) for seconds, name in rows}


def _longest(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: -item[1])


def _write(path: Path, rows: list[tuple[str, float]]) -> Path:
    path.write_text("".join(f"{seconds:8.1f} {name}\n" for name, seconds in rows))
    return path
