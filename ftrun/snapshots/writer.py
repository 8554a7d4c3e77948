"""The orders of the process that writes snapshots, so that training processes only make a copy.

An order is a line of JSON, and so is its answer. The tensors are in memory that both processes map
(memory.py). Each worker of the replica that writes orders its own part. The orders come in this
sequence, so that a kill at any moment leaves older snapshots whole and nothing that looks like one:

| order     | to          | what is done                                                           |
|-----------|-------------|------------------------------------------------------------------------|
| ``draft`` | the lead's  | makes a draft directory, notes what the others need not write          |
| ``part``  | each        | torch writes the worker's files to the draft, each synced (parts.py)   |
| ``merge`` | the lead's  | writes DCP's index, then the manifest with sizes and hashes: written,  |
|           |             | synced, renamed. The draft is synced and gets its name, the directory  |
|           |             | is synced: now it is a snapshot. Prunes the oldest beyond ``keep``     |
| ``drop``  | the lead's  | removes the draft, because a part is missing                           |
| ``whole`` | one alone   | the first three                                                        |
| ``agree`` | the lead's  | notes that all replicas have agreed on a snapshot (path, step)         |

Not here: the process (serving.py), when a snapshot is due (core/worker/snapshots.py), the copy and
the waits for parts (training/snapshots.py).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftrun.base import clock
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
SLACK = 1.1
"""Free space needed, as a multiple of the snapshot's bytes: its index takes a little too."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a snapshot goes.

    Attributes:
        writer: the incarnation of the replica that writes it.
        workers: the number of workers of that replica.
        agreed: see ``Manifest``.
    """

    directory: str
    keep: int
    writer: str
    step: int
    origin: dict[str, Any]
    workers: int = 1
    agreed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Order(Target):
    """One snapshot to write.

    Attributes:
        offsets: where the leaves begin in the shared memory of ``nbytes`` bytes.
        rank: of the worker that sends the order.
        chunks: see ``State``; empty: there is no DTensor.
        draft: the lead's draft directory.
    """

    lineage: str
    position: str
    structure: Any
    specs: list[Any]
    offsets: list[int]
    nbytes: int
    user_key: str
    own_key: str
    rank: int = 0
    chunks: Sequence[Any] = ()
    draft: str = ""


class Writing:
    """The snapshot that one connection is writing.

    ``memory``: the connection's; None: it has none.
    """

    def __init__(self, memory: SharedMemory | None) -> None:
        self._memory = memory
        self._draft: Path | None = None
        self._given_up: list[int] = []  # steps of the drafts of writers that have died
        self._began = 0.0

    def obey(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Carry out any order of the table, given as JSON. Raises as ``carry_out``."""
        if kind == DROP:
            self.drop()
            return {}
        if kind == AGREE:
            directory.agree(Path(fields["path"]), fields["step"])
            return {}
        return self.carry_out(kind, Order(**fields))

    def close(self) -> None:
        """Free the memory when the connection has ended. A draft stays: the next writer reports
        it."""
        if self._memory is not None:
            self._memory.close()

    def carry_out(self, kind: str, order: Order) -> dict[str, Any]:
        """Carry out an order to write. Returns the answer.

        Raises:
            OSError, RuntimeError: the disk or torch's writer failed.
            PeerError: the state cannot be written, in words.
        """
        assert self._memory is not None, "a worker has some"
        self._memory.reserve(order.nbytes)
        state = _state(order, self._memory)
        if kind == PART and order.rank:
            write_part(Path(order.draft), state)
            return {}
        try:
            return self._carry_out(kind, order, state)
        except BaseException:
            self.drop()
            raise

    def _carry_out(self, kind: str, order: Order, state: State) -> dict[str, Any]:
        if kind in (DRAFT, WHOLE):
            self.begin(order, state)
        assert self._draft is not None, "a draft first"
        if kind in (PART, WHOLE):
            write_part(self._draft, state)
        if kind in (MERGE, WHOLE):
            return self.merge(order)
        return {"path": str(self._draft)}

    def drop(self) -> None:
        """Remove the draft."""
        if self._draft is not None:
            directory.drop_draft(self._draft)
            self._draft = None

    def begin(self, order: Target, state: State) -> Path:
        """Make a draft. Returns its path. Raises as ``carry_out``."""
        where = Path(order.directory)
        where.mkdir(parents=True, exist_ok=True)
        _require_room(where, sum(_share_of(spec, order.workers) for spec in state.specs))
        self._began = clock.now()
        self.drop()
        self._given_up = directory.drafts(where)
        self._draft = directory.make_draft(where, order.step, order.writer)
        if order.workers > 1:
            write_outline(self._draft, state)
        return self._draft

    def merge(self, order: Target) -> dict[str, Any]:
        """Make the draft a snapshot. Returns the answer. Raises as ``carry_out``."""
        assert self._draft is not None
        path, whole = merge(self._draft, order.workers, Origin(**order.origin), order.agreed)
        self._draft = None
        with contextlib.suppress(OSError):  # the snapshot is whole; the next one prunes
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
    """Write the snapshot of a replica with one worker, and prune. Returns its path.

    Raises:
        OSError, RuntimeError, PeerError: as ``Writing.carry_out``.
    """
    return Path(Writing(memory).carry_out(WHOLE, order)["path"])


def _state(order: Order, memory: SharedMemory) -> State:
    specs = tuple(LeafSpec.of(fields) for fields in order.specs)
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


def _share_of(spec: LeafSpec, workers: int) -> int:
    """The number of workers that write a leaf: all of them for a shard, one for a whole tensor."""
    return spec.nbytes * (workers if spec.mesh and is_split(spec.mesh) else 1)


def _require_room(where: Path, nbytes: int) -> None:
    free = shutil.disk_usage(where).free
    if free < nbytes * SLACK:
        raise PeerError(f"{amount(nbytes)} are needed and {amount(free)} are free")
