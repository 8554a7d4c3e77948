"""Workers of one group that die at chosen places of their calls: the end is equal to the bit."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import Job
from tests.zero_edit.matrix import SCRIPTS

pytestmark = pytest.mark.timeout(300)

DEATHS = [
    (1, 1, "before", 60),
    (2, 1, "issued", 75),
    (2, 2, "logged", 70),  # in its replay: a call that its predecessor had logged
    (0, 1, "has its result", 90),
    (1, 2, "logged", 110),
    (0, 2, "in a copy", 20),
    (2, 3, "in an object", 150),  # what its first call gives comes from the log
]


OPTIONS = ("--workers-per-replica", "3", "--device", "cpu")
_UNDISTURBED: dict[str, list[str]] = {}


def run(
    directory: Path,
    kind: str,
    deaths: Sequence[tuple[Any, ...]],
    *more: str,
    options: tuple[str, ...] = (),
    memory: str = "auto",
) -> tuple[list[str], str]:
    """What the workers have printed at their ends, and all output."""
    directory.mkdir()
    given = (*OPTIONS, *options, "--memory-snapshots", memory)
    args = (kind, json.dumps(deaths), *more)
    with Job(directory, SCRIPTS / "replayed.py", *given, args=args) as job:
        assert job.end() == 0
        found = sorted(re.findall(r"^\[0\.\d\] end \d \w+$", job.output, re.MULTILINE))
        return found, job.output


def undisturbed(directory: Path, kind: str) -> list[str]:
    """The ends of a job that nobody disturbs, which runs once."""
    if kind not in _UNDISTURBED:
        _UNDISTURBED[kind], _ = run(directory / "off", kind, [], memory="off")
    assert len(_UNDISTURBED[kind]) == 3
    return _UNDISTURBED[kind]


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("ddp", "static")]


@pytest.mark.parametrize("kind", [*SLOW, "fsdp"])
def test_deaths_at_places_of_calls(tmp_path: Path, kind: str) -> None:
    planned = [
        (*who, place, number // 2 if kind != "fsdp" and place != "in a copy" else number)
        for *who, place, number in DEATHS  # of DDP there are half as many calls in a step
    ]
    found, text = run(tmp_path / "auto", kind, planned)
    of_full, text_of_full = run(tmp_path / "full", kind, [(1, 1, "before", 70)], "2")
    assert undisturbed(tmp_path, kind) == found == of_full
    died = Counter((tmp_path / "auto/died").read_text().splitlines())
    # A replacement that begins after a call that its predecessor has logged does not replay it.
    assert {f"{x[0]} {x[2]}" for x in DEATHS} - died.keys() <= {"2 logged"}
    starts = [(tmp_path / "auto" / f"started-{rank}").stat().st_size for rank in range(3)]
    assert sum(starts) == 3 + died.total(), "nobody is started but for one that has died"
    restarts = re.search(r"finished, 30 steps, (\d+) restarts", text)
    assert restarts is not None and int(restarts[1]) <= died.total(), "some deaths may be one"
    assert "cannot be replaced alone" not in text
    assert "Worker 1 cannot be replaced alone, so all workers restart" in text_of_full
    assert re.search(
        r"all resumed from step [1-9]\d*, the last that each had in memory", text_of_full
    )
    starts = [(tmp_path / "full" / f"started-{rank}").stat().st_size for rank in range(3)]
    assert starts == [2, 2, 2], "from memory"


def test_who_began_again_and_gets_another_input_does_not_go_on(tmp_path: Path) -> None:
    """All begin again from memory, because a log was full. Then what they get is not the same."""
    _, text = run(tmp_path / "other", "fsdp", [(1, 1, "before", 70)], "2", "other")
    assert "it would continue without the same input of its model as before, at replayed.py" in text
    assert "all resumed from step" not in text
    starts = [(tmp_path / f"other/started-{rank}").stat().st_size for rank in range(3)]
    assert starts == [3, 3, 3], "first from memory, and then from the beginning"


def test_after_a_mend_from_which_nobody_goes_on_all_begin_again(tmp_path: Path) -> None:
    """A replacement with a bug makes a call more than its peers. Then no call ever ends."""
    options = ("--hang-timeout", "5")
    deaths = [(2, 1, "in an object", 150)]
    found, text = run(tmp_path / "auto", "fsdp", deaths, "twice", options=options)
    assert undisturbed(tmp_path, "fsdp") == found
    assert "the workers of a group wait in calls that cannot meet (worker" in text
    assert re.search(r"all resumed from step [1-9]\d*, the last that each had in memory", text)
    starts = [(tmp_path / "auto" / f"started-{rank}").stat().st_size for rank in range(3)]
    assert starts == [2, 2, 3]
