"""torchrun's options: what they mean to ftrun, and that none is missing or means nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ftrun.base.errors import UserError
from ftrun.config.options import OPTIONS, TORCHRUN_NAMES
from ftrun.config.settings import resolve
from ftrun.config.torchrun import notices, variable_notices
from tests.unit.run_settings import resolved, stated

CORES = len(os.sched_getaffinity(0))
DOC = Path(__file__).parents[3] / "docs" / "TORCHRUN_REFERENCE.md"


def test_torchruns_spelling_of_a_job_has_torchruns_meaning() -> None:
    found = resolved(nproc_per_node="4")
    assert (found.as_torchrun, found.workers_per_replica, found.replicas) == (True, 4, 1)
    assert (found.max_restarts, found.grace_s) == (0, 30.0)
    assert resolved(standalone=True, max_restarts="2").max_restarts == 2


def test_replicas_of_several_workers_have_ftruns_meaning() -> None:
    found = resolved(replicas="2", nproc_per_node="4")
    assert (found.as_torchrun, found.workers_per_replica, found.replicas) == (False, 4, 2)
    assert (found.max_restarts, found.grace_s) == (10, 10.0)
    assert not resolved().as_torchrun


@pytest.mark.parametrize(
    ("text", "gpus", "count"),
    [("3", 0, 3), ("cpu", 8, CORES), ("auto", 0, CORES), ("auto", 8, 8),
     ("gpu", 8, 8)],
)  # fmt: skip
def test_workers_by_number_or_by_device(text: str, gpus: int, count: int) -> None:
    assert resolved(nproc_per_node=text, gpus=gpus).workers_per_replica == count


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ({}, (None, None)),
        ({"master_addr": "h", "master_port": "5"}, ("h", 5)),
        ({"rdzv_endpoint": "h:5"}, ("h", 5)),
        ({"rdzv_endpoint": "h"}, ("h", None)),
        ({"rdzv_endpoint": "[::1]:5"}, ("::1", 5)),
        ({"rdzv_endpoint": "h:5", "master_port": "6"}, ("h", 6)),
        ({"master_port": "0"}, (None, None)),
        ({"rdzv_endpoint": "h:5", "standalone": True}, (None, None)),
    ],
)
def test_where_workers_meet(flags: dict[str, Any], found: tuple[str | None, int | None]) -> None:
    settings = resolved(**flags)
    assert (settings.master_addr, settings.master_port) == found


def test_a_rendezvous_id_names_the_job() -> None:
    assert resolved(rdzv_id="run7").job_id == "run7"
    assert resolved(rdzv_id="none").job_id.startswith("t-")


def test_workers_of_a_group_are_shared_by_its_nodes() -> None:
    place = {"nnodes": "4", "rdzv_endpoint": "h:1"}
    assert resolved(workers_per_replica="32", **place).workers_per_replica == 8  # type: ignore[arg-type]
    both = resolved(workers_per_replica="32", nproc_per_node="8", **place)  # type: ignore[arg-type]
    assert both.workers_per_replica == 8
    assert resolved(workers_per_replica="3", standalone=True, **place).workers_per_replica == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"nnodes": "2", "rdzv_endpoint": "h:1", "workers_per_replica": "3"}, "Give a multiple"),
        ({"nnodes": "1:2", "rdzv_endpoint": "h:1", "workers_per_replica": "2"}, "--nproc-per-node"),
        ({"nnodes": "2"}, "where do the nodes meet.*--rdzv-endpoint HOST:PORT on every node"),
        ({"nnodes": "2", "replicas": "2"}, "nodes of one group.*--nodes 2 --replicas 2"),
        ({"nnodes": "2", "nodes": "3"}, "--nnodes 2 and --nodes 3 differ"),
        ({"nnodes": "0"}, "give N, or MIN:MAX"),
        ({"nnodes": "4:2"}, "give N, or MIN:MAX"),
        ({"nnodes": "1:2:3"}, "give N, or MIN:MAX"),
        ({"nnodes": "2", "node_rank": "2"}, "there is no such node with --nnodes 2"),
        ({"nnodes": "2", "rdzv_endpoint": "h:1", "rdzv_conf": "join_timeout=x"}, "give seconds"),
        (
            {
                "nnodes": "2",
                "rdzv_endpoint": "h:1",
                "rdzv_conf": "read_timeout=0",
                "rdzv_backend": "c10d",
            },
            "give seconds above 0",
        ),
        ({"node_rank": "1"}, "there is no such node with --nodes 1"),
        ({"nproc_per_node": "gpu", "device": "cpu", "gpus": 8}, "no CUDA device"),
        ({"nproc_per_node": "xpu"}, "CUDA devices and CPUs only"),
        ({"rdzv_conf": "timeout="}, "'timeout='"),
        ({"nproc_per_node": "gpu"}, "no CUDA device"),
        ({"nproc_per_node": "many"}, "give a number, auto, cpu or gpu"),
        ({"nproc_per_node": "0"}, "give a number, auto, cpu or gpu"),
        ({"nproc_per_node": "2", "workers_per_replica": "3"}, "two names.*differ"),
        ({"rdzv_backend": "mine"}, "mine is not known.*static, c10d, etcd, etcd-v2"),
        ({"rdzv_conf": "timeouts=3"}, "'timeouts=3'.*Did you mean timeout"),
        ({"rdzv_endpoint": "h:x"}, "not HOST:PORT"),
        ({"rdzv_id": "a", "job_id": "b"}, "two names.*differ"),
        ({"start_method": "thread"}, "give one of spawn, fork, forkserver"),
        ({"numa_binding": "core"}, "give one of node"),
        ({"logs_specs": "mine"}, "itself, without a plugin.*Leave it out, or give default"),
        ({"event_log_handler": "mine"}, "has no torch.*or give console.*ftrun.elastic"),
        ({"monitor_interval": "0"}, "seconds above 0"),
        ({"no_python": True, "module": True}, "--module and --no-python exclude"),
        ({"master_port": "70000"}, "to 65535"),
    ],
)
def test_what_cannot_keep_its_meaning_is_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolved(**flags)


def test_the_table_for_people_has_all_options_of_torchrun() -> None:
    text = DOC.read_text()
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `-")]
    for option in OPTIONS:
        if option.name in TORCHRUN_NAMES:
            assert any(flag in row for row in rows for flag in option.flags), option.name
    assert "not yet" not in text


def test_a_switch_that_is_off_spells_no_job() -> None:
    assert not resolve(("t.py",), stated({"PET_STANDALONE": "0"})).as_torchrun
    assert resolve(("t.py",), stated({"PET_STANDALONE": "1"})).as_torchrun
    assert resolved(workers_per_replica="2", standalone=True).max_restarts == 0


def test_a_cluster_may_repeat_what_nodes_says() -> None:
    flags = {"nodes": "2", "replicas": "2", "lighthouse": "h:1"}
    found = resolve(("t.py",), stated({"PET_NNODES": "2", "PET_NODE_RANK": "1"}, **flags))
    assert (found.nodes, found.as_torchrun) == (2, False)


def test_one_node_of_several_runs_where_no_other_can_come() -> None:
    flags = {"nnodes": "1:2", "rdzv_endpoint": "localhost:0"}
    assert resolved(**flags).as_torchrun  # type: ignore[arg-type]
    assert notices(stated(**flags)) == ["--nnodes 1:2: this node runs the group alone."]  # type: ignore[arg-type]
    assert not notices(stated(nnodes="1:1"))
    assert not notices(stated(nnodes="2", rdzv_endpoint="localhost"))
    assert not notices(stated())
    (line,) = notices(stated(nnodes="4", spare_nodes=1, rdzv_endpoint="h:1"))
    assert "each further node that runs this command without --node-rank stands by" in line
    assert not notices(stated(replicas=4, nodes=4, nnodes="4", spare_nodes=1))


def test_an_endpoint_that_standalone_overrides_is_named() -> None:
    lines = notices(stated({"PET_RDZV_ENDPOINT": "h:5"}, standalone=True))
    assert lines == ["PET_RDZV_ENDPOINT has no effect beside --standalone, as under torchrun."]
    assert not notices(stated(rdzv_endpoint="localhost:0", standalone=True))
    assert not notices(stated(rdzv_endpoint="h:5"))


def test_torchs_own_logs_and_handlers_have_names() -> None:
    found = resolved(logs_specs="default", event_log_handler="dynamic_rendezvous")
    assert found.event_log_handler == "dynamic_rendezvous"
    assert resolved().event_log_handler == "null"


def test_settings_of_a_rendezvous_may_stand_in_quotes() -> None:
    assert resolved(rdzv_conf="'join_timeout=5,last_call_timeout=1,timeout=5'").as_torchrun


def test_variables_of_torchruns_agent_without_effect_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert variable_notices({"TORCHELASTIC_HEALTH_CHECK_PORT": ""}) == []
    lines = variable_notices(
        {
            "TORCHELASTIC_HEALTH_CHECK_PORT": "9999",
            "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "30",
            "PYTHON_EXEC": "/x/python",
        }
    )
    assert [line.split()[0] for line in lines] == [
        "TORCHELASTIC_HEALTH_CHECK_PORT",
        "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
        "PYTHON_EXEC:",
    ]
    monkeypatch.setenv("PYTHON_EXEC", "/x/python")
    assert resolved("t.py").script.python == "/x/python"
    assert resolved("t", module=True).script.python == "/x/python"
    for kind in ("no_python", "run_path"):
        assert resolved("t", **{kind: True}).script.python == ""


def test_torchs_health_check_server_is_still_one_that_answers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.distributed.elastic.agent.server import health_check_server as module

    said: list[str] = []
    monkeypatch.setattr(module.log, "warning", lambda text, *_: said.append(text))
    server = module.create_healthcheck_server(lambda: 0, 0, 1)
    assert type(server) is module.HealthCheckServer
    server.start()
    assert said == ["No health check server started"]
