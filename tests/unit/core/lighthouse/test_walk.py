"""How far one death walks through the lighthouse's core (scripts/death_walk.py)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
FILES_MAX = 26
CALLS_MAX = 389


def test_a_death_walks_few_files_and_calls() -> None:
    """The counts are exact: whoever lengthens the walk sees it here, and says why in the commit."""
    words = [sys.executable, str(ROOT / "scripts" / "death_walk.py")]
    found = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    counts = re.match(r"(\d+) files, (\d+) calls\n", found)
    assert counts is not None, found
    assert int(counts[1]) <= FILES_MAX and int(counts[2]) <= CALLS_MAX, found
