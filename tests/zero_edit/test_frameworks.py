"""Scripts on frameworks heal as they are; each test needs its framework.

pip install transformers accelerate && pytest -m slow tests/zero_edit/test_frameworks.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zero_edit.matrix import Case, run

CASES = [
    ("transformers", Case("trainer.py", "", "1@train 20")),
    ("transformers", Case("trainer.py", "", "0@train 20")),
    ("accelerate", Case("accelerated.py", "", "1@train 40")),
    ("accelerate", Case("accelerated.py", "", "0@train 41")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("package", "case"), CASES, ids=str)
def test_a_script_on_a_framework_heals(package: str, case: Case, tmp_path: Path) -> None:
    pytest.importorskip(package)
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    calm = run(Case(case.script), tmp_path / "calm")
    assert calm.exit_code == 0 and calm.is_equal, calm.output
    outcome = run(case, tmp_path / "killed")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.is_equal and not outcome.differences, f"{outcome.ends}\n{outcome.output}"
    assert outcome.counters == calm.counters
    assert outcome.joins, outcome.output
