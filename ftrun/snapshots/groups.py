"""Snapshots of one replica group, from its agents' memory to a disk and back.

The agents' memory has a copy of each worker's state (area.py), so no worker takes part in this. On
the disk they have the form of all snapshots: torch's DCP, in which values that are alike at all
workers are stored once. Beside the script's own state, each worker's share holds the bytes before
its state in the area, and its notes of the collectives before the first step.

On one node, one order writes everything. On several nodes, each node's process writes the parts of
its own ranks into one draft.

Not here: the orders (writer.py), when a snapshot is due (agent/group_disk.py), which node orders
what (agent/team/disk.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ftrun.base.errors import PeerError, UserError
from ftrun.base.files import write_whole
from ftrun.checkpoint.leaves import LeafSpec
from ftrun.core.worker.group_snapshots import why_unsound
from ftrun.snapshots import directory, manifest, reading
from ftrun.snapshots.area import Copy, Held, Torn
from ftrun.snapshots.board import Word
from ftrun.snapshots.directory import Found
from ftrun.snapshots.group_memory import GroupMemory
from ftrun.snapshots.manifest import Damaged, Share
from ftrun.snapshots.memory import SharedMemory, offsets_of
from ftrun.snapshots.parts import State
from ftrun.snapshots.reading import tensor_of
from ftrun.snapshots.writer import Target

USER_KEY, OWN_KEY, FRONT, NOTES = "user", "own", "front", "notes"
NEWEST = -1


class Refused(UserError):
    """This node does not share the directory. A retry cannot help."""


@dataclass(frozen=True, kw_only=True)
class Order(Target):
    """The states of a node's ranks to write.

    Attributes:
        place: where the group's memory is.
        notes: a path of the workers' notes, with {} for the rank.
        step: NEWEST: the newest step that all workers have.
    """

    step: int = NEWEST
    place: str
    notes: str

    def states(self, memory: SharedMemory | None) -> AbstractContextManager[Sequence[State]]:  # noqa: ARG002
        """See Target."""
        return _states(self)


@dataclass(frozen=True, kw_only=True)
class Filling:
    """Memory to fill from a snapshot. ``digest``: the manifest's hash; "": this node read it
    itself."""

    path: str
    place: str
    notes: str
    digest: str = ""


@contextlib.contextmanager
def _states(order: Order) -> Iterator[list[State]]:
    """Hold the states of this node's ranks. On exit, checks that they are sound."""
    memory, step = GroupMemory.open(order.place), None if order.step == NEWEST else order.step
    held = memory.hold(step) or []
    try:
        if not held:
            which = "one step" if step is None else f"step {step}"
            raise PeerError(f"the workers have no whole snapshot of {which} in memory")
        yield [_state(rank, one, order) for rank, one in zip(memory.here, held, strict=True)]
        bad = why_unsound(memory.board.all(Word.FALL))
        if bad is not None:
            raise PeerError(f"what is in memory may be incomplete: {bad.words}")
    finally:
        for one in held:
            one.release()
        memory.close()


def _state(rank: int, held: Held, order: Order) -> State:
    head = json.loads(held.head.partition(b"\n")[0])[0]
    specs = [LeafSpec.of(fields.values()) for fields in head["specs"]]
    offsets, _ = offsets_of([spec.nbytes for spec in specs])
    leaves = [
        tensor_of(held.state[at : at + x.nbytes]) for at, x in zip(offsets, specs, strict=True)
    ]
    chunks = [_chunk(head["chunks"], spec) for spec in specs]
    notes = Path(order.notes.format(rank))
    own = {FRONT: bytes(held.front), NOTES: notes.read_bytes() if notes.exists() else b""}
    for name, data in own.items():
        specs.append(LeafSpec("bytes", f".{OWN_KEY}", f".{name}", "uint8", (len(data),), len(data)))
        leaves.append(tensor_of(memoryview(bytearray(data))))
        chunks.append(None)
    numbers = {name: {"leaf": len(specs) - len(own) + at} for at, name in enumerate(own)}
    return State(
        rank,
        head["step"],
        order.writer,
        json.dumps(asdict(held.copy(is_hashed=False))),
        {"map": {USER_KEY: head["structure"], OWN_KEY: {"map": numbers}}},
        tuple(specs),
        tuple(chunks),
        tuple(leaves),
        USER_KEY,
        OWN_KEY,
    )


def _chunk(chunks: dict[str, Any], spec: LeafSpec) -> Any:
    if spec.mesh and spec.mesh not in chunks:
        raise PeerError(f"{spec.path} is a DTensor whose part is no one box of the whole")
    found = chunks[spec.mesh] if spec.mesh else None
    return tuple(found) if isinstance(found, list) else found


# ---------------------------------------------------------------- back


def fill(order: Filling) -> dict[str, Any]:
    """Load a snapshot into memory, for each worker of this node. Returns the answer to the order.

    Each file is read once. The answer's ``damaged`` names what has changed since it was written;
    "": all is loaded.

    Raises:
        OSError: the disk failed.
        Refused: this directory differs from the first node's.
        UserError: the snapshot is too large.
    """
    path = Path(order.path)
    own = path / manifest.NAME
    if order.digest and not (own.exists() and manifest.digest_of(own) == order.digest):
        raise Refused(f"{path} is not what the first node has there: all nodes must share it")
    memory = GroupMemory.open(order.place)
    try:
        found = Found(path, manifest.load(path))
        read = reading.parts(found, memory.here)
        for rank, leaves in zip(memory.here, read, strict=True):
            notes = Path(order.notes.format(rank))
            _fill(memory, rank, found.manifest.share(rank), leaves, notes)
    except (Damaged, Torn) as why:
        directory.set_damaged(path)
        return {"damaged": str(why)}
    finally:
        memory.close()
    return {"damaged": ""}


def _fill(
    memory: GroupMemory, rank: int, share: Share, buffers: Sequence[torch.Tensor], notes: Path
) -> None:
    try:
        copy = Copy(**json.loads(share.position))
        own = share.structure["map"][OWN_KEY]["map"]
        front, noted = (buffers[own[name]["leaf"]] for name in (FRONT, NOTES))
    except (ValueError, TypeError, KeyError, IndexError) as why:
        raise Damaged(f"its manifest is malformed: {why}") from why
    state = buffers[: len(buffers) - len(own)]
    offsets, nbytes = offsets_of([x.nbytes for x in state])

    def put(data: memoryview) -> None:
        if len(data) != front.nbytes + nbytes:
            raise Damaged(f"worker {rank}'s part has not the size that it was written with")
        whole = tensor_of(data)
        whole[: front.nbytes].copy_(front)
        for at, part in zip(offsets, state, strict=True):
            whole[front.nbytes + at :][: part.nbytes].copy_(part)

    memory.area(rank).receive(copy, put)
    write_whole(notes, noted.numpy().tobytes())
