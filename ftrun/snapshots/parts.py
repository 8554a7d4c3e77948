"""One worker's part of a snapshot: torch's DCP file of its items, and a note about it.

The workers of one replica write into one draft directory, each from its own process:

| written by           | file                 | content                                          |
|----------------------|----------------------|--------------------------------------------------|
| the lead, first      | ``.outline``         | its keys, and hashes of leaves that other        |
|                      |                      | workers may hold too                             |
| worker R             | ``__R_0.distcp``     | DCP's items: its shards; the lead's file also    |
|                      |                      | has the whole tensors                            |
| worker R, if needed  | ``ftrun.leaves[.R]`` | leaves for which DCP has no item, or whose item  |
|                      |                      | is the lead's                                    |
| worker R, last       | ``.part-R``          | the place of each of these                       |

A DTensor's local part is written as a shard of the whole tensor, with its offsets. A value that a
worker shares with the lead (a replicated weight, a step count) is stored once. A value under the
lead's key, but with other bytes (random numbers), is stored next to DCP's items, because DCP has
one value for all workers there. Only torch's own files contain pickle.

Not here: merging the parts (merging.py), orders and answers (writer.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult

from ftrun.base.errors import PeerError
from ftrun.base.files import sync, write_whole
from ftrun.checkpoint import meshes
from ftrun.checkpoint.format import unpack
from ftrun.checkpoint.leaves import LeafSpec
from ftrun.checkpoint.script_classes import DATACLASS, NAMED_TUPLE, OBJECT
from ftrun.snapshots import manifest
from ftrun.snapshots.manifest import StoredFile, StoredLeaf

RAW = "ftrun.leaves"
OWN = "ftrun"
"""DCP's top-level key of ftrun's own state. The script's keys are beside it."""
OUTLINE = ".outline"
PART = ".part-"


@dataclass(frozen=True, slots=True)
class State:
    """One worker's state in shared memory.

    Attributes:
        chunks: by leaf, the offsets of a DTensor's local part in the whole; None: not a DTensor, or
            this worker is not in its mesh.
        user_key, own_key: the keys of the tree's two parts.
    """

    rank: int
    step: int
    lineage: str
    position: str
    structure: Any
    specs: tuple[LeafSpec, ...]
    chunks: tuple[tuple[int, ...] | None, ...]
    leaves: tuple[torch.Tensor, ...]
    user_key: str
    own_key: str

    def digest(self, index: int) -> str:
        """The hash of a leaf's bytes."""
        return xxhash.xxh3_128_hexdigest(self.leaves[index].numpy().data)

    def may_be_repeated(self, index: int) -> bool:
        """Whether another worker may hold the same leaf. False if it is a shard in all
        dimensions."""
        mesh = self.specs[index].mesh
        return not mesh or not meshes.is_split(mesh)


@dataclass(frozen=True, slots=True)
class Outline:
    """The lead's part. ``leaves``: number and content of each leaf, by path."""

    keys: list[str]
    leaves: dict[str, tuple[int, str]]

    def write(self, draft: Path) -> None:
        """Write it to a draft."""
        (draft / OUTLINE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, draft: Path) -> Outline:
        """Read it from a draft."""
        found = json.loads((draft / OUTLINE).read_bytes())
        return cls(found["keys"], {path: (n, text) for path, (n, text) in found["leaves"].items()})


@dataclass(frozen=True, slots=True)
class Item:
    """One of DCP's items: its key, its place in the whole tensor, and its file.

    ``kind``: the name of a WriteItemType. ``sizes``, ``whole``: the shape of the part and of the
    whole tensor; empty for bytes.
    """

    key: str
    kind: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    whole: tuple[int, ...]
    dtype: str
    requires_grad: bool
    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Part:
    """The part that one worker wrote. A leaf given as a number is the lead's leaf of this
    number."""

    rank: int
    step: int
    lineage: str
    position: str
    structure: Any
    leaves: list[StoredLeaf | int]
    items: list[Item]
    paths: dict[str, list[str | int]]
    files: dict[str, StoredFile]

    def write(self, draft: Path) -> None:
        """Write it to a draft, atomically."""
        write_whole(draft / f"{PART}{self.rank}", json.dumps(asdict(self)))

    @classmethod
    def read(cls, draft: Path, rank: int) -> Part:
        """Read it from a draft."""
        found = json.loads((draft / f"{PART}{rank}").read_bytes())
        leaves = [x if isinstance(x, int) else _stored(x) for x in found.pop("leaves")]
        items = [Item(**{k: _tuple(v) for k, v in x.items()}) for x in found.pop("items")]
        files = {name: StoredFile(**x) for name, x in found.pop("files").items()}
        return cls(leaves=leaves, items=items, files=files, **found)


def _stored(found: dict[str, Any]) -> StoredLeaf:
    return StoredLeaf(**{**found, "spec": tuple(_tuple(x) for x in found["spec"])})


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# ---------------------------------------------------------------- writing


def write_outline(draft: Path, state: State) -> None:
    """Write the lead's first file. From it the other workers know what they need not write.

    Raises:
        PeerError: the state cannot be written, in words.
    """
    planner = _planner(state, None, {})
    leaves = {
        spec.path: (index, _content(state, index))
        for index, spec in enumerate(state.specs)
        if state.may_be_repeated(index)
    }
    Outline(list(planner.state_dict), leaves).write(draft)


def write_part(draft: Path, state: State) -> None:
    """Write this worker's files. Each is on the disk before the note is written.

    Raises:
        OSError: the disk failed, or the draft is gone.
        PeerError: the state cannot be written, in words.
    """
    outline = Outline.read(draft) if state.rank else None
    repeated = {} if outline is None else _repeated(state, outline)
    planner = _planner(state, outline, repeated)
    names = _keys_of_leaves(state.structure, state.user_key, state.own_key)
    items = _write_items(draft, planner, state.rank)
    places = {item.key: item for item in items if item.kind != WriteItemType.BYTE_IO.name}
    raw = f"{RAW}.{state.rank}" if state.rank else RAW
    stored: list[StoredLeaf | int] = []
    with open(draft / raw, "wb") as file:
        for index, spec in enumerate(state.specs):
            place = places.get(names.get(index, ""))
            if index in repeated:
                stored.append(repeated[index])
            elif place is not None:
                at = place.file, place.offset, place.length
                stored.append(StoredLeaf(spec.fields, *at))
            else:
                at = raw, file.tell(), file.write(state.leaves[index].numpy().data)
                stored.append(StoredLeaf(spec.fields, *at, is_raw=True))
    if not any(isinstance(leaf, StoredLeaf) and leaf.is_raw for leaf in stored):
        (draft / raw).unlink()
    mine = sorted({path for path in (draft / raw, *_dcp_files(draft, items)) if path.exists()})
    files = {}
    for path in mine:
        sync(path)
        files[path.name] = StoredFile(path.stat().st_size, manifest.digest_of(path))
    Part(
        state.rank,
        state.step,
        state.lineage,
        state.position,
        state.structure,
        stored,
        items,
        {key: list(path) for key, path in planner.mappings.items()},
        files,
    ).write(draft)


def _dcp_files(draft: Path, items: Sequence[Item]) -> Iterator[Path]:
    return (draft / item.file for item in items)


def _content(state: State, index: int) -> str:
    """The properties that two workers must share so that a leaf is stored once."""
    spec, chunk = state.specs[index], state.chunks[index]
    return json.dumps([spec.fields, chunk, state.digest(index)])


def _repeated(state: State, outline: Outline) -> dict[int, int]:
    """The leaves that equal the lead's, with the lead's numbers."""
    found = {}
    for index, spec in enumerate(state.specs):
        number, content = outline.leaves.get(spec.path, (0, ""))
        if content and state.may_be_repeated(index) and content == _content(state, index):
            found[index] = number
    return found


# ---------------------------------------------------------------- DCP's items


class Planner(DefaultSavePlanner):
    """torch's planner for one worker. It plans shards, and leaves out what other workers write.

    Args:
        shards: by key, the offsets of the local parts of DTensors, and the shapes of the whole.
        left_out: keys of which this worker writes nothing.
    """

    def __init__(
        self,
        shards: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]],
        left_out: frozenset[str],
    ) -> None:
        super().__init__(dedup_save_to_lowest_rank=True)
        self._shards = shards
        self._left_out = left_out

    def create_local_plan(self) -> SavePlan:
        """The items that this worker writes."""
        plan = super().create_local_plan()
        kept = [item for item in plan.items if item.index.fqn not in self._left_out]
        self.plan = replace(plan, items=[self._item(item) for item in kept])
        return self.plan

    def _item(self, item: WriteItem) -> WriteItem:
        place, data = self._shards.get(item.index.fqn), item.tensor_data
        if place is None or data is None:
            return item
        offsets, whole = map(torch.Size, place)
        chunk = ChunkStorageMetadata(offsets, data.chunk.sizes)
        return WriteItem(
            MetadataIndex(item.index.fqn, offsets),
            WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk, data.properties, whole),
        )

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return the local part, the only one here."""
        return self.state_dict[index.fqn]


def _planner(state: State, outline: Outline | None, repeated: Mapping[int, int]) -> Planner:
    """The planner of this worker's items. ``outline``: the lead's; None: this worker is the lead.

    Raises:
        PeerError: torch cannot save the state.
    """
    plain = [replace(s, kind="tensor", mesh="") if s.mesh else s for s in state.specs]
    tree = unpack(state.structure, plain, state.leaves, is_plain=True)
    saved = {**tree[state.user_key]}
    if OWN in saved:
        raise PeerError(f"the script has registered state under {OWN!r}, a key of ftrun's own")
    saved[OWN] = tree[state.own_key]
    names = _keys_of_leaves(state.structure, state.user_key, state.own_key)
    shards, nothing = {}, set()
    for index, key in names.items():
        spec, chunk = state.specs[index], state.chunks[index]
        if spec.mesh and (chunk is None or not spec.nbytes or index in repeated):
            nothing.add(key)
        elif spec.mesh and chunk is not None:
            shards[key] = chunk, meshes.whole_shape(spec.mesh)
    if outline is not None:
        nothing |= set(outline.keys) - shards.keys()
    planner = Planner(shards, frozenset(nothing))
    try:
        planner.set_up_planner(saved, None, is_coordinator=outline is None)
        planner.create_local_plan()
    except (ValueError, KeyError, TypeError, AssertionError, RuntimeError) as error:
        raise PeerError(f"torch cannot save it: {error}") from error
    return planner


def _write_items(draft: Path, planner: Planner, rank: int) -> list[Item]:
    """Have torch write the items of one worker's plan into its file."""
    writer = FileSystemWriter(draft)
    writer.set_up_storage_writer(rank == 0)
    plan = writer.prepare_global_plan([planner.plan] * (rank + 1))[rank]
    planned = {item.index: item for item in plan.items}
    if not planned:
        return []
    results = writer.write_data(plan, planner).wait()
    return [_item_of(planned[result.index], result) for result in results]


def _item_of(planned: WriteItem, result: WriteResult) -> Item:
    at, data = result.storage_data, planned.tensor_data
    where = at.relative_path, at.offset, at.length
    if data is None:
        return Item(planned.index.fqn, planned.type.name, (), (), (), "", False, *where)
    dtype = str(data.properties.dtype).removeprefix("torch.")
    chunk = data.chunk
    return Item(
        planned.index.fqn,
        planned.type.name,
        tuple(chunk.offsets),
        tuple(chunk.sizes),
        tuple(data.size),
        dtype,
        data.properties.requires_grad,
        *where,
    )


# ---------------------------------------------------------------- keys


def _keys_of_leaves(structure: Any, user_key: str, own_key: str) -> dict[int, str]:
    """DCP's key of each leaf that lies in dicts and lists only, by the leaf's number."""
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
    for kind in ("OrderedDict", "Counter", "defaultdict"):
        if kind in written:
            written = written[kind]
    for kind in (NAMED_TUPLE, DATACLASS, OBJECT):
        if kind in written:
            written = {"map": written[kind][1]}
    if "leaf" in written:
        yield written["leaf"], ".".join(path)
    for key, item in written.get("map", {}).items():
        yield from _walk(item, (*path, key))
    for key, item in written.get("pairs", ()):
        if isinstance(key, (str, int, bool, type(None))):
            yield from _walk(item, (*path, str(key)))
