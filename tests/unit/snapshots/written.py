"""Snapshots for tests: any tree, written by the writer's own function in this process."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

from ftrun.checkpoint.format import pack
from ftrun.snapshots.directory import Found, look
from ftrun.snapshots.memory import SharedMemory, offsets_of
from ftrun.snapshots.process import WHOLE
from ftrun.snapshots.writer import Order, Writing

ORIGIN: dict[str, Any] = {
    "script": "train",
    "inject": "explicit",
    "workers_per_replica": 1,
    "replicas": 2,
    "job_id": "job",
}


def tree_of(step: int = 7, **user: Any) -> dict[str, Any]:
    """A tree as a worker's: the script's state by key, and the Manager's own."""
    return {"user": user, "torchft": {"step": step, "batches_committed": 2 * step, "lineage": "l"}}


def order_of(where: Path, tree: dict[str, Any], memory: SharedMemory, **changes: Any) -> Order:
    """The order for a tree that is copied into ``memory``."""
    packed = pack(tree)
    offsets, nbytes = offsets_of([leaf.spec.nbytes for leaf in packed.leaves])
    memory.reserve(max(1, nbytes))
    memory.fill(packed.leaves, offsets, threads=2)
    fields: dict[str, Any] = {
        "directory": str(where),
        "keep": 3,
        "writer": "w",
        "step": tree["torchft"]["step"],
        "lineage": tree["torchft"]["lineage"],
        "position": "",
        "origin": ORIGIN,
        "structure": packed.structure,
        "specs": [astuple(leaf.spec) for leaf in packed.leaves],
        "offsets": offsets,
        "nbytes": max(1, nbytes),
        "user_key": "user",
        "own_key": "torchft",
    }
    return Order(**{**fields, **changes})


def write_tree(where: Path, tree: dict[str, Any], **changes: Any) -> Path:
    """Write one snapshot; its path."""
    memory = SharedMemory()
    try:
        order = order_of(where, tree, memory, **changes)
        return Path(Writing(memory).obey(WHOLE, order)["path"])
    finally:
        memory.close()


def newest(where: Path) -> Found:
    """The newest whole snapshot, of which there must be one."""
    found = look(where).newest
    assert found is not None
    return found
