"""A replica that trains locally is killed at a random moment: no weights differ afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.jobs import FORMS, run

SHORT = "streaming"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "form",
    [form if form == SHORT else pytest.param(form, marks=pytest.mark.slow) for form in FORMS],
)
def test_global_weights_stay_equal(tmp_path: Path, form: str) -> None:
    outcome = run(tmp_path, form, kills=2, seed=1)
    assert outcome.is_right, outcome.output
    assert outcome.kills == 2 and outcome.compared >= 15 and len(outcome.ends) == 2
