"""Slurm's variables, as 22.05 sets them, and lists of nodes."""

from __future__ import annotations

import pytest

from ftrun.engines.place import Place
from ftrun.engines.slurm import node_names, read_slurm

STEP = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_JOB_NUM_NODES": "3",
    "SLURM_JOB_NODELIST": "n[0-2]", "SLURM_LOCALID": "0", "SLURM_NNODES": "3",
    "SLURM_NODEID": "1", "SLURM_NODELIST": "n[0-2]", "SLURM_NPROCS": "3", "SLURM_NTASKS": "3",
    "SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEPID": "0",
    "SLURM_SRUN_COMM_HOST": "10.0.0.9", "SLURM_SRUN_COMM_PORT": "40565",
    "SLURM_STEP_NODELIST": "n[0-2]",
    "SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)", "SLURM_SUBMIT_HOST": "hub",
    "SLURM_TASKS_PER_NODE": "1(x3)", "SLURMD_NODENAME": "n1",
}  # fmt: skip
"""The second task of `srun -N3` in a batch job of three nodes."""

REQUEUE = ("scontrol", "requeue", "7")
CANCEL = ("scancel", "7")


def test_a_task_of_a_step_has_a_place() -> None:
    nodes = ("n0", "n1", "n2")
    assert read_slurm(STEP) == Place(
        "Slurm", 1, nodes, 0, "train", "7.0", 0, "10.0.0.9:40565", REQUEUE, CANCEL
    )
    again = read_slurm({**STEP, "SLURM_RESTART_COUNT": "2", "SLURM_STEP_ID": "4"})
    assert again == Place(
        "Slurm", 1, nodes, 0, "train", "7.4", 2, "10.0.0.9:40565", REQUEUE, CANCEL
    )
    second = read_slurm({**STEP, "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "6"})
    assert second is not None
    assert second.task == 1


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_STEP_ID": "batch"},
        {"SLURM_STEP_NODELIST": ""},
        {"SLURM_NODEID": "3"},
        {"SLURM_LOCALID": "-"},
        {"SLURM_SRUN_COMM_PORT": "../x"},
    ],
)
def test_a_step_of_one_task_and_odd_variables_are_no_place(change: dict[str, str]) -> None:
    assert read_slurm({**STEP, **change}) is None


def test_a_batch_script_is_in_no_step() -> None:
    batch = {name: value for name, value in STEP.items() if "STEP" not in name}
    assert read_slurm(batch) is None


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n0", "n0"),
        ("n[0-2,5],m1", "n0 n1 n2 n5 m1"),
        ("gpu[08-11]", "gpu08 gpu09 gpu10 gpu11"),
        ("r[1-2]n[0-1]-ib,x", "r1n0-ib r1n1-ib r2n0-ib r2n1-ib x"),
        ("a.b-c,d", "a.b-c d"),
    ],
)
def test_lists_of_nodes(text: str, names: str) -> None:
    assert " ".join(node_names(text)) == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no list of nodes"),
        ("n[0-99999999]", "too long"),
        ("n[x]", "invalid literal"),
        ("n[0-9999][0-9999]", "no list of nodes"),
    ],
)
def test_lists_that_are_none(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        node_names(text)
