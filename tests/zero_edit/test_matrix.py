"""Unmodified scripts heal: equal parameters and counters, whatever dies when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.jobs import was_late
from tests.zero_edit.matrix import CASES, KEPT, QUICK, Case, Outcome, run


def check(case: Case, directory: Path) -> None:
    """All replicas come to the same."""
    outcome = run(case, directory)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.is_equal, f"{outcome.ends}\n{outcome.output}"
    assert not outcome.differences, outcome.output
    if "all" not in case.kills and case.kills.count("@") < 3:
        assert outcome.joins or "set-up" in case.kills, outcome.output


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_quick(case: Case, tmp_path: Path) -> None:
    """A part of the matrix."""
    check(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matrix(case: Case, tmp_path: Path) -> None:
    """All of it."""
    check(case, tmp_path)


_UNDISTURBED: dict[Case, Outcome] = {}


@pytest.mark.slow
@pytest.mark.parametrize("case", KEPT, ids=str)
def test_in_place(case: Case, tmp_path: Path) -> None:
    """Workers that are replaced alone: nobody joins, and the end is that of an undisturbed run."""
    quiet = replace(case, kills="", is_kept=False)
    for name in ("quiet", "killed"):
        (tmp_path / name).mkdir()
    if quiet not in _UNDISTURBED:
        _UNDISTURBED[quiet] = run(quiet, tmp_path / "quiet")
    outcome = run(case, tmp_path / "killed")
    assert outcome.exit_code == 0, outcome.output
    if was_late(outcome.output):
        pytest.skip("this machine starts a process so slowly that the others go on without it")
    assert outcome.ends == _UNDISTURBED[quiet].ends, outcome.output
    assert "no step was lost" in outcome.output and not outcome.joins, outcome.output
