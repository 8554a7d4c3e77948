"""Workers of one group that die at chosen places of their calls: the end is equal to the bit."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.jobs import Job
from tests.zero_edit.matrix import SCRIPTS

pytestmark = pytest.mark.timeout(300)

KINDS = {"ddp": 3, "fsdp": 3, "hsdp": 4, "tensor": 2, "both": 4}
"""How many workers each has. The last three make calls on subgroups."""
FEW = ("ddp", "tensor")
"""A step of theirs makes half as many calls as the others'."""
DEATHS = [
    (1, 1, "before", 60),
    (2, 1, "issued", 75),
    (2, 2, "logged", 70),  # in its replay: a call that its predecessor had logged
    (0, 1, "issued", 91),
    (0, 2, "logged", 90),
    *((0, life, "in a copy", 16) for life in (2, 3)),
    (1, 2, "has its result", 130),
    (3, 1, "issued", 132),
    *((2, life, "before", 133) for life in (2, 3)),
    (3, 2, "before", 150),
]
OTHERS = [
    pytest.param(kind, backend, marks=pytest.mark.slow)
    for kind, backend in (("ddp", "gloo"), ("tensor", "gloo"), ("both", "gloo"), ("hsdp", "nccl"))
]


@pytest.mark.parametrize(("kind", "backend"), [("fsdp", "gloo"), ("hsdp", "gloo"), *OTHERS])
def test_deaths_at_places_of_calls(tmp_path: Path, kind: str, backend: str) -> None:
    """``backend``: the groups are Gloo's, or a double's that behave as NCCL's."""
    workers, found = KINDS[kind], []
    options = ("--workers-per-replica", str(workers), "--device", "cpu")
    planned = [
        (*who, place, number // 2 if kind in FEW and place != "in a copy" else number)
        for *who, place, number in DEATHS
        if who[0] < workers
        if backend == "gloo" or place != "logged"  # over the double, a second death stands still
    ]
    for name, deaths in (("off", []), ("auto", planned)):
        (tmp_path / name).mkdir()
        given = (*options, "--memory-snapshots", name)
        args = (kind, json.dumps(deaths), backend if deaths else "gloo")
        with Job(tmp_path / name, SCRIPTS / "replayed.py", *given, args=args) as job:
            assert job.end() == 0
            found.append(sorted(re.findall(r"end \d \w+$", job.output, re.MULTILINE)))
            text = job.output
    assert len(found[0]) == workers
    assert found[0] == found[1]
    died = Counter((tmp_path / "auto/died").read_text().splitlines())
    # A replacement that begins after a call that its predecessor has logged does not replay it.
    assert {f"{x[0]} {x[2]}" for x in planned} - died.keys() <= {"0 logged", "2 logged"}
    starts = [(tmp_path / "auto" / f"started-{rank}").stat().st_size for rank in range(workers)]
    assert sum(starts) == workers + died.total(), "nobody is started but for one that has died"
    assert f" {died.total()} restarts" in text
    assert "cannot be replaced alone" not in text
