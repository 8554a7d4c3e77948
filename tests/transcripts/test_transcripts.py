"""Every transcript in this directory and below it is replayed, and must equal its file.

Not here: tests/transcripts/step (tests/unit/core/worker/test_transcripts.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.transcripts import replay, supervisor_replay, torchft_replay

HERE = Path(__file__).parent
KINDS: dict[Path, tuple[Callable[[], replay.Player], int]] = {
    HERE: (replay.Replay, 70),
    HERE / "supervisor": (supervisor_replay.Replay, 40),
    HERE / "torchft": (torchft_replay.Replay, 8),
}
"""By directory: the core that its transcripts are about, and at least how many there are."""
TRANSCRIPTS = [path for directory in KINDS for path in sorted(directory.glob("*.txt"))]


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_transcript(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    assert replay.play(written, KINDS[path.parent][0]) == written


def test_there_are_transcripts() -> None:
    for directory, (_, count) in KINDS.items():
        assert len(list(directory.glob("*.txt"))) >= count, directory
