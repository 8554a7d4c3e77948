"""Iterators that a script or its generators ask for batches: a replacement's go on too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import Job
from tests.zero_edit.matrix import SCRIPTS

pytestmark = pytest.mark.timeout(300)

ON = ("--workers-per-replica", "2", "--device", "cpu", "--memory-snapshots")
DEATHS = ["1 in 3", "0 after 8", "1 in 13", "0 in 20"]
"""In the first epoch of each loader, and in later ones."""


@pytest.mark.parametrize(
    "kind", ["counted", "epochs", pytest.param("endless", marks=pytest.mark.slow)]
)
def test_the_end_is_as_undisturbed(tmp_path: Path, kind: str) -> None:
    found = []
    for name, deaths in (("off", []), ("auto", DEATHS)):
        (tmp_path / name).mkdir()
        args = (kind, *deaths)
        with Job(tmp_path / name, SCRIPTS / "iterators.py", *ON, name, args=args) as job:
            assert job.end() == 0, job.output
            found.append(sorted(re.findall(r"^\[0\.\d\] end \w+$", job.output, re.MULTILINE)))
            mended = re.findall(r"died: SIGKILL\. Its work since step \d+ was", job.output)
            assert len(mended) == len(deaths), job.output
    assert len(found[0]) == 2
    assert found[0] == found[1]
