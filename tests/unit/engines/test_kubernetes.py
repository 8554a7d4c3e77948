"""The variables of pods, as the controllers set them, and what follows for ftrun's options."""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.config.layers import gather
from ftrun.config.settings import resolve
from ftrun.engines.kubernetes import INDEXED, LWS, TRAINER, Pod, read_kubernetes

TRAINER_POD = {
    "PET_NNODES": "4", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "3",
    "PET_MASTER_ADDR": "mine-node-0-0.mine", "PET_MASTER_PORT": "29400",
    "JOB_COMPLETION_INDEX": "3",
}  # fmt: skip
"""A pod of a TrainJob, as Trainer 2 sets them from mlPolicy.torch."""
LWS_POD = {
    "LWS_LEADER_ADDRESS": "ft-0.ft.team", "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "2",
}  # fmt: skip
INDEXED_POD = {"JOB_COMPLETION_INDEX": "5"}


def read(environ: dict[str, str], **flags: Any) -> Pod | None:
    return read_kubernetes(gather({"replicas": "4", **flags}, environ, None), environ)


def advice(environ: dict[str, str], gpus: int = 0, **flags: Any) -> dict[str, str]:
    stated = gather({"replicas": "4", **flags}, environ, None)
    pod = read_kubernetes(stated, environ)
    return {} if pod is None else pod.variables(stated, gpus)


def test_each_controller_tells_where_a_pod_stands() -> None:
    assert read(TRAINER_POD) == Pod(TRAINER, 3, 4, "8", "mine-node-0-0.mine")
    assert read(LWS_POD) == Pod(LWS, 2, 4, "", "ft-0.ft.team")
    assert read(INDEXED_POD) == Pod(INDEXED, 5)
    assert read({}) is None


@pytest.mark.parametrize("flags", [{"nodes": "1"}, {"standalone": True}, {"replicas": None}])
def test_a_job_of_its_own_or_in_torchruns_words_heeds_nothing(flags: dict[str, Any]) -> None:
    assert read(TRAINER_POD, **flags) is None


@pytest.mark.parametrize(
    ("environ", "flags", "gpus", "found"),
    [
        (TRAINER_POD, {}, 0, {"NODES": "4", "LIGHTHOUSE": "mine-node-0-0.mine:29510",
                              "WORKERS_PER_REPLICA": "8"}),
        (TRAINER_POD, {"replicas": "8"}, 0, {"NODES": "4", "LIGHTHOUSE": "mine-node-0-0.mine:29510",
                                             "WORKERS_PER_REPLICA": "4"}),
        (TRAINER_POD, {"replicas": "2:10", "lighthouse": "h:1"}, 0,
         {"NODES": "4", "WORKERS_PER_REPLICA": "2"}),
        (TRAINER_POD, {"replicas": "64", "nodes": "2", "workers_per_replica": "1",
                       "lighthouse": "h:1"}, 0, {}),
        ({**TRAINER_POD, "PET_NPROC_PER_NODE": "auto"}, {"lighthouse": "h:1"}, 8,
         {"NODES": "4", "WORKERS_PER_REPLICA": "8"}),
        ({**TRAINER_POD, "PET_NPROC_PER_NODE": "auto"}, {"lighthouse": "h:1", "device": "cpu"}, 8,
         {"NODES": "4"}),
        ({**TRAINER_POD, "PET_NPROC_PER_NODE": "auto"}, {"lighthouse": "h:1"}, 0, {"NODES": "4"}),
        ({**TRAINER_POD}, {"lighthouse": "h:1", "workers_per_replica": "16"}, 0,
         {"NODES": "4", "NPROC_PER_NODE": "8", "NODE_RANK": "3"}),
        ({"JOB_COMPLETION_INDEX": "2"}, {"lighthouse": "h:1", "workers_per_replica": "8"}, 4,
         {"NODE_RANK": "2"}),
        ({"PET_NNODES": "1", "PET_NPROC_PER_NODE": "4", "PET_MASTER_ADDR": "a"}, {}, 0,
         {"WORKERS_PER_REPLICA": "1"}),
        ({"PET_NNODES": "2:6", "PET_MASTER_ADDR": "fd00::1"}, {}, 0,
         {"NODES": "6", "LIGHTHOUSE": "[fd00::1]:29510"}),
        (LWS_POD, {}, 0, {"NODES": "4", "LIGHTHOUSE": "ft-0.ft.team:29510"}),
        ({"LWS_GROUP_SIZE": "1", "LWS_LEADER_ADDRESS": "a"}, {}, 0, {}),
        ({"LWS_GROUP_SIZE": "many"}, {}, 0, {}),
        (INDEXED_POD, {}, 0, {}),
    ],
)  # fmt: skip
def test_advice_is_for_options_that_nobody_has_stated(
    environ: dict[str, str], flags: dict[str, Any], gpus: int, found: dict[str, str]
) -> None:
    expected = {f"FTRUN_{name}": value for name, value in found.items()}
    assert advice(environ, gpus, **flags) == expected


def test_a_trainers_pod_is_a_node_of_one_job() -> None:
    """Nobody can leave out what the Trainer injects, so it is no reason to refuse a job."""
    environ = {**TRAINER_POD, "FTRUN_LIGHTHOUSE": "mine-lighthouse-0-0.mine:29510"}
    stated = gather({"replicas": "4"}, environ, None)
    pod = read_kubernetes(stated, environ)
    assert pod is not None
    found = resolve(("t.py",), gather({"replicas": "4"}, environ | pod.variables(stated, 0), None))
    assert (found.nodes, found.workers_per_replica, found.as_torchrun) == (4, 8, False)
    assert found.lighthouse == "mine-lighthouse-0-0.mine:29510"
    assert (found.master_addr, found.master_port, found.exit_with) == (None, None, "node")


def test_the_line_about_it_names_the_pod_and_the_options() -> None:
    pod = read(TRAINER_POD)
    assert pod is not None
    assert pod.notice(advice(TRAINER_POD)) == (
        "Kubeflow Trainer has started this pod as node 3, so: --nodes 4 "
        "--lighthouse mine-node-0-0.mine:29510 --workers-per-replica 8"
    )
    assert pod.notice({}) == ""
