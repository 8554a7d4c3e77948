"""The meaning of torchrun's options under ftrun; docs/TORCHRUN_REFERENCE.md has the table.

Not here: their spellings (options.py). Facts: torchrun of torch 2.13.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ftrun.base.errors import UserError
from ftrun.config.layers import Stated
from ftrun.config.options import JOB_SPELLINGS, nearest
from ftrun.config.script import PYTHON_VARIABLE, other_python

BACKENDS = ("static", "c10d")
START_METHODS = ("spawn", "fork", "forkserver")
RDZV_KEYS = frozenset(
    {
        "join_timeout", "last_call_timeout", "close_timeout", "heartbeat", "heartbeat_timeout",
        "keep_alive_interval", "keep_alive_max_attempt", "read_timeout", "timeout", "is_host",
        "store_type", "rank",
    }
)  # fmt: skip
GRACE_S = 30.0
MAX_RESTARTS = 10
OTHER_NAMES = {
    "workers_per_replica": "nproc_per_node",
    "job_id": "rdzv_id",
    "master_addr": "rdzv_endpoint",
    "master_port": "rdzv_endpoint",
}
"""Settings that an option of torchrun's states if their own option does not."""
TORCHRUN_DEFAULT = "default in torchrun's spelling of a job"
HERE = ("localhost", "127.0.0.1")
"""This node, where the workers meet without being told."""
WITHOUT_EFFECT = {
    "TORCHELASTIC_HEALTH_CHECK_PORT": (
        "has no effect: torch's health check server answers nothing under torchrun either. "
        "/healthz of the lighthouse answers; `ftrun status` shows its address."
    ),
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": (
        "has no effect: a worker that does not go on, in the kernel or elsewhere, is found by "
        "--hang-timeout and --hang-factor."
    ),
}
"""Variables of torchrun's agent that ftrun does not follow, and what does their work."""
LOGS_SPECS = ("default",)
EVENT_LOG_HANDLERS = ("null", "console", "dynamic_rendezvous")
"""torch's own handlers; the last is another ``null``."""
NUMA_BINDINGS = ("node", "socket", "exclusive", "core-complex")


def spells_a_job(stated: Mapping[str, Stated]) -> bool:
    """Whether the command spells a job as torchrun does: one group, with torchrun's meaning.

    A switch that is off, as by PET_STANDALONE=0, spells nothing.
    """
    given = [name for name in JOB_SPELLINGS if stated[name].value not in (None, False)]
    return bool(given) and not stated["replicas"].is_given


def translate(stated: Mapping[str, Stated], gpus: int) -> dict[str, Any]:
    """The settings of ftrun that torchrun's options state, by name.

    ``gpus``: how many GPUs a program that is started here would see.

    Raises:
        UserError: an option that cannot keep its meaning, or has no valid value.
    """
    values = {name: one.value for name, one in stated.items()}
    as_torchrun = spells_a_job(stated)
    _check_nodes(values)
    _check_rendezvous(values)
    _check_plugins(values)
    _check_choices(values)
    address, port = _meeting_point(values)
    return {
        "as_torchrun": as_torchrun,
        "workers_per_replica": _workers(stated, gpus),
        "job_id": _job_id(stated),
        "max_restarts": _first(values["max_restarts"], 0 if as_torchrun else MAX_RESTARTS),
        "grace_s": GRACE_S if as_torchrun and not stated["grace_s"].is_given else values["grace_s"],
        "master_addr": address,
        "master_port": port,
    }


def sources(stated: Mapping[str, Stated]) -> dict[str, str]:
    """The source of each setting, which may be an option of torchrun's with another name."""
    found = {name: one.source for name, one in stated.items()}
    for name, theirs in OTHER_NAMES.items():
        if not stated[name].is_given and stated[theirs].value not in (None, "", "none"):
            found[name] = found[theirs]
    if spells_a_job(stated):
        for name in ("max_restarts", "grace_s"):
            if not stated[name].is_given:
                found[name] = TORCHRUN_DEFAULT
    return found


def _first(value: Any, default: Any) -> Any:
    return default if value is None else value


def notices(stated: Mapping[str, Stated]) -> list[str]:
    """Options that ``--standalone`` overrides, as under torchrun, and nodes that cannot come."""
    if not stated["standalone"].value:
        text = stated["nnodes"].value
        if text is None or _parse_nodes(text)[1] == 1 or stated["nodes"].value > 1:
            return []
        return [f"{stated['nnodes'].source} {text}: this node runs the group alone."]
    endpoint = stated["rdzv_endpoint"]
    if not endpoint.value or endpoint.value.rpartition(":")[0] in HERE:
        return []
    return [f"{endpoint.source} has no effect beside --standalone, as under torchrun."]


def variable_notices(environ: Mapping[str, str]) -> list[str]:
    """Variables of torchrun's agent that have no effect here, or a costly one."""
    lines = [f"{name} {words}" for name, words in WITHOUT_EFFECT.items() if environ.get(name)]
    python = other_python(environ)
    if python:
        lines.append(
            f"{PYTHON_VARIABLE}: workers run {python}. Each imports torch by itself, and a script "
            "has no Manager there."
        )
    return lines


def _check_nodes(values: Mapping[str, Any]) -> None:
    """--nnodes may also repeat --nodes: clusters set PET_NNODES and PET_NODE_RANK in any case."""
    text, rank, nodes = values["nnodes"], values["node_rank"], values["nodes"]
    least, most = (1, 1) if text is None else _parse_nodes(text)
    is_alone = least == 1 and _endpoint_is_here(values)
    if most > 1 and not is_alone and not least == most == nodes:
        raise UserError(
            f"--nnodes {text}: a replica group does not span nodes yet, so each node would train "
            "by itself. Nothing was started. For replica groups on several nodes, which average "
            f"their gradients: ftrun --nodes {most} --replicas N --lighthouse HOST:PORT on every "
            "node (docs/OPERATING.md)."
        )
    if rank is not None and not 0 <= rank < nodes:
        raise UserError(
            f"--node-rank {rank}: there is no such node with --nodes {nodes}. Nothing was started. "
            "Leave it out: a node needs no rank, because the lighthouse assigns the replicas."
        )


def _endpoint_is_here(values: Mapping[str, Any]) -> bool:
    """Whether no other node could join: the workers meet where only this one gets to."""
    endpoint = values["rdzv_endpoint"]
    return bool(endpoint) and endpoint.rpartition(":")[0] in HERE


def _parse_nodes(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    parts = (low, high if colon else low)
    if not all(part.isdecimal() for part in parts) or not 1 <= int(parts[0]) <= int(parts[1]):
        raise UserError(f"--nnodes {text!r}: give 1, or MIN:MAX. Nothing was started.")
    return int(parts[0]), int(parts[1])


def _check_rendezvous(values: Mapping[str, Any]) -> None:
    backend = values["rdzv_backend"]
    if backend is not None and backend not in BACKENDS:
        raise UserError(
            f"--rdzv-backend {backend}: ftrun needs no rendezvous service. Nothing was started. "
            f"Leave it out, or give one of {', '.join(BACKENDS)}; for several nodes use "
            "--lighthouse HOST:PORT."
        )
    for part in (values["rdzv_conf"] or "").strip("'\"").split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if part and (not value or key not in RDZV_KEYS):
            raise UserError(
                f"--rdzv-conf: {part!r} is not KEY=VALUE with a key of torchrun's."
                f"{nearest(key, RDZV_KEYS)} Nothing was started."
            )


def _check_plugins(values: Mapping[str, Any]) -> None:
    """torch's own names are accepted; others name Python code for torchrun's agent."""
    name, handler = values["logs_specs"], values["event_log_handler"]
    if name is not None and name not in LOGS_SPECS:
        raise UserError(
            f"--logs-specs {name}: ftrun writes the workers' logs itself, without a plugin. "
            f"Nothing was started. Leave it out, or give {', '.join(LOGS_SPECS)}; -r, -t, "
            "--log-dir and --log-keep say what is written where."
        )
    if handler not in EVENT_LOG_HANDLERS:
        raise UserError(
            f"--event-log-handler {handler}: the agent has no torch, so it loads no handler of "
            "other packages. Nothing was started. Leave it out, or give console: it writes events "
            "as lines of JSON on stderr. Programs that use ftrun.elastic may name any handler."
        )


def _check_choices(values: Mapping[str, Any]) -> None:
    for name, flag, choices in (
        ("start_method", "--start-method", START_METHODS),
        ("numa_binding", "--numa-binding", NUMA_BINDINGS),
    ):
        value = values[name]
        if value is not None and value not in choices:
            raise UserError(f"{flag} {value!r}: give one of {', '.join(choices)}.")
    if values["monitor_interval"] is not None and not values["monitor_interval"] > 0:
        raise UserError("--monitor-interval: give seconds above 0.")
    kinds = [name for name in ("module", "no_python", "run_path") if values[name]]
    if len(kinds) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in kinds)
        raise UserError(f"{flags} exclude each other: give one. Nothing was started.")


def _meeting_point(values: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """The address and port that the user wants, each None if any will do.

    ``--rdzv-endpoint`` counts where ``--master-addr`` and ``--master-port`` are not given.
    """
    address, port = values["master_addr"], values["master_port"]
    endpoint = values["rdzv_endpoint"]
    if endpoint and not values["standalone"]:
        host, colon, text = endpoint.rpartition(":")
        if not colon:
            host, text = endpoint, "0"
        if not text.isdecimal() or not host:
            raise UserError(f"--rdzv-endpoint {endpoint!r} is not HOST:PORT. Nothing was started.")
        address = address or host.strip("[]")
        port = port if port is not None else int(text)
    if port is not None and not 0 <= port <= 65535:
        raise UserError(f"port {port}: give 0 (any) to 65535. Nothing was started.")
    return address, port or None


def _job_id(stated: Mapping[str, Stated]) -> str | None:
    own, theirs = stated["job_id"].value, stated["rdzv_id"].value
    if theirs in (None, "none"):
        return None if own is None else str(own)
    if own not in (None, theirs):
        raise UserError(
            f"--job-id {own} and --rdzv-id {theirs} are two names of one thing, and differ. "
            "Nothing was started. Give one of the two."
        )
    return str(theirs)


def _workers(stated: Mapping[str, Stated], gpus: int) -> int:
    own, theirs = stated["workers_per_replica"], stated["nproc_per_node"]
    if not theirs.is_given:
        return int(own.value)
    is_cpu = stated["device"].value == "cpu"
    count = _count(str(theirs.value), 0 if is_cpu else gpus)
    if own.is_given and own.value != count:
        raise UserError(
            f"--workers-per-replica {own.value} and --nproc-per-node {theirs.value} are two names "
            "of one thing, and differ. Nothing was started. Give one of the two."
        )
    return count


def _count(text: str, gpus: int) -> int:
    """``--nproc-per-node`` as a number. ``gpus``: those that the job may use."""
    if text == "gpu" and not gpus:
        raise UserError(
            "--nproc-per-node gpu: this job has no CUDA device. Nothing was started. Give a "
            "number, or cpu; or check CUDA_VISIBLE_DEVICES and --device."
        )
    if text in ("auto", "cpu", "gpu"):
        return gpus if gpus and text != "cpu" else len(os.sched_getaffinity(0))
    if text.isdecimal() and int(text) > 0:
        return int(text)
    devices = " ftrun trains on CUDA devices and CPUs only." if text == "xpu" else ""
    raise UserError(
        f"--nproc-per-node {text!r}: give a number, auto, cpu or gpu.{devices} Nothing was started."
    )
