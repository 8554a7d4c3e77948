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
from ftrun.config.rendezvous import HERE, parse_nodes, read_rendezvous
from ftrun.config.script import PYTHON_VARIABLE, other_python

BACKENDS = ("static", "c10d", "etcd", "etcd-v2")
START_METHODS = ("spawn", "fork", "forkserver")
RDZV_KEYS = frozenset(
    {
        "join_timeout", "last_call_timeout", "close_timeout", "heartbeat", "heartbeat_timeout",
        "keep_alive_interval", "keep_alive_max_attempt", "read_timeout", "timeout", "is_host",
        "store_type", "rank", "protocol", "cacert", "cert", "key",
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
"""Settings for which a torchrun option is used if their own option is not given."""
TORCHRUN_DEFAULT = "default in torchrun's spelling of a job"
WITHOUT_EFFECT = {
    "TORCHELASTIC_HEALTH_CHECK_PORT": (
        "has no effect: torch's health check server answers nothing under torchrun either. "
        "/healthz of the lighthouse answers; `ftrun status` shows its address."
    ),
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": (
        "has no effect: a worker that stands still, in the kernel or elsewhere, is found by "
        "--hang-timeout and --hang-factor."
    ),
}
"""Variables of torchrun's agent that ftrun ignores, and what to use instead."""
LOGS_SPECS = ("default",)
EVENT_LOG_HANDLERS = ("null", "console", "dynamic_rendezvous")
"""torch's own handlers; the last is another ``null``."""
NUMA_BINDINGS = ("node", "socket", "exclusive", "core-complex")


def spells_a_job(stated: Mapping[str, Stated]) -> bool:
    """Whether the command defines a job in torchrun's terms: one group, with torchrun's semantics.

    A switch that is off, as by PET_STANDALONE=0, does not count.
    """
    given = [name for name in JOB_SPELLINGS if stated[name].value not in (None, False)]
    return bool(given) and not stated["replicas"].is_given


def translate(stated: Mapping[str, Stated], gpus: int) -> dict[str, Any]:
    """The settings of ftrun that torchrun's options state, by name.

    ``gpus``: the number of GPUs that a program started here would see.

    Raises:
        UserError: an option cannot keep its meaning, or has no valid value.
    """
    values = {name: one.value for name, one in stated.items()}
    as_torchrun = spells_a_job(stated)
    _check_nodes(values, is_ours=stated["replicas"].is_given)
    _check_rendezvous(values)
    _check_plugins(values)
    _check_choices(values)
    address, port = _meeting_point(values)
    if values["nnodes"] is not None and values["rdzv_endpoint"]:
        address, port = _meeting_point({**values, "master_addr": None, "master_port": None})
    conf = {key: value for _, key, value in _conf(values)}
    rendezvous = read_rendezvous(stated, conf, address, port)
    if rendezvous is not None:  # of the nodes; the workers use any port
        address = port = None
    workers, workers_per_node = _workers(stated, gpus)
    return {
        "as_torchrun": as_torchrun,
        "workers_per_replica": workers,
        "workers_per_node": workers_per_node,
        "job_id": _job_id(stated),
        "max_restarts": _first(values["max_restarts"], 0 if as_torchrun else MAX_RESTARTS),
        "grace_s": GRACE_S if as_torchrun and not stated["grace_s"].is_given else values["grace_s"],
        "master_addr": address,
        "master_port": port,
        "rendezvous": rendezvous,
    }


def sources(stated: Mapping[str, Stated]) -> dict[str, str]:
    """The source of each setting, which may be an option of torchrun with another name."""
    found = {name: one.source for name, one in stated.items()}
    for name, theirs in OTHER_NAMES.items():
        if not stated[name].is_given and stated[theirs].value not in (None, "", "none"):
            found[name] = found[theirs]
    if spells_a_job(stated):
        for name in ("max_restarts", "grace_s"):
            if not stated[name].is_given:
                found[name] = TORCHRUN_DEFAULT
    return found


def _endpoint_is_any(endpoint: str | None) -> bool:
    """Whether no other node can connect: the place is on this node, at any port."""
    host, _, port = (endpoint or "").rpartition(":")
    return endpoint in HERE or (host in HERE and port == "0")


def _first(value: Any, default: Any) -> Any:
    return default if value is None else value


def notices(stated: Mapping[str, Stated]) -> list[str]:
    """Options that ``--standalone`` overrides, as under torchrun, nodes that cannot connect, and
    what ``--spare-nodes`` means beside --nnodes."""
    if not stated["standalone"].value:
        text, spares = stated["nnodes"].value, stated["spare_nodes"]
        least, most = (1, 1) if text is None else parse_nodes(text)
        if spares.value and most > 1 and stated["nodes"].value == 1:
            return [
                f"{spares.source} {spares.value} with --nnodes {text}: each further node that runs "
                "this command without --node-rank stands by."
            ]
        others = least > 1 or most == 1 or stated["nodes"].value > 1
        if others or not _endpoint_is_any(stated["rdzv_endpoint"].value):
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


def _check_nodes(values: Mapping[str, Any], *, is_ours: bool) -> None:
    """Check --nnodes. It may repeat --nodes, as clusters always set PET_NNODES and PET_NODE_RANK.

    ``is_ours``: the job is in ftrun's own terms, and its number of nodes is known later.
    """
    text, rank, nodes = values["nnodes"], values["node_rank"], values["nodes"]
    least, most = (1, 1) if text is None else parse_nodes(text)
    is_group = most > 1 and nodes == 1 and not values["standalone"]
    if is_group and values["replicas"] != "1":
        raise UserError(
            f"--nnodes {text} with --replicas {values['replicas']}: --nnodes is torchrun's word "
            "for the nodes of one group. Nothing was started. For replica groups on several nodes: "
            f"ftrun --nodes {most} --replicas {values['replicas']} --lighthouse HOST:PORT on every "
            "node (docs/SEVERAL_NODES.md)."
        )
    if nodes > 1 and most > 1 and not least == most == nodes:
        raise UserError(
            f"--nnodes {text} and --nodes {nodes} differ. Nothing was started. Leave --nnodes out."
        )
    count = most if is_group else nodes
    if rank is not None and not (0 <= rank < count or (is_ours and rank >= 0)):
        raise UserError(
            f"--node-rank {rank}: there is no such node with "
            f"{f'--nnodes {text}' if is_group else f'--nodes {nodes}'}. Nothing was started."
        )


def _check_rendezvous(values: Mapping[str, Any]) -> None:
    backend = values["rdzv_backend"]
    if backend is not None and backend not in BACKENDS and not values["standalone"]:
        raise UserError(
            f"--rdzv-backend {backend} is not known. Nothing was started. Leave it out, or give "
            f"one of {', '.join(BACKENDS)}. Several nodes meet at one of themselves: "
            "--rdzv-backend c10d --rdzv-endpoint NODE:29400, the same on each."
        )
    for part, key, value in _conf(values):
        if not value or key not in RDZV_KEYS:
            raise UserError(
                f"--rdzv-conf: {part!r} is not KEY=VALUE with a key of torchrun's."
                f"{nearest(key, RDZV_KEYS)} Nothing was started."
            )


def _conf(values: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The parts of --rdzv-conf, each with its key and value."""
    parts = (values["rdzv_conf"] or "").strip("'\"").split(",")
    found = ((part, *part.partition("=")[::2]) for part in parts if part)
    return [(part, key.strip(), value.strip()) for part, key, value in found]


def _check_plugins(values: Mapping[str, Any]) -> None:
    """Check the names of plugins. Only torch's own are accepted, because the agent loads no
    plugins."""
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

    ``--rdzv-endpoint`` is used if ``--master-addr`` and ``--master-port`` are not given.
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


def _workers(stated: Mapping[str, Stated], gpus: int) -> tuple[int, int | None]:
    """The workers of a replica group; and of a node, if a group spans several nodes."""
    own, theirs = stated["workers_per_replica"], stated["nproc_per_node"]
    gpus = 0 if stated["device"].value == "cpu" else gpus
    here = _count(str(theirs.value), gpus) if theirs.is_given else gpus
    workers = _own_here(stated) if own.is_given or not theirs.is_given else here
    if stated["replicas"].is_given and 0 < here < workers and workers % here == 0:
        return workers, here
    if theirs.is_given and workers != here:
        raise UserError(
            f"--workers-per-replica {workers} and --nproc-per-node {theirs.value} are two names "
            "of one thing, and differ. Nothing was started. Give one of the two; or, for a replica "
            "group that takes several nodes, --replicas and a multiple of a node's workers."
        )
    return workers, None


def _own_here(stated: Mapping[str, Stated]) -> int:
    """``--workers-per-replica``; beside --nnodes, what each node runs of it."""
    own, text = stated["workers_per_replica"], stated["nnodes"].value
    least, most = (1, 1) if text is None else parse_nodes(text)
    workers = int(own.value)
    if most == 1 or not own.is_given or stated["replicas"].is_given or stated["standalone"].value:
        return workers
    if least < most or workers % most:
        raise UserError(
            f"--workers-per-replica {workers} with --nnodes {text}: these are the workers of one "
            "group, equally many on each node. Nothing was started. Give a multiple of a fixed "
            "number of nodes; or --nproc-per-node, the workers of each node."
        )
    return workers // most


def _count(text: str, gpus: int) -> int:
    """``--nproc-per-node`` as a number. ``gpus``: the GPUs that the job may use."""
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
