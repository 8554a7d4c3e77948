"""Every transcript of torchft's quorums is replayed, and must equal its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.transcripts.torchft_replay import play

TRANSCRIPTS = sorted((Path(__file__).parent / "torchft").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    assert play(written) == written


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 8
