"""What torchrun's options mean to ftrun; the table for people is docs/FROM_TORCHRUN.md.

Not here: their spellings (options.py). Facts: torchrun of torch 2.13.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ftrun.config.layers import DEFAULT, Stated
from ftrun.config.options import JOB_SPELLINGS, nearest
from ftrun.errors import UserError

BACKENDS = ("static", "c10d")
START_METHODS = ("spawn", "fork", "forkserver")
RDZV_KEYS = frozenset(
    {
        "join_timeout", "last_call_timeout", "close_timeout", "heartbeat", "keep_alive_interval",
        "keep_alive_max_attempt", "read_timeout", "timeout", "is_host", "store_type", "rank",
    }
)  # fmt: skip
NOT_YET = frozenset({"no_python", "run_path", "numa_binding", "signals_to_handle"})
"""Options that ftrun knows and cannot honour yet: refused, and said so in docs/FROM_TORCHRUN.md."""
GRACE_S = 30.0
MAX_RESTARTS = 10
NUMA_BINDINGS = ("node", "socket", "exclusive", "core-complex")


def spells_a_job(stated: Mapping[str, Stated]) -> bool:
    """Whether the command spells a job as torchrun does: one group, with torchrun's meaning."""
    is_own = any(stated[name].is_given for name in ("replicas", "workers_per_replica"))
    return not is_own and any(stated[name].is_given for name in JOB_SPELLINGS)


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


def _first(value: Any, default: Any) -> Any:
    return default if value is None else value


def check_honoured(sources: Mapping[str, str]) -> None:
    """Refuse an option that has no effect yet; ``sources``: what states each one.

    Raises:
        UserError: the first such option.
    """
    for name in sorted(NOT_YET):
        if sources.get(name, DEFAULT) != DEFAULT:
            raise UserError(
                f"{sources[name]}: ftrun cannot honour this option of torchrun yet. Nothing "
                "was started. Leave it out; docs/FROM_TORCHRUN.md has the whole table."
            )


def _check_nodes(values: Mapping[str, Any]) -> None:
    text = values["nnodes"]
    if text is not None:
        low, _, high = text.partition(":")
        numbers = [part for part in (low, high or low) if part.isdecimal() and int(part) > 0]
        if len(numbers) != 2 or int(numbers[0]) > int(numbers[1]):
            raise UserError(f"--nnodes {text!r}: give 1, or MIN:MAX. Nothing was started.")
        if int(low) > 1:
            raise UserError(
                f"--nnodes {text}: a replica group does not span nodes yet. Nothing was started. "
                "For one group or more on each node, which average their gradients: ftrun --nodes "
                f"{low} --replicas N --lighthouse HOST:PORT on every node (README)."
            )
    if values["node_rank"] not in (None, 0):
        raise UserError(
            f"--node-rank {values['node_rank']}: a replica group does not span nodes yet, so the "
            "only node is 0. Nothing was started. For several nodes: --nodes and --lighthouse."
        )


def _check_rendezvous(values: Mapping[str, Any]) -> None:
    backend = values["rdzv_backend"]
    if backend is not None and backend not in BACKENDS:
        raise UserError(
            f"--rdzv-backend {backend}: ftrun needs no rendezvous service. Nothing was started. "
            f"Leave it out, or give one of {', '.join(BACKENDS)}; for several nodes use "
            "--lighthouse HOST:PORT."
        )
    for part in (values["rdzv_conf"] or "").strip("'\"").split(","):
        key, equals, _ = part.partition("=")
        if part and (not equals or key.strip() not in RDZV_KEYS):
            raise UserError(
                f"--rdzv-conf: {part!r} is not KEY=VALUE with a key of torchrun's."
                f"{nearest(key, RDZV_KEYS)} Nothing was started."
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
    if endpoint:
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
        raise UserError(f"--job-id {own} and --rdzv-id {theirs} name one thing: give one.")
    return str(theirs)


def _workers(stated: Mapping[str, Stated], gpus: int) -> int:
    own, theirs = stated["workers_per_replica"], stated["nproc_per_node"]
    if not theirs.is_given:
        return int(own.value)
    count = _count(str(theirs.value), gpus)
    if own.is_given and own.value != count:
        raise UserError(
            f"--workers-per-replica {own.value} and --nproc-per-node {theirs.value} name one "
            "thing: give one. Nothing was started."
        )
    return count


def _count(text: str, gpus: int) -> int:
    """``--nproc-per-node`` as a number."""
    cores = os.cpu_count() or 1
    if text == "cpu":
        return cores
    if text == "auto":
        return gpus or cores
    if text in ("gpu", "cuda"):
        if not gpus:
            raise UserError(
                f"--nproc-per-node {text}: this node shows no CUDA device. Nothing was started. "
                "Give a number, or cpu."
            )
        return gpus
    if not text.isdecimal() or int(text) < 1:
        raise UserError(
            f"--nproc-per-node {text!r}: give a number, auto, cpu or gpu. Nothing was started."
        )
    return int(text)
