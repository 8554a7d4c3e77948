"""Slurm's variables of a step as a ``Place``. Pure.

``srun`` starts a step. A batch script itself is not a step, and has no SLURM_STEP_*.

Not here: the consequences (place.py, keeper.py).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from ftrun.base.addresses import join_address
from ftrun.engines.place import Place

NODES_MAX = 65536
FIRST_NAME = "SLURM_JOB_NAME_HET_GROUP_0"
"""Parts of a heterogeneous job have separate names, but one step runs over all of them."""
_NAME = re.compile(r"((?:[^,\[]|\[[^\]]*\])+)(?:,|$)")
_PART = re.compile(r"\[([^\]]*)\]|([^\[]+)")


def read_slurm(environ: Mapping[str, str]) -> Place | None:
    """This task's place in its step; None: it is not in a step."""
    try:
        nodes = node_names(environ["SLURM_STEP_NODELIST"])
        job, step = environ["SLURM_JOB_ID"], environ["SLURM_STEP_ID"]
        place = Place(
            engine="Slurm",
            node=int(environ["SLURM_NODEID"]),
            nodes=nodes,
            task=int(environ["SLURM_LOCALID"]),
            name=environ.get(FIRST_NAME) or environ.get("SLURM_JOB_NAME", ""),
            job=f"{int(job)}.{int(step)}",
            attempt=int(environ.get("SLURM_RESTART_COUNT") or 0),
            launcher=_launcher(environ),
            requeue=("scontrol", "requeue", _queued(environ)),
            cancel=("scancel", _queued(environ)),
            topology=_switches(environ),
        )
    except (KeyError, ValueError):
        return None
    return place if place.node < len(nodes) else None


def _queued(environ: Mapping[str, str]) -> str:
    """The job's name in the queue. The id of an array's task alone may mean the whole array."""
    array, task = (environ.get(f"SLURM_ARRAY_{name}_ID", "") for name in ("JOB", "TASK"))
    return f"{int(array)}_{int(task)}" if array and task else str(int(environ["SLURM_JOB_ID"]))


def _launcher(environ: Mapping[str, str]) -> str:
    """Where srun waits for the tasks."""
    host, port = (environ.get(f"SLURM_{name}", "") for name in ("SRUN_COMM_HOST", "SRUN_COMM_PORT"))
    return join_address(host, int(port)) if host and port else ""


def _switches(environ: Mapping[str, str]) -> str:
    """The switches above this node, or its block, by Slurm's names; "": unknown."""
    names = environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    is_known = len(kinds) == len(names) and kinds[-1] == "node"
    return ".".join(names[:-1]) if is_known else ""


def node_names(text: str) -> tuple[str, ...]:
    """The names in a list of Slurm's, such as ``n[0-2,5],gpu[01-02]-ib``.

    Raises:
        ValueError: it has another form, or very many.
    """
    found = tuple(itertools.islice(_names(text), NODES_MAX + 1))
    if not found or len(found) > NODES_MAX:
        raise ValueError(f"{text!r} is no list of nodes")
    return found


def _names(text: str) -> Iterator[str]:
    for name in _NAME.findall(text):
        parts = [_numbers(inside) if inside else [word] for inside, word in _PART.findall(name)]
        yield from map("".join, itertools.product(*parts))


def _numbers(text: str) -> list[str]:
    """``01-03,7`` as texts, with the zeros in front that the first has."""
    found = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if int(high or low) - int(low) > NODES_MAX:
            raise ValueError(f"{text!r} is too long")
        found += [f"{n:0{len(low)}d}" for n in range(int(low), int(high or low) + 1)]
    return found
