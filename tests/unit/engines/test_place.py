"""What follows from a place, and which runs have one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.base.errors import UserError
from ftrun.config.layers import gather
from ftrun.engines.place import JOB_ID_CHARS_MAX, Place
from ftrun.engines.readers import place_of_task
from tests.unit.engines.test_slurm import CANCEL, REQUEUE, STEP

LAUNCHER = f"{STEP['SLURM_SRUN_COMM_HOST']}:{STEP['SLURM_SRUN_COMM_PORT']}"
LAUNCH = STEP["SLURM_SRUN_COMM_PORT"]
PLACE = Place("Slurm", 1, ("n0", "n1", "n2"), 0, "train", "7.0", 0, LAUNCHER, REQUEUE, CANCEL)


def test_names() -> None:
    assert (PLACE.own_name, PLACE.others) == ("n1", ("n0", "n2"))
    assert PLACE.job_id() == "train-7.0"
    assert PLACE.agent_id_of("n1") == "n1-7.0.0"
    again = Place("Slurm", 1, ("n0",), 1, "-my job/" + 80 * "x", "7.0", 3)
    assert again.job_id().startswith("my-job-xxx")
    assert again.job_id().endswith("x-7.0.attempt-3")
    assert len(again.job_id()) == JOB_ID_CHARS_MAX
    assert Place("Slurm", 0, ("n0",), 0, "...", "7.0").job_id() == "job-7.0"
    assert "task 1 of n1" in Place("Slurm", 1, ("n0", "n1"), 1, "", "7.0").needless()


def test_each_attempt_meets_elsewhere() -> None:
    again = Place("Slurm", 1, PLACE.nodes, 0, "train", "7.0", 1)
    assert PLACE.meeting(Path("/logs/a")) == Path(f"/logs/a/lighthouse-slurm-7.0.0-{LAUNCH}")
    assert again.meeting(Path("/logs/a")) == Path("/logs/a/lighthouse-slurm-7.0.1")


def test_what_is_stated_stays() -> None:
    assert PLACE.variables(gather({"replicas": "2"}, {}, None)) == {
        "FTRUN_NODES": "3",
        "FTRUN_NODE_RANK": "1",
        "FTRUN_EXIT_WITH": "job",
        "FTRUN_JOB_ID": "train-7.0",
    }
    near = replace(PLACE, topology="s0.s4").variables(gather({"replicas": "2"}, {}, None))
    assert near["FTRUN_TOPOLOGY"] == "s0.s4"
    stated = gather(
        {"job_id": "mine", "exit_with": "node", "node_rank": "0"}, {"FTRUN_NODES": "2"}, None
    )
    assert PLACE.variables(stated) == {}


def test_a_job_in_our_own_words_is_brought_together() -> None:
    assert place_of_task(gather({"replicas": "2"}, STEP, None), STEP) == PLACE
    assert place_of_task(gather({"replicas": "2", "nodes": "2"}, STEP, None), STEP) == PLACE


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"nproc_per_node": "2"},
        {"replicas": "2", "nodes": "1"},
        {"replicas": "2", "lighthouse": "head:29510"},
        {"replicas": "2", "standalone": True},
    ],
)
def test_others_are_left_alone(flags: dict[str, Any]) -> None:
    assert place_of_task(gather(flags, STEP, None), STEP) is None


def test_without_an_engine_there_is_no_place() -> None:
    assert place_of_task(gather({"replicas": "2"}, {}, None), {}) is None
    with pytest.raises(UserError, match="--requeue is for a job in a step of Slurm"):
        place_of_task(gather({"replicas": "2", "requeue": True}, {}, None), {})
