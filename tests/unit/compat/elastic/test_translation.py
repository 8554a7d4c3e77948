"""Each of torchelastic's settings is translated, means nothing on one node, or is refused."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.launcher.api import LaunchConfig
from torch.numa.binding import AffinityMode, NumaOptions

from ftrun.base.errors import UserError
from ftrun.compat.elastic.translation import (
    DEFAULT_SIGNALS,
    AgentOptions,
    OneNode,
    check_config,
    settings_of,
    target_of,
)
from ftrun.config.script import TargetKind


def options(tmp_path: Path, **changes: Any) -> AgentOptions:
    """The options of an agent whose logs are in ``tmp_path``."""
    plain = AgentOptions(DefaultLogsSpecs(str(tmp_path)), "spawn", None, 30, DEFAULT_SIGNALS)
    return replace(plain, **changes)


def spec(**changes: Any) -> WorkerSpec:
    """Two workers that print."""
    handler = OneNode("my run/1")
    plain = {"role": "default", "local_world_size": 2, "rdzv_handler": handler, "entrypoint": print}
    return WorkerSpec(**{**plain, **changes})


def test_a_plain_spec_asks_for_nothing_else(tmp_path: Path) -> None:
    assert settings_of(spec(monitor_interval=5), options(tmp_path)) == {
        "nproc_per_node": 2,
        "max_restarts": 3,
        "job_id": "my-run-1",
        "grace_s": 30,
        "role": "default",
        "log_dir": str(tmp_path),
    }


def test_each_field_that_is_set_is_asked_for(tmp_path: Path) -> None:
    logs = DefaultLogsSpecs(str(tmp_path), Std.ALL, {0: Std.OUT, 5: Std.ERR}, {1, 0})
    settings = settings_of(
        spec(
            role="trainer", master_addr="h", master_port=7, local_addr="l", virtual_local_rank=True,
            duplicate_stdout_filters=["a"], duplicate_stderr_filters=["b"],
            numa_options=NumaOptions(AffinityMode.NODE),
        ),
        options(tmp_path, logs_specs=logs, signals_to_handle="SIGTERM", shutdown_timeout=7),
    )  # fmt: skip
    assert settings == {
        "nproc_per_node": 2, "max_restarts": 3, "job_id": "my-run-1", "grace_s": 7,
        "log_dir": str(tmp_path), "role": "trainer", "master_addr": "h", "master_port": 7,
        "local_addr": "l", "virtual_local_rank": True, "duplicate_stdout_filters": ["a"],
        "duplicate_stderr_filters": ["b"], "numa_binding": "node", "signals_to_handle": "SIGTERM",
        "redirects": "3", "tee": "0:1", "local_ranks_filter": "0,1",
    }  # fmt: skip


class OwnLogs(DefaultLogsSpecs):
    """A program's own choice of files."""


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"start_method": "fork"}, r"start_method 'fork'.*Use 'spawn'"),
        ({"log_line_prefix_template": "x"}, r"log_line_prefix_template"),
        ({"logs_specs": OwnLogs(os.devnull)}, r"OwnLogs.*Use DefaultLogsSpecs"),
    ],
)
def test_what_cannot_keep_its_meaning_is_refused(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(UserError, match=text + r".*Nothing was started"):
        settings_of(spec(), options(tmp_path, **changes))


def test_several_nodes_are_refused(tmp_path: Path) -> None:
    handler = SimpleNamespace(settings=SimpleNamespace(max_nodes=2), get_run_id=lambda: "r")
    with pytest.raises(UserError, match=r"up to 2 nodes.*Use ftrun.launch"):
        settings_of(spec(rdzv_handler=handler), options(tmp_path))
    logs = DefaultLogsSpecs(str(tmp_path))
    with pytest.raises(UserError, match=r"max_nodes 2.*lighthouse=HOST:PORT"):
        check_config(LaunchConfig(1, 2, 2, logs_specs=logs))
    with pytest.raises(UserError, match=r"'etcd'.*one node needs none"):
        check_config(LaunchConfig(1, 1, 2, logs_specs=logs, rdzv_endpoint="h:1"))
    check_config(LaunchConfig(1, 1, 2, logs_specs=logs))


@pytest.mark.parametrize(
    ("entrypoint", "args", "target"),
    [
        (sys.executable, ["-u", "t.py", "--x", 3], (TargetKind.FILE, ["t.py", "--x", "3"])),
        ("python3", ["-m", "p.t", "y"], (TargetKind.MODULE, ["p.t", "y"])),
        ("/usr/bin/python3.11", ["t.py"], (TargetKind.FILE, ["t.py"])),
        ("python", ["-c", "print()"], None),
        ("python", ["-X", "dev", "t.py"], None),
        ("python", [], None),
        ("pythonic", ["t.py"], None),
        ("echo", ["t.py"], None),
    ],
)
def test_a_python_command_becomes_a_script(entrypoint: str, args: list[Any], target: Any) -> None:
    assert target_of(entrypoint, args) == target
