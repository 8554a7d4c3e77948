"""Snapshots of several workers for tests: all parts written in this process, then merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ftrun.checkpoint.format import pack
from ftrun.snapshots.directory import make_draft, prune
from ftrun.snapshots.manifest import Origin
from ftrun.snapshots.merging import merge
from ftrun.snapshots.parts import State, write_outline, write_part
from tests.unit.snapshots.written import ORIGIN

ChunkOf = Callable[[str, int], tuple[int, ...]]


def state_of(tree: dict[str, Any], rank: int, chunk_of: ChunkOf) -> State:
    """The state of one worker; ``chunk_of``: where a DTensor of this path begins there."""
    packed = pack(tree)
    specs = tuple(leaf.spec for leaf in packed.leaves)
    return State(
        rank,
        tree["torchft"]["step"],
        tree["torchft"]["lineage"],
        f"place of {rank}",
        packed.structure,
        specs,
        tuple(chunk_of(spec.path, rank) if spec.mesh else None for spec in specs),
        tuple(
            torch.frombuffer(bytearray(_bytes(x.data)) or bytearray(1), dtype=torch.uint8)[
                : x.spec.nbytes
            ]
            for x in packed.leaves
        ),
        "user",
        "torchft",
    )


def _bytes(data: torch.Tensor | memoryview) -> bytes:
    return data.numpy().tobytes() if isinstance(data, torch.Tensor) else bytes(data)


def write_parts(
    where: Path,
    trees: Sequence[dict[str, Any]],
    chunk_of: ChunkOf,
    writer: str = "w",
    keep: int = 9,
) -> Path:
    """One snapshot of these workers; its path."""
    states = [state_of(tree, rank, chunk_of) for rank, tree in enumerate(trees)]
    draft = make_draft(where, states[0].step, writer)
    write_outline(draft, states[0])
    for state in states:
        write_part(draft, state)
    origin = {**ORIGIN, "workers_per_replica": len(trees)}
    path = merge(draft, len(trees), Origin(**origin))[0]
    prune(where, keep)
    return path
