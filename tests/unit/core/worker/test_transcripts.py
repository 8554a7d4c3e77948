"""The transcripts of tests/transcripts/step: each event, and exactly the instructions after it.

To write one, put the events into a file, run this module (``python test_transcripts.py FILE``) and
judge every line that it prints against docs/PROTOCOL.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.core.worker.step_script import replay

STORIES = sorted(Path(__file__).parents[3].joinpath("transcripts/step").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    script = path.read_text()
    assert replay(script).splitlines() == script.splitlines()


def test_there_are_stories() -> None:
    assert len(STORIES) >= 15


if __name__ == "__main__":
    sys.stdout.write(replay(Path(sys.argv[1]).read_text()))
