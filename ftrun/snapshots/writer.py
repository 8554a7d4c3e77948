"""The process that writes snapshots, so that the training process only makes a copy.

It reads one order after the other from a pipe, each a line of JSON, and answers each with a line on
another. The tensors are in memory that both processes map (memory.py).
Each worker of the replica that writes has such a process, for its own part. In this order, so that
a kill at any moment leaves older snapshots whole and nothing that looks like one:

| order     | to          | what is done                                                           |
|-----------|-------------|------------------------------------------------------------------------|
| ``draft`` | the lead's  | a draft directory, and what the others need not write                  |
| ``part``  | each        | its files in the draft, written by torch, each synced (parts.py)       |
| ``merge`` | the lead's  | DCP's index; the manifest with sizes and hashes: written, synced,      |
|           |             | renamed; the draft is synced and gets its name, and the directory is   |
|           |             | synced: from here on it is a snapshot. The oldest beyond ``keep`` go   |
| ``drop``  | the lead's  | the draft goes, because a part is missing                              |
| ``whole`` | one alone   | the first three                                                        |
| ``agree`` | the lead's  | it is noted that all replicas have agreed on one (path, step)          |

Not here: when a snapshot is due (core/worker/snapshots.py), the copy, and the waits for parts
(training/snapshots.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ftrun.base import clock, linux
from ftrun.base.errors import PeerError
from ftrun.base.words import amount
from ftrun.checkpoint.leaves import LeafSpec
from ftrun.checkpoint.meshes import is_split
from ftrun.snapshots import directory
from ftrun.snapshots.manifest import Origin
from ftrun.snapshots.memory import SharedMemory
from ftrun.snapshots.merging import merge
from ftrun.snapshots.parts import State, write_outline, write_part

DRAFT, PART, MERGE, DROP, WHOLE, AGREE = "draft", "part", "merge", "drop", "whole", "agree"
LINE_BYTES_MAX = 256 << 20
NICE = 5
SLACK = 1.1
"""A snapshot needs its bytes, and a little for its index."""


@dataclass(frozen=True, slots=True)
class Order:
    """One snapshot to write.

    ``writer``: the incarnation of the replica that writes it. ``offsets``: where the leaves begin
    in the shared memory of ``nbytes`` bytes. ``rank``, ``workers``: of the worker that orders it,
    and how many its replica has. ``chunks``: see ``State``; empty: there is no DTensor. ``draft``:
    the lead's. ``agreed``: for the manifest.
    """

    directory: str
    keep: int
    writer: str
    step: int
    lineage: str
    position: str
    origin: dict[str, Any]
    structure: Any
    specs: list[Any]
    offsets: list[int]
    nbytes: int
    user_key: str
    own_key: str
    rank: int = 0
    workers: int = 1
    chunks: Sequence[Any] = ()
    draft: str = ""
    agreed: int | None = None


def main() -> int:
    """Serve until the orders end: the arguments are the parent's pid and three descriptors."""
    if not linux.die_with_parent(int(sys.argv[1])):
        return 0
    writing = Writing(SharedMemory(int(sys.argv[2])))
    os.nice(NICE)  # from here on; its start is soon over, and a snapshot may be due by then
    torch.set_num_threads(1)
    orders, answers = os.fdopen(int(sys.argv[3])), os.fdopen(int(sys.argv[4]), "w", buffering=1)
    answers.write(json.dumps({"ready": True}) + "\n")
    while line := orders.readline(LINE_BYTES_MAX):
        answers.write(json.dumps(_answer(line, writing)) + "\n")
    return 0


def _answer(line: str, writing: Writing) -> dict[str, Any]:
    try:
        kind, fields = json.loads(line)
        if kind == DROP:
            writing.drop()
            return {}
        if kind == AGREE:
            directory.agree(Path(fields["path"]), fields["step"])
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of an API that is still new
            return writing.carry_out(kind, Order(**fields))
    except Exception as error:  # noqa: BLE001
        # The edge of this process: whatever torch or the disk raise is the answer, and it goes on.
        return {"error": _words(error)}


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    return (str(error) or type(error).__name__).splitlines()[0][:400]


class Writing:
    """The snapshot under way, of which this process has written nothing, a draft, or its part."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._draft: Path | None = None
        self._given_up: list[int] = []  # of writers that have died
        self._began = 0.0

    def carry_out(self, kind: str, order: Order) -> dict[str, Any]:
        """One order of the table; what to answer.

        Raises:
            OSError, RuntimeError: the disk, or torch's writer.
            PeerError: the state cannot be written, in words.
        """
        self._memory.reserve(order.nbytes)
        if kind == PART and order.rank:
            write_part(Path(order.draft), _state(order, self._memory))
            return {}
        try:
            return self._carry_out(kind, order)
        except BaseException:
            self.drop()
            raise

    def _carry_out(self, kind: str, order: Order) -> dict[str, Any]:
        state = _state(order, self._memory)
        if kind in (DRAFT, WHOLE):
            self._begin(order, state)
        assert self._draft is not None, "a draft first"
        if kind in (PART, WHOLE):
            write_part(self._draft, state)
        if kind in (MERGE, WHOLE):
            return self._merge(order)
        return {"path": str(self._draft)}

    def drop(self) -> None:
        """The draft does not become a snapshot."""
        if self._draft is not None:
            directory.drop_draft(self._draft)
            self._draft = None

    def _begin(self, order: Order, state: State) -> None:
        where = Path(order.directory)
        where.mkdir(parents=True, exist_ok=True)
        _require_room(where, sum(_share_of(spec, order.workers) for spec in state.specs))
        self._began = clock.now()
        self.drop()
        self._given_up = directory.drafts(where)
        self._draft = directory.make_draft(where, order.step, order.writer)
        if order.workers > 1:
            write_outline(self._draft, state)

    def _merge(self, order: Order) -> dict[str, Any]:
        assert self._draft is not None
        path, whole = merge(self._draft, order.workers, Origin(**order.origin), order.agreed)
        self._draft = None
        with contextlib.suppress(OSError):  # it is whole; old ones go the next time
            is_compared = order.agreed is not None
            directory.prune(Path(order.directory), order.keep, keeps_agreed=is_compared)
        duration_s = clock.now() - self._began
        return {
            "path": str(path),
            "nbytes": whole.nbytes,
            "duration_s": duration_s,
            "given_up": self._given_up,
        }


def write(order: Order, memory: SharedMemory) -> Path:
    """Write the snapshot of a replica of one worker, and remove old ones; its path.

    Raises:
        OSError, RuntimeError, PeerError: as ``Writing.carry_out``.
    """
    return Path(Writing(memory).carry_out(WHOLE, order)["path"])


def _state(order: Order, memory: SharedMemory) -> State:
    specs = tuple(LeafSpec(*_tuples(fields)) for fields in order.specs)
    leaves = [memory.view(o, s.nbytes) for o, s in zip(order.offsets, specs, strict=True)]
    chunks = tuple(None if x is None else tuple(x) for x in order.chunks)
    return State(
        order.rank,
        order.step,
        order.lineage,
        order.position,
        order.structure,
        specs,
        chunks or (None,) * len(specs),
        tuple(leaves),
        order.user_key,
        order.own_key,
    )


def _tuples(fields: Sequence[Any]) -> list[Any]:
    return [tuple(x) if isinstance(x, list) else x for x in fields]


def _share_of(spec: LeafSpec, workers: int) -> int:
    """The workers that write a leaf: each its own shard, and one worker what is whole."""
    return spec.nbytes * (workers if spec.mesh and is_split(spec.mesh) else 1)


def _require_room(where: Path, nbytes: int) -> None:
    free = shutil.disk_usage(where).free
    if free < nbytes * SLACK:
        raise PeerError(f"{amount(nbytes)} are needed and {amount(free)} are free")
