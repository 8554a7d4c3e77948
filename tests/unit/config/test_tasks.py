"""An ``ftrun`` that an engine has started several times alike."""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.base.errors import UserError
from ftrun.config.layers import advice_notice, gather
from ftrun.config.tasks import check_alone, place_of

STEP = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"}


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (STEP, "task 1 of 2 of a Slurm step"),
        ({"SLURM_STEP_NUM_NODES": "3", "SLURM_NODEID": "2"}, "node 2 of 3 of a Slurm step"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, "rank 0 of 4 of mpirun"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "rank 0 of 4 of an MPI launcher"),
        ({"PET_NNODES": "1:4", "PET_NODE_RANK": "3"}, "node 3 of 1:4 (PET_NNODES)"),
        ({"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}, "pod 1 of 2 of a LeaderWorkerSet"),
        ({"LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0"}, ""),
        ({"JOB_COMPLETION_INDEX": "0"}, "pod 0 of an Indexed Job of Kubernetes"),
        # A batch script, as Slurm 22.05 sets it with -N2 --ntasks-per-node=2, and a step of one.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_NODEID": "0"}, ""),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}, ""),
        ({"PET_NNODES": "1"}, ""),
        ({}, ""),
    ],
)
def test_the_engines_variables_tell_which_task_this_is(environ: dict[str, str], words: str) -> None:
    assert place_of(environ) == words


@pytest.mark.parametrize(
    "flags",
    [
        {"nodes": "2", "lighthouse": "head:29510"},
        {"nodes": "1"},
        {"nnodes": "1"},
        {"standalone": True},
    ],
)
def test_a_command_that_states_where_it_belongs_is_started(flags: dict[str, Any]) -> None:
    check_alone(gather(flags, STEP, None), STEP)


def test_whole_jobs_are_refused_with_the_remedy() -> None:
    for flags in ({}, {"replicas": "2"}, {"nproc_per_node": "2"}):
        with pytest.raises(UserError, match=r"task 1 of 2 of a Slurm step.*--lighthouse HOST:PORT"):
            check_alone(gather(flags, STEP, None), STEP)
    cluster = {"PET_NNODES": "2", "PET_NODE_RANK": "0"}
    with pytest.raises(UserError, match="PET_NNODES"):
        check_alone(gather({"replicas": "2"}, cluster, None), cluster)
    check_alone(gather({}, {}, None), {})


def test_torchruns_variables_are_named_beside_replicas_and_not_obeyed() -> None:
    environ = {"PET_NPROC_PER_NODE": "8", "PET_NNODES": "2", "PET_MAX_RESTARTS": ""}
    stated = gather({"replicas": "2"}, environ, None)
    assert not any(stated[name].is_given for name in ("nproc_per_node", "nnodes"))
    (line,) = advice_notice(stated, environ)
    assert line.startswith("PET_NNODES=2 and PET_NPROC_PER_NODE=8: torchrun's variables have no")
    without = gather({}, environ, None)
    assert without["nproc_per_node"].value == "8"
    assert advice_notice(without, environ) == []
