"""Everything is killed at random moments: an interval is lost at most, and the end is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.snapshots.jobs import EVERY_S, KINDS, Outcome, Runs, kill_often

pytestmark = pytest.mark.timeout(1800)
MARGIN_S = 10.0
"""A slow machine's steps, its start of the writer and its writes; the interval is far less."""


def calm(tmp_path: Path, kind: str, steps: int, replicas: int = 2) -> Outcome:
    """A run that nobody disturbs and that takes no snapshots."""
    directory = tmp_path / "calm"
    directory.mkdir()
    return Runs(directory, kind, steps).finish(replicas, snapshot=False)


SEVERAL = [kind for kind in KINDS if "-w" in KINDS[kind]]
ALONE = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if "-w" not in KINDS[kind]]
"""One worker per replica: tests/process/test_snapshots.py has jobs of theirs that go on."""


@pytest.mark.parametrize("kind", [*SEVERAL, *ALONE])
def test_killed_twice(tmp_path: Path, kind: str) -> None:
    """At moments of one interval after the first snapshot."""
    runs = Runs(tmp_path, kind, every_s=3.0)
    kills, last = kill_often(runs, 2, kills=2, seed=11, longest_s=3.0, with_snapshot=True)
    assert last.exit_code == 0 and last.end == calm(tmp_path, kind, runs.steps).end, last.output
    assert kills and max(kill.lost_s for kill in kills) <= 3.0 + MARGIN_S, kills
    assert max(kill.resumed_at for kill in kills) > 0, kills


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_killed_ten_times(tmp_path: Path, kind: str) -> None:
    runs = Runs(tmp_path, kind)
    kills, last = kill_often(runs, 3, kills=10, seed=1, longest_s=25.0)
    assert last.exit_code == 0 and last.end == calm(tmp_path, kind, runs.steps, 3).end, last.output
    assert max(kill.lost_s for kill in kills) <= EVERY_S + MARGIN_S, kills
