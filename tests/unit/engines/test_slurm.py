"""Slurm's variables, as a real one (22.05) has set them, and lists of nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.engines.slurm import node_names, read_slurm

RECORDED = Path(__file__).with_name("slurm")


def variables(shape: str) -> dict[str, str]:
    """Those that `python -m tests.engines.record` has written of a shape of job."""
    lines = (RECORDED / f"{shape}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


STEP = {**variables("step"), "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train"}
REQUEUE = ("scontrol", "requeue", "7")
CANCEL = ("scancel", "7")


@pytest.mark.parametrize(
    ("shape", "node", "nodes", "task", "attempt"),
    [
        ("step", 1, "n0 n1 n2", 0, 0),
        ("two_tasks_a_node", 1, "n0 n1", 1, 0),
        ("fewer_nodes_than_the_job", 1, "n0 n1", 0, 0),
        ("array", 1, "n0 n1", 0, 0),
        ("ranges", 2, "n0 n2 n3", 0, 0),
        ("heterogeneous", 2, "n0 n1 n2", 0, 0),
        ("second_step", 0, "n0 n1", 0, 0),
        ("salloc", 1, "n2 n3", 0, 0),
        ("srun", 1, "n0 n1", 0, 0),
        ("requeued", 1, "n0 n1", 0, 1),
        ("one_task", 0, "n0", 0, 0),
    ],
)
def test_a_task_of_a_step_has_a_place(
    shape: str, node: int, nodes: str, task: int, attempt: int
) -> None:
    environ = variables(shape)
    place = read_slurm(environ)
    assert place is not None
    assert (place.node, " ".join(place.nodes), place.task) == (node, nodes, task)
    assert place.job == f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    assert (place.engine, place.attempt) == ("Slurm", attempt)
    assert place.launcher.endswith(":" + environ["SLURM_SRUN_COMM_PORT"])
    assert place.own_name == environ["SLURMD_NODENAME"]


def test_all_shapes_are_read() -> None:
    found = {path.stem: read_slurm(variables(path.stem)) for path in RECORDED.glob("*.env")}
    assert {shape for shape, place in found.items() if place is None} == {"batch"}
    second = found["second_step"]
    assert second is not None
    assert second.job.endswith(".1")


def test_a_task_of_an_array_is_queued_again_by_itself() -> None:
    place, environ = read_slurm(variables("array")), variables("array")
    assert place is not None
    assert environ["SLURM_JOB_ID"] == environ["SLURM_ARRAY_JOB_ID"]  # that would mean all of it
    assert place.requeue == ("scontrol", "requeue", f"{environ['SLURM_JOB_ID']}_3")
    plain = read_slurm(STEP)
    assert plain is not None
    assert plain.requeue == REQUEUE


def test_the_parts_of_a_heterogeneous_job_have_one_name() -> None:
    """TorchX makes each node a part with a name of its own."""
    first = {"SLURM_JOB_NAME_HET_GROUP_0": "train-0"}
    found = [read_slurm({**STEP, **first, "SLURM_JOB_NAME": f"train-{part}"}) for part in (1, 2)]
    assert [place.name for place in found if place is not None] == ["train-0", "train-0"]


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_STEP_ID": "batch"},
        {"SLURM_STEP_NODELIST": ""},
        {"SLURM_NODEID": "3"},
        {"SLURM_LOCALID": "-"},
        {"SLURM_SRUN_COMM_PORT": "../x"},
    ],
)
def test_odd_variables_are_no_place(change: dict[str, str]) -> None:
    assert read_slurm({**STEP, **change}) is None


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


@pytest.mark.parametrize(
    ("address", "pattern", "label"),
    [
        ("n1", "node", ""),
        ("s0.s4.n1", "switch.switch.node", "s0.s4"),
        ("b3.n1", "block.node", "b3"),
        ("s0.n1.lan", "switch.node", ""),
        ("", "", ""),
    ],
)
def test_nodes_below_one_switch_are_near_each_other(address: str, pattern: str, label: str) -> None:
    variables = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    place = read_slurm({**STEP, **variables})
    assert place is not None
    assert place.topology == label
