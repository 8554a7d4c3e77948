"""Every transcript in this directory is replayed, and must equal its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.transcripts.replay import play

HERE = Path(__file__).parent
TRANSCRIPTS = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    assert play(written) == written


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 10
