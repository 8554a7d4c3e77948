"""Snapshots of one replica group, from its agent's memory to a disk and back.

What a worker has copied there (area.py) is its state, so no worker takes part in this. The form on
the disk is that of all snapshots: torch's DCP, in which the values that are alike at all workers
are stored once. Beside the script's own state, each worker's share holds the bytes before its state
in the area, and its notes of what collectives gave it before the first step.

Not here: when one is due (agent/group_disk.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ftrun.base.errors import PeerError
from ftrun.base.files import write_whole
from ftrun.checkpoint.leaves import LeafSpec
from ftrun.core.forms import MEMORY, Form
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.mending import SOUND
from ftrun.snapshots import directory, manifest, reading
from ftrun.snapshots.area import Copy, GroupMemory, Held, Torn, Word
from ftrun.snapshots.directory import Found
from ftrun.snapshots.manifest import Damaged, Origin
from ftrun.snapshots.memory import offsets_of
from ftrun.snapshots.parts import State, write_part
from ftrun.snapshots.writer import Target, Writing

USER_KEY, OWN_KEY, FRONT, NOTES = "user", "own", "front", "notes"


@dataclass(frozen=True, kw_only=True)
class Order(Target):
    """A snapshot to write. ``place``: of the group's memory; ``notes``: of worker {}."""

    place: str
    notes: str


@dataclass(frozen=True, kw_only=True)
class Filling:
    """Memory to fill from the newest snapshot in the first of ``directories`` that has one."""

    directories: list[str]
    origin: dict[str, Any]
    place: str
    notes: str


def write(writing: Writing, order: Order) -> dict[str, Any]:
    """Write what all workers have in memory of their newest common step; what to answer.

    Raises:
        OSError, RuntimeError: the disk, or torch's writer.
        PeerError: the state cannot be written, in words.
    """
    memory = GroupMemory.open(order.place)
    held = memory.hold() or []
    try:
        if not held:
            raise PeerError("the workers have no whole snapshot of one step in memory")
        states = [_state(rank, one, order) for rank, one in enumerate(held)]
        order = replace(order, step=states[0].step)
        draft = writing.begin(order, states[0])
        for state in states:
            write_part(draft, state)
        falls = [Fall(x) for x in memory.board.all(Word.FALL) if x]
        bad = next((x for x in falls if x not in SOUND), None)
        if bad is not None:
            raise PeerError(f"what is in memory may be incomplete: {bad.words}")
        return {**writing.merge(order), "step": order.step}
    finally:
        writing.drop()
        for one in held:
            one.release()
        memory.close()


def _state(rank: int, held: Held, order: Order) -> State:
    head = json.loads(held.head.partition(b"\n")[0])[0]
    specs = [LeafSpec(**{key: _tuple(x) for key, x in fields.items()}) for fields in head["specs"]]
    offsets, _ = offsets_of([spec.nbytes for spec in specs])
    leaves = [_view(held.state[at : at + x.nbytes]) for at, x in zip(offsets, specs, strict=True)]
    chunks = [_tuple(_chunk(head["chunks"], spec)) for spec in specs]
    notes = Path(order.notes.format(rank))
    own = {FRONT: bytes(held.front), NOTES: notes.read_bytes() if notes.exists() else b""}
    for name, data in own.items():
        specs.append(LeafSpec("bytes", f".{OWN_KEY}", f".{name}", "uint8", (len(data),), len(data)))
        leaves.append(_view(memoryview(bytearray(data))))
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
    return chunks[spec.mesh] if spec.mesh else None


def _view(data: memoryview) -> torch.Tensor:
    if not len(data):
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(data, dtype=torch.uint8)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# ---------------------------------------------------------------- back


def fill(order: Filling) -> dict[str, Any]:
    """Have the newest snapshot in memory, as each worker had it; what to answer.

    ``step``: that of the snapshot; -1: there is none. ``damaged``: names of those that were passed
    over, and why.

    Raises:
        OSError: the disk.
        PeerError: a snapshot is of another job, or too large, or of an unknown format; in words.
    """
    damaged: list[list[str]] = []
    for where in map(Path, order.directories):
        for found in _newest(where, damaged):
            if found.manifest.origin.inject == Form.EXPLICIT.value:
                break  # a script with a Manager takes it by itself
            _check_origin(found, order.origin)
            memory = GroupMemory.open(order.place)
            try:
                manifest.verify(found.path, found.manifest)
                for rank in range(memory.board.ranks):
                    _fill(memory, rank, found, Path(order.notes.format(rank)))
            except (Damaged, Torn) as why:
                damaged.append([found.path.name, str(why)])
                directory.set_damaged(found.path)
                continue
            finally:
                memory.close()
            return {"step": found.manifest.step, "path": str(found.path), "damaged": damaged}
    return {"step": -1, "path": "", "damaged": damaged}


def _newest(where: Path, damaged: list[list[str]]) -> Iterator[Found]:
    """The newest snapshot, and the one before whenever that is renamed."""
    below: int | None = None
    while True:
        looked = directory.look(where, below)
        damaged += [[path.name, why] for path, why in looked.passed_over]
        if looked.newest is None:
            return
        yield looked.newest
        below = looked.newest.manifest.step


def _check_origin(found: Found, origin: dict[str, Any]) -> None:
    theirs, own = found.manifest.origin, Origin(**origin)
    if not theirs.fits(own.script, own.inject, own.workers_per_replica):
        raise PeerError(
            f"{found.path} is a snapshot of {theirs.script} with --inject {theirs.inject} and "
            f"{theirs.workers_per_replica} workers; this is {own.script} with {MEMORY} snapshots "
            f"and {own.workers_per_replica}"
        )


def _fill(memory: GroupMemory, rank: int, found: Found, notes: Path) -> None:
    share = found.manifest.share(rank)
    buffers = reading.buffers(found.path, share)
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
        whole = _view(data)
        whole[: front.nbytes].copy_(front)
        for at, part in zip(offsets, state, strict=True):
            whole[front.nbytes + at :][: part.nbytes].copy_(part)

    memory.area(rank).receive(copy, put)
    write_whole(notes, noted.numpy().tobytes())
