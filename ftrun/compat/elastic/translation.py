"""Translates torchelastic's settings to ftrun's: each is translated, ignored, or refused.

Ignored: ``monitor_interval``, because exits are noticed at once; the rendezvous of one node; the
timeout of its exit barrier. Not here: the agent (agent.py).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, Std
from torch.distributed.launcher.api import LaunchConfig

from ftrun.base.errors import UserError
from ftrun.config.script import TargetKind

START_METHODS = ("spawn", "forkserver")
DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
_PYTHONS = re.compile(r"python(3(\.\d+)?)?")
_ETCD = ("etcd", "etcd-v2")


@dataclass(frozen=True, slots=True)
class OneNode:
    """The rendezvous of a job on one node, which is only a name. WorkerSpec requires such an
    object."""

    run_id: str

    def get_run_id(self) -> str:
        return self.run_id

    def get_backend(self) -> str:
        """The empty text: there is no backend."""
        return "ftrun"

    def shutdown(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """An agent's arguments other than its WorkerSpec."""

    logs_specs: LogsSpecs
    start_method: str
    log_line_prefix_template: str | None
    shutdown_timeout: int
    signals_to_handle: str


def check_config(config: LaunchConfig) -> None:
    """Refuse settings that a job on one node does not support.

    Raises:
        UserError: names the first such field; nothing was started.
    """
    if config.max_nodes != 1 or config.min_nodes != 1:
        raise _refusal(
            f"min_nodes {config.min_nodes}, max_nodes {config.max_nodes}",
            "a replica group lies on one node. Use ftrun.launch(…, replicas=N, nodes=M, "
            "lighthouse=HOST:PORT) and an ftrun.manager() in the function",
        )
    if config.rdzv_backend in _ETCD and config.rdzv_endpoint:
        raise _refusal(
            f"rdzv_backend {config.rdzv_backend!r}",
            "ftrun keeps nothing in etcd. Leave rdzv_endpoint empty: one node needs none",
        )


def settings_of(spec: WorkerSpec, options: AgentOptions) -> dict[str, Any]:
    """The settings of a launch.

    Raises:
        UserError: a field cannot keep its meaning; nothing was started.
    """
    _check(spec, options)
    settings: dict[str, Any] = {
        "nproc_per_node": spec.local_world_size,
        "max_restarts": spec.max_restarts,
        "job_id": job_id_of(spec),
        "grace_s": options.shutdown_timeout,
        "role": spec.role,
    }
    asked_for = {
        "master_addr": spec.master_addr,
        "master_port": spec.master_port,
        "local_addr": spec.local_addr,
        "virtual_local_rank": spec.virtual_local_rank or None,
        "duplicate_stdout_filters": spec.duplicate_stdout_filters or None,
        "duplicate_stderr_filters": spec.duplicate_stderr_filters or None,
        "numa_binding": spec.numa_options.affinity_mode.value if spec.numa_options else None,
        "signals_to_handle": (
            None if options.signals_to_handle == DEFAULT_SIGNALS else options.signals_to_handle
        ),
        **_logs(options.logs_specs, spec.local_world_size),
    }
    return {**settings, **{name: value for name, value in asked_for.items() if value is not None}}


def job_id_of(spec: WorkerSpec) -> str | None:
    """The run id, reduced to the characters that a job's name may have."""
    run_id = str(spec.rdzv_handler.get_run_id()) if spec.rdzv_handler is not None else ""
    return re.sub(r"[^A-Za-z0-9._-]", "-", run_id).lstrip("-._")[:64] or None


def target_of(entrypoint: str, args: Sequence[Any]) -> tuple[TargetKind, list[str]] | None:
    """The kind and the words of a command's target, if it runs Python on a file or a module.

    None: another command, or the interpreter with further options.
    """
    name = os.path.basename(entrypoint)
    if entrypoint != sys.executable and not _PYTHONS.fullmatch(name):
        return None
    words = [str(word) for word in args]
    while words and words[0] == "-u":
        words.pop(0)
    if words[:1] == ["-m"] and len(words) > 1:
        return TargetKind.MODULE, words[1:]
    if words and not words[0].startswith("-"):
        return TargetKind.FILE, words
    return None


def log_dir_of(logs_specs: LogsSpecs) -> Path | None:
    """The directory of the logs; None: no logs are kept."""
    root = logs_specs.root_log_dir
    return None if root == os.devnull else Path(root)


def _check(spec: WorkerSpec, options: AgentOptions) -> None:
    if options.start_method not in START_METHODS:
        raise _refusal(
            f"start_method {options.start_method!r}",
            "workers are processes of another tree and do not share this program's memory. Use "
            "'spawn'",
        )
    if options.log_line_prefix_template is not None:
        raise _refusal("log_line_prefix_template", "ftrun's lines begin with [REPLICA.RANK]")
    if type(options.logs_specs) is not DefaultLogsSpecs:
        raise _refusal(
            f"logs_specs of the type {type(options.logs_specs).__qualname__}",
            "ftrun chooses the files of its logs. Use DefaultLogsSpecs",
        )
    settings = getattr(spec.rdzv_handler, "settings", None)
    if getattr(settings, "max_nodes", 1) > 1:
        raise _refusal(
            f"rdzv_handler for up to {settings.max_nodes} nodes" if settings else "rdzv_handler",
            "a replica group lies on one node. Use ftrun.launch with nodes=M",
        )


def _logs(logs_specs: LogsSpecs, workers: int) -> dict[str, Any]:
    ranks: Iterable[int] | None = logs_specs._local_ranks_filter
    log_dir = log_dir_of(logs_specs)
    return {
        "log_dir": None if log_dir is None else str(log_dir),
        "redirects": _streams(logs_specs._redirects, workers),
        "tee": _streams(logs_specs._tee, workers),
        "local_ranks_filter": ",".join(str(rank) for rank in sorted(ranks)) if ranks else None,
    }


def _streams(chosen: Std | dict[int, Std], workers: int) -> str | None:
    """In the form of torchrun's options: ``3``, or ``0:3,1:1``."""
    if isinstance(chosen, Std):
        return str(int(chosen)) if chosen else None
    some = {rank: std for rank, std in sorted(chosen.items()) if std and rank < workers}
    return ",".join(f"{rank}:{int(std)}" for rank, std in some.items()) or None


def _refusal(what: str, why: str) -> UserError:
    return UserError(f"ftrun.elastic cannot honour {what}: {why}. Nothing was started.")
