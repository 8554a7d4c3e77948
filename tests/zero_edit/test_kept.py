"""What rank 0 alone keeps comes from its predecessor, also by a peer with an older copy of it. What
a logger of a helper module keeps heals too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.zero_edit.matrix import Case, run


@pytest.mark.timeout(300)
def test_a_best_score_and_a_history_of_rank_0(tmp_path: Path) -> None:
    """The script compares them with those of an undisturbed run, where they are."""
    outcome = run(Case("kept.py", "", "0@train 2 4"), tmp_path)
    assert outcome.exit_code == 0 and outcome.is_equal, f"{outcome.ends}\n{outcome.output}"
    [own] = re.findall(
        r"replica 0 joined at .*; restored from its predecessor, as of step \d+: (.*)",
        outcome.output,
    )
    assert "best inf→4" in own and "log 0 values→2 values" in own
    assert outcome.counters["steps"] == 50 and outcome.counters["losses"] == 10_225
    assert outcome.counters["logged"] == [50, [[10, 100 * epoch + 4.5] for epoch in range(5)]]
