"""Unmodified scripts heal: equal parameters and counters, whatever dies when."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zero_edit.matrix import CASES, QUICK, Case, run


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
