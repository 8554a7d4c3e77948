"""A worker's environment is its replica group's, as under torchrun, and holds no secret."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.agent.devices import Machine
from ftrun.agent.environment import (
    LIGHTHOUSE,
    NCCL_HANDLING,
    Place,
    threads_per_worker,
    worker_environment,
)
from ftrun.agent.launch import spawner_environment
from ftrun.agent.numa import Binding
from ftrun.core.ids import WorkerKey
from ftrun.snapshots import group_memory, own_memory
from tests.unit.run_settings import resolved, run_settings

OPEN = run_settings(replicas=3, workers_per_replica=2)
SETTINGS = replace(OPEN, inject="explicit")
PLACE = Place(WorkerKey("2", "f" * 16, 1), 4, 12345, ("GPU-c", "GPU-d"), "127.0.0.1:29510")


def test_ranks_are_the_groups_and_the_group_is_named() -> None:
    machine = Machine("cuda", ("a", "b", "GPU-c", "GPU-d"), 16, "10.0.0.1", 2)
    environment = worker_environment(SETTINGS, machine, PLACE, 4)
    for name, value in {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "12345",
        "REPLICA_GROUP_ID": "2",
        "NUM_REPLICA_GROUPS": "3",
        "TORCHFT_LIGHTHOUSE": "http://127.0.0.1:29510",
        "TORCHELASTIC_RESTART_COUNT": "4",
        "TORCHELASTIC_RUN_ID": "job",
        "OMP_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "GPU-c,GPU-d",
        "FTRUN_OWNER": "f" * 16,
    }.items():
        assert environment[name] == value
    assert not any("TOKEN" in name for name in environment)


def test_the_users_own_lighthouse_of_torchft_stays_where_torchft_itself_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, theirs = Machine("cpu", (), 16, "h", 3), replace(SETTINGS, torchft="real")
    found = [worker_environment(x, machine, PLACE, 1)[LIGHTHOUSE] for x in (SETTINGS, theirs)]
    assert found == ["http://127.0.0.1:29510"] * 2
    monkeypatch.setenv(LIGHTHOUSE, "http://10.0.0.9:1")
    found = [worker_environment(x, machine, PLACE, 1)[LIGHTHOUSE] for x in (SETTINGS, theirs)]
    assert found == ["http://127.0.0.1:29510", "http://10.0.0.9:1"]


def test_workers_of_all_replicas_are_one_world_of_an_unmodified_script() -> None:
    machine = Machine("cuda", ("a", "b", "GPU-c", "GPU-d"), 16, "10.0.0.1", 2)
    environment = worker_environment(OPEN, machine, PLACE, 4)
    for name, value in {
        "RANK": "5",
        "ROLE_RANK": "5",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "6",
        "ROLE_WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "4",
        "FTRUN_GROUP_RANK": "1",
        "CUDA_VISIBLE_DEVICES": "a,b,GPU-c,GPU-d",
    }.items():
        assert environment[name] == value
    found = worker_environment(replace(OPEN, virtual_local_rank=True), machine, PLACE, 4)
    assert (found["LOCAL_RANK"], found["CUDA_VISIBLE_DEVICES"]) == ("0", "GPU-d")


def test_on_cpu_no_device_is_visible() -> None:
    machine = Machine("cpu", (), 16, "127.0.0.1", 3)
    place = Place(PLACE.key, 0, 1, (), "h:1")
    chosen = replace(SETTINGS, device="cpu")
    assert worker_environment(chosen, machine, place, 1)["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in worker_environment(SETTINGS, machine, place, 1)


def test_a_virtual_local_rank_sees_one_device_of_its_own() -> None:
    settings = replace(SETTINGS, virtual_local_rank=True, workers_per_replica=2, role="trainer")
    machine = Machine("cuda", ("4", "5"), 16, "127.0.0.1", 1)
    place = Place(WorkerKey("0", "i", 1), 0, 1, ("4", "5"), "h:1")
    found = worker_environment(settings, machine, place, 1)
    assert (found["LOCAL_RANK"], found["RANK"], found["CUDA_VISIBLE_DEVICES"]) == ("0", "1", "5")
    assert found["ROLE_NAME"] == "trainer"


def test_torchruns_spelling_gets_torchruns_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NCCL_HANDLING, raising=False)  # ftrun's NCCL group may have set it here
    machine = Machine("cpu", (), 16, "127.0.0.1", 1)
    plain = replace(SETTINGS, workers_per_replica=4)
    theirs = replace(plain, as_torchrun=True, master_addr="localhost")
    assert (threads_per_worker(plain, machine), threads_per_worker(theirs, machine)) == (4, 1)
    assert worker_environment(theirs, machine, PLACE, 1)["MASTER_ADDR"] == "localhost"
    assert worker_environment(theirs, machine, PLACE, 1)[NCCL_HANDLING] == "1"
    assert NCCL_HANDLING not in worker_environment(plain, machine, PLACE, 1)


def test_cores_are_shared_out_among_the_workers() -> None:
    assert threads_per_worker(SETTINGS, Machine("cpu", (), 16, "h", 3)) == 2
    assert threads_per_worker(SETTINGS, Machine("cpu", (), 2, "h", 3)) == 1


def test_the_users_own_thread_count_wins() -> None:
    assert threads_per_worker(SETTINGS, Machine("cpu", (), 16, "h", 3, threads_wished=7)) == 7


def test_a_bound_worker_has_no_more_threads_than_cpus() -> None:
    machine = Machine("cpu", (), 16, "h", 3, bindings=(Binding((0, 1, 2)), Binding((4,))))
    assert threads_per_worker(replace(SETTINGS, replicas=1), machine) == 1
    roomy = replace(machine, bindings=(Binding(tuple(range(8))),))
    assert threads_per_worker(SETTINGS, roomy) == 2


def documented(heading: str) -> set[str]:
    """The variables in the table below a heading of docs/WORKER_ENVIRONMENT.md."""
    text = (Path(__file__).parents[3] / "docs" / "WORKER_ENVIRONMENT.md").read_text()
    table = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([A-Z_]+)` \|", table, re.MULTILINE))


def test_the_document_names_exactly_what_is_set() -> None:
    shared = Machine("cuda", ("0", "0"), 16, "127.0.0.1", 1)
    found = {
        *worker_environment(
            replace(SETTINGS, as_torchrun=True, lighthouse="h:1"),
            shared,
            replace(PLACE, timer_file="/timers"),
            1,
        ),
        *(spawner_environment("guard").keys() - os.environ.keys()),
        group_memory.VARIABLE,
        group_memory.AT_FALL,
        own_memory.VARIABLE,
    }
    assert documented("Variables") == found
    always = {
        *worker_environment(SETTINGS, Machine("cpu", (), 1, "h", 3), replace(PLACE, devices=()), 1),
        *(spawner_environment("guard").keys() - os.environ.keys()),
    }
    text = (Path(__file__).parents[3] / "docs" / "WORKER_ENVIRONMENT.md").read_text()
    assert set(re.findall(r"^\| `([A-Z_]+)` \|.*\| always \|$", text, re.MULTILINE)) == always


def test_gloo_takes_the_interface_by_which_nodes_meet_unless_one_is_stated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    machine = Machine("cpu", (), 16, "127.0.0.1", 1)
    several = replace(SETTINGS, lighthouse="h:1")
    assert worker_environment(several, machine, PLACE, 1)["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in worker_environment(SETTINGS, machine, PLACE, 1)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert "GLOO_SOCKET_IFNAME" not in worker_environment(several, machine, PLACE, 1)


def test_a_group_with_memory_snapshots_ends_its_nccl_groups_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else torch's watchdog would end those who wait for a lost worker."""
    monkeypatch.setenv(NCCL_HANDLING, "1")
    machine = Machine("cuda", ("4", "5"), 16, "127.0.0.1", 1)
    place = Place(WorkerKey("0", "i", 1), 0, 1, ("4", "5"), "h:1")
    for memory, value in (("auto", "0"), ("off", "1")):
        of: dict[str, Any] = {"nproc_per_node": 2, "device": "cuda", "memory_snapshots": memory}
        found = worker_environment(resolved(**of), machine, place, 1)
        assert found[NCCL_HANDLING] == value
