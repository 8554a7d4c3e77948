"""The orders of the process that writes snapshots, so that training processes only make a copy.

An order is a line of JSON, and so is its answer. The tensors are in memory that both processes map:
a worker's own (memory.py), or that of a whole group, which its agents have (groups.py). Each worker
of the replica that writes, or each node of the group, orders its own part. The orders come in this
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
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
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
from ftrun.snapshots.parts import OUTLINE, State, write_outline, write_part
from ftrun.snapshots.process import DRAFT, MERGE, PART, WHOLE

SLACK = 1.1
"""Free space needed, as a multiple of the snapshot's bytes: its index takes a little too."""


@dataclass(frozen=True, kw_only=True)
class Target(ABC):
    """A snapshot to write: where it goes, and from whose memory.

    Attributes:
        writer: the incarnation of the replica that writes it.
        workers: the number of workers of that replica.
        agreed: see ``Manifest``.
        draft: the draft directory, or its name; "": this connection's own.
    """

    directory: str
    keep: int
    writer: str
    step: int
    origin: dict[str, Any]
    workers: int = 1
    agreed: int | None = None
    draft: str = ""

    @abstractmethod
    def states(self, memory: SharedMemory | None) -> AbstractContextManager[Sequence[State]]:
        """The states to write, of one step; ``memory``: the connection's."""


@dataclass(frozen=True, kw_only=True)
class Order(Target):
    """A worker's own state to write.

    Attributes:
        offsets: where the leaves begin in the shared memory of ``nbytes`` bytes.
        rank: of the worker that sends the order.
        chunks: see ``State``; empty: there is no DTensor.
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

    @contextlib.contextmanager
    def states(self, memory: SharedMemory | None) -> Iterator[Sequence[State]]:
        """See Target."""
        assert memory is not None, "a worker has some"
        memory.reserve(self.nbytes)
        yield [_state(self, memory)]


class Writing:
    """The snapshot that one connection is writing.

    ``memory``: the connection's; None: it has none.
    """

    def __init__(self, memory: SharedMemory | None) -> None:
        self._memory = memory
        self._draft: Path | None = None
        self._given_up: list[int] = []  # steps of the drafts of writers that have died
        self._began = 0.0

    def close(self) -> None:
        """Free the memory when the connection has ended. A draft stays: the next writer reports
        it."""
        if self._memory is not None:
            self._memory.close()

    def obey(self, kind: str, order: Target) -> dict[str, Any]:
        """Carry out an order to write. Returns the answer.

        Raises:
            OSError, RuntimeError: the disk or torch's writer failed.
            PeerError: the state cannot be written, in words.
        """
        try:
            return self._obey(kind, order)
        except BaseException:
            self.drop()
            raise

    def _obey(self, kind: str, order: Target) -> dict[str, Any]:
        if kind == MERGE:
            return self._merge(order)
        with order.states(self._memory) as states:
            order = replace(order, step=states[0].step)
            if kind in (DRAFT, WHOLE):
                self._begin(order, states[0])
            if kind in (PART, WHOLE):
                draft = _draft_of(order) if order.draft else self._draft
                assert draft is not None, "a draft first"
                for state in states:
                    write_part(draft, state)
        if kind == WHOLE:
            return self._merge(order)
        return {} if self._draft is None else {"path": str(self._draft)}

    def drop(self) -> None:
        """Remove the draft."""
        if self._draft is not None:
            directory.drop_draft(self._draft)
            self._draft = None

    def _begin(self, order: Target, state: State) -> None:
        """Make a draft."""
        where = Path(order.directory)
        where.mkdir(parents=True, exist_ok=True)
        _require_room(where, sum(_share_of(spec, order.workers) for spec in state.specs))
        self._began = clock.now()
        self.drop()
        self._given_up = directory.drafts(where)
        self._draft = directory.make_draft(where, order.step, order.writer)
        if order.workers > 1:
            write_outline(self._draft, state)

    def _merge(self, order: Target) -> dict[str, Any]:
        """Make the draft a snapshot. Returns the answer."""
        assert self._draft is not None, "a draft first"
        path, whole = merge(self._draft, order.workers, Origin(**order.origin), order.agreed)
        self._draft = None
        with contextlib.suppress(OSError):  # the snapshot is whole; the next one prunes
            is_compared = order.agreed is not None
            directory.prune(Path(order.directory), order.keep, keeps_agreed=is_compared)
        duration_s = clock.now() - self._began
        return {
            "path": str(path),
            "step": order.step,
            "nbytes": whole.nbytes,
            "duration_s": duration_s,
            "given_up": self._given_up,
        }


def _draft_of(order: Target) -> Path:
    draft = Path(order.directory) / order.draft
    if not (draft / OUTLINE).exists():
        raise PeerError(
            f"{draft} is not there, which the first node has made. All nodes must share --snapshot"
        )
    return draft


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
