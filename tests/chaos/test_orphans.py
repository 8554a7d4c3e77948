"""The orphan table as a test: ftrun leaves nothing, whichever process is killed."""

from __future__ import annotations

import pytest

from tests.chaos.orphans import CASES, GONE_S, end_one


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(CASES)), ids=[case for case, _, _ in CASES])
def test_nothing_is_left(index: int) -> None:
    case, strike, _ = CASES[index]
    row = end_one(case, strike, "ftrun", 12 * GONE_S)  # the table shows how soon
    assert row.family >= 9
    assert row.left == 0, row.who
