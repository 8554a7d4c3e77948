"""The screen's own memory, and sparklines."""

from __future__ import annotations

import math

from ftrun.tools.status.screen.history import POLLS, SCALARS_MAX, History, spark
from tests.unit.tools.status.documents import healthy


def test_a_rise_is_seen_and_a_gap_too() -> None:
    assert spark([1.0, 2.0, None, 3.0], 6) == "  ▁▅·█"
    assert spark([1.0, math.nan, 3.0], 3) == "▁·█"


def test_small_changes_of_a_rate_look_small() -> None:
    assert spark([100.0, 101.0, 99.0], 3, least=0.6) in ("▄▅▄", "▅▅▄", "▄▄▄", "▅▅▅")
    assert spark([100.0, 20.0, 100.0], 3, least=0.6) == "█▁█"
    assert spark([0.0, 0.0], 2, least=0.6) == "▅▅"


def test_nothing_known_is_empty() -> None:
    assert spark([], 3) == "   "
    assert spark([None], 0) == ""


def test_it_is_bounded_and_begins_afresh_with_another_job() -> None:
    history = History()
    for poll in range(POLLS + 20):
        status = healthy(poll % 7)
        status["scalars"] = {f"metric {n}": 1.0 for n in range(SCALARS_MAX + 10)}
        history.add(status)
    assert len(history.rate) == POLLS
    assert len(history.scalars) == SCALARS_MAX
    assert len(history.step_s) == 10
    status["replicas"] = status["replicas"][:4]
    history.add(status)
    assert set(history.step_s) == {"0", "1", "2", "3"}
    status["job"]["job_id"] = "another"
    history.add(status)
    assert len(history.rate) == 1
