"""The process that writes snapshots, so that the training process only makes a copy.

It reads one order after the other from its standard input, each a line of JSON, and answers each
with a line on its standard output. The tensors are in memory that both processes map (memory.py).
torch itself writes the DCP files. In this order, so that a kill at any moment leaves older
snapshots whole and nothing that looks like one:

1. a draft directory: DCP's files, and a file for what DCP has packed together; each synced;
2. the manifest with their sizes and hashes: written, synced, renamed; the draft is synced;
3. the draft gets its name, and the directory is synced. From here on it is a snapshot;
4. the oldest ones beyond ``keep`` are removed.

Not here: when a snapshot is due (core/worker/snapshots.py), the copy (training/snapshots.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_saver import save

from ftrun import clock, linux
from ftrun.checkpoint.format import unpack
from ftrun.checkpoint.leaves import LeafSpec
from ftrun.errors import PeerError
from ftrun.logs.units import bytes_words
from ftrun.snapshots import directory, manifest
from ftrun.snapshots.manifest import Manifest, Origin, StoredFile, StoredLeaf
from ftrun.snapshots.memory import SharedMemory

RAW = "ftrun.leaves"
OWN = "ftrun"
"""DCP's top-level key of ftrun's own state. The script's keys are beside it."""
LINE_BYTES_MAX = 256 << 20
NICE = 5
SLACK = 1.1
"""A snapshot needs its bytes, and a little for its index."""


@dataclass(frozen=True, slots=True)
class Order:
    """One snapshot to write.

    ``writer``: the incarnation of the worker that orders it. ``offsets``: where the leaves begin in
    the shared memory of ``nbytes`` bytes. ``user_key``, ``own_key``: of the tree's two parts.
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


def main() -> int:
    """Serve until standard input ends."""
    if not linux.die_with_parent(int(sys.argv[1])):
        return 0
    memory = SharedMemory(int(sys.argv[2]))
    for number in (signal.SIGINT, signal.SIGTERM):  # the training process decides when this ends
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)  # from here on; its start is soon over, and a snapshot may be due by then
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    answers.write(json.dumps({"ready": True}) + "\n")
    while line := sys.stdin.readline(LINE_BYTES_MAX):
        answers.write(json.dumps(_answer(line, memory)) + "\n")
    return 0


def _answer(line: str, memory: SharedMemory) -> dict[str, Any]:
    began = clock.now()
    try:
        order = Order(**json.loads(line))
        memory.reserve(order.nbytes)
        path, nbytes = write(order, memory)
    except Exception as error:  # noqa: BLE001
        # The edge of this process: whatever torch or the disk raise is the answer, and it goes on.
        return {"error": _words(error)}
    return {"path": str(path), "nbytes": nbytes, "duration_s": clock.now() - began}


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    return (str(error) or type(error).__name__).splitlines()[0][:400]


def write(order: Order, memory: SharedMemory) -> tuple[Path, int]:
    """Write one snapshot and remove old ones; its path and size.

    Raises:
        OSError, RuntimeError: the disk, or torch's writer.
        PeerError: the state cannot be written, in words.
    """
    where = Path(order.directory)
    specs = tuple(LeafSpec(*_tuples(fields)) for fields in order.specs)
    leaves = [memory.view(o, s.nbytes) for o, s in zip(order.offsets, specs, strict=True)]
    where.mkdir(parents=True, exist_ok=True)
    _require_room(where, sum(spec.nbytes for spec in specs))
    with directory.draft(where, order.step, order.writer) as draft:
        stored = _write_state(draft, order, specs, leaves)
        whole = Manifest(
            step=order.step,
            lineage=order.lineage,
            origin=Origin(**order.origin),
            position=order.position,
            written_at=clock.wall().isoformat(timespec="seconds"),
            structure=order.structure,
            leaves=stored,
        )
        whole = replace(whole, files=_sync_all(draft))
        _write_synced(draft / manifest.NAME, whole.encode())
        path = directory.publish(draft, order.step, order.lineage)
    with contextlib.suppress(OSError):  # it is whole; old ones go the next time
        directory.prune(where, order.keep)
    return path, whole.nbytes


def _tuples(fields: Sequence[Any]) -> list[Any]:
    return [tuple(x) if isinstance(x, list) else x for x in fields]


def _require_room(where: Path, nbytes: int) -> None:
    free = shutil.disk_usage(where).free
    if free < nbytes * SLACK:
        raise PeerError(f"{bytes_words(nbytes)} are needed and {bytes_words(free)} are free")


def _write_state(
    draft: Path, order: Order, specs: Sequence[LeafSpec], leaves: Sequence[torch.Tensor]
) -> tuple[StoredLeaf, ...]:
    """DCP's files, and one for the leaves that DCP does not store by themselves."""
    tree = unpack(order.structure, specs, leaves)
    state = {**tree[order.user_key]}
    if OWN in state:
        raise PeerError(f"the script has registered state under {OWN!r}, a key of ftrun's own")
    state[OWN] = tree[order.own_key]
    _save(state, draft)
    places = _places(draft)
    where_in_tree = _keys_of_leaves(order.structure, order.user_key, order.own_key)
    stored = []
    with open(draft / RAW, "wb") as raw:
        for index, (spec, data) in enumerate(zip(specs, leaves, strict=True)):
            place = places.get(where_in_tree.get(index, ""))
            if place is None:
                place = RAW, raw.tell(), raw.write(data.numpy().data)
            stored.append(StoredLeaf(_fields(spec), *place, is_raw=place[0] == RAW))
        is_empty = raw.tell() == 0 and not any(leaf.file == RAW for leaf in stored)
    if is_empty:
        (draft / RAW).unlink()
    return tuple(stored)


def _save(state: dict[str, Any], draft: Path) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this one process saves alone
            save(state, storage_writer=FileSystemWriter(draft), no_dist=True)
    except CheckpointException as error:  # no Exception: it would end this process
        causes = [cause for cause, _ in error.failures.values()]
        if causes and isinstance(causes[0], OSError):
            raise causes[0] from error
        raise PeerError(f"torch cannot save it: {causes[0] if causes else error}") from error


def _fields(spec: LeafSpec) -> tuple[Any, ...]:
    return (
        spec.kind,
        spec.parent,
        spec.name,
        spec.dtype,
        spec.shape,
        spec.nbytes,
        spec.order,
        spec.requires_grad,
        spec.mesh,
    )


def _places(draft: Path) -> dict[str, tuple[str, int, int]]:
    """File, offset and length of each tensor that DCP has stored by itself, by its key."""
    index = FileSystemReader(draft).read_metadata()
    found = {}
    for at, info in (index.storage_data or {}).items():
        whole = isinstance(index.state_dict_metadata.get(at.fqn), TensorStorageMetadata)
        if whole and isinstance(at, MetadataIndex):
            found[at.fqn] = (info.relative_path, info.offset, info.length)
    return found


def _keys_of_leaves(structure: Any, user_key: str, own_key: str) -> dict[int, str]:
    """DCP's key of each leaf that lies in dicts and lists only, by its number."""
    parts = structure["map"]
    found: dict[int, str] = {}
    for key, written in parts[user_key].get("map", {}).items():
        found.update(_walk(written, (key,)))
    found.update(_walk(parts[own_key], (OWN,)))
    return found


def _walk(written: Any, path: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    if isinstance(written, list):
        for number, item in enumerate(written):
            yield from _walk(item, (*path, str(number)))
        return
    if not isinstance(written, Mapping):
        return
    for kind in ("OrderedDict", "Counter"):
        if kind in written:
            written = written[kind]
    if "leaf" in written:
        yield written["leaf"], ".".join(path)
    for key, item in written.get("map", {}).items():
        yield from _walk(item, (*path, key))
    for key, item in written.get("pairs", ()):
        if isinstance(key, (str, int, bool, type(None))):
            yield from _walk(item, (*path, str(key)))


def _sync_all(draft: Path) -> dict[str, StoredFile]:
    found = {}
    for path in sorted(draft.iterdir()):
        directory.sync(path)
        found[path.name] = StoredFile(path.stat().st_size, manifest.digest_of(path))
    return found


def _write_synced(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, path)
