"""Scripts on frameworks heal as they are; each case needs its package.

pip install transformers accelerate lightning
pytest -m slow -rs tests/zero_edit/test_frameworks.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zero_edit.matrix import FRAMEWORKS, Case, Outcome, run

CALM: dict[tuple[str, str], Outcome] = {}


def calm(case: Case, directory: Path) -> Outcome:
    """The same script, undisturbed; it runs once for all cases."""
    key = (case.script, case.args)
    if key not in CALM:
        CALM[key] = run(Case(case.script, case.args, "", case.needs, case.replicas), directory)
    outcome = CALM[key]
    assert outcome.exit_code == 0 and outcome.is_equal, outcome.output
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("case", FRAMEWORKS, ids=str)
def test_a_script_on_a_framework_heals(case: Case, tmp_path: Path) -> None:
    pytest.importorskip(case.needs)
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    undisturbed = calm(case, tmp_path / "calm")
    outcome = run(case, tmp_path / "killed")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.is_equal and not outcome.differences, f"{outcome.ends}\n{outcome.output}"
    assert outcome.counters == undisturbed.counters
    if len({kill.partition("@")[2] for kill in case.kills.split(",")}) == case.kills.count("@"):
        assert outcome.joins, outcome.output
