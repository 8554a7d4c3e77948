"""Deaths in the middle of a step: the reduced sums, no lost step, equal replicas at the end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.job import Job, assert_one_state_per_lineage, hashes

pytestmark = pytest.mark.timeout(1200)
SCRIPT = Path(__file__).parent / "repair.py"

FEW = ("default", "views", "skipped")
MORE = (
    "unused",
    "accumulate",
    "scaler",
    "pure",
    "unused-views",
    "static",
    "accumulate-views",
    "clip",
    "torch-scaler",
)


def run(directory: Path, modes: tuple[str, ...], replicas: int = 3, **more: Any) -> Job:
    options = ("--replicas", str(replicas), "--max-restarts", "100")
    more = {"E2E_MODES": ",".join(modes), **more}
    with Job(directory, *options, script=SCRIPT, **more) as job:
        assert job.end() == 0, job.output
    assert len(hashes(job)) == replicas and len(set(hashes(job))) == 1, job.output
    assert_one_state_per_lineage(job)
    waits = re.findall(r"Restart \d+ of \d+ in [^.]*", job.output)
    assert not waits, (waits, job.output)  # a replica that has trained is started again at once
    return job


def verdicts(job: Job, mode: str) -> dict[str, list[str]]:
    """By replica: the kind of mean in the step of the death, and the outcome of that step."""
    found = sorted(job.out.glob(f"verdict-?-{mode}"))
    return {path.name.split("-")[1]: path.read_text().split("\n")[:-1] for path in found}


def assert_no_step_is_lost(job: Job, replica: str) -> None:
    """A survivor's process has committed every step there was, one after the other.

    Except a step whose results had reached only its peers when a replica died: it healed over it.
    """
    (records,) = (r for name, r in job.records().items() if name.startswith(f"{replica}."))
    steps = [step for step, _, _ in records]
    assert steps == sorted(steps)
    for step in set(range(1, steps[-1] + 1)) - set(steps):
        assert re.search(rf"Replica {replica} healed from [^:]+: step {step},", job.output), step
        assert any(step == at for found in job.records().values() for at, _, _ in found), step


def committed_alone(job: Job) -> int:
    """How often replica 2 has committed a step whose result reached nobody else before it died.

    The survivors repair that step without it, and the count of the mode's steps begins again.
    """
    records = job.records()
    of_others = {x for name, found in records.items() if name[0] != "2" for x in found}
    own = [found[-1] for name, found in records.items() if name[0] == "2" and found]
    return sum(last not in of_others for last in own)


def repaired(mode: str) -> dict[str, list[str]]:
    told = "infinite" if mode == "skipped" else "survivors"
    return {replica: [f"{told} committed"] for replica in "01"}


def test_a_death_in_the_middle_of_a_step_is_repaired(tmp_path: Path) -> None:
    job = run(tmp_path, FEW)
    for mode in FEW:
        assert verdicts(job, mode) == repaired(mode), (mode, job.output)  # S7
    for replica in "01":
        assert_no_step_is_lost(job, replica)
    deaths = re.findall(r"replica 2 \(pid \d+\) died: SIGKILL", job.output)
    # A survivor that healed over the step of a death has not repaired it: the next step is tried.
    healed = re.findall(r"Replica [01] healed from", job.output)
    more = len(healed) + committed_alone(job)
    assert len(FEW) <= len(deaths) <= len(FEW) + more, (job.records(), job.output)


@pytest.mark.slow
def test_in_every_other_kind_of_training_as_well(tmp_path: Path) -> None:
    job = run(tmp_path, MORE)
    for mode in MORE:
        assert verdicts(job, mode) == repaired(mode), (mode, job.output)
    for replica in "01":
        assert_no_step_is_lost(job, replica)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "views"])
def test_who_would_rather_have_the_memory_computes_the_step_again(
    tmp_path: Path, mode: str
) -> None:
    job = run(tmp_path, (mode,), E2E_REPAIR="discard")
    for told in verdicts(job, mode).values():
        assert told[0].endswith("discarded") and told[-1] == "survivors committed", told


@pytest.mark.slow
def test_two_die_in_the_same_step(tmp_path: Path) -> None:
    modes = ("default", "views")
    job = run(tmp_path, modes, replicas=4, E2E_VICTIMS="1,3")
    for mode in modes:
        for told in verdicts(job, mode).values():
            assert told[-1] == "survivors committed", told
            assert all(line.endswith("committed") for line in told), told
    for replica in "02":
        assert_no_step_is_lost(job, replica)
