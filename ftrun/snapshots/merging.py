"""Merges the parts that a replica's workers have written (parts.py) into one checkpoint.

torch's own planner combines the parts' items and checks that the shards of each tensor cover it.
torch's writer writes DCP's index. The manifest follows, and then the draft gets its name.

Not here: waiting for the parts (training/snapshots.py), the directory (directory.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult

from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.base.files import sync, write_whole
from ftrun.checkpoint.leaves import DTYPES
from ftrun.snapshots import directory, manifest
from ftrun.snapshots.manifest import Manifest, Origin, Share, StoredFile, StoredLeaf
from ftrun.snapshots.parts import OUTLINE, PART, Item, Part

METADATA = ".metadata"


def merge(
    draft: Path, workers: int, origin: Origin, agreed: int | None = None
) -> tuple[Path, Manifest]:
    """Make a snapshot of a draft that has the parts of all workers. Returns its path and manifest.

    ``agreed``: see ``Manifest``.

    Raises:
        OSError: the disk failed, or a part is missing.
        PeerError: the parts do not belong together.
    """
    parts = [Part.read(draft, rank) for rank in range(workers)]
    lead = parts[0]
    for part in parts:
        if (part.step, part.lineage) != (lead.step, lead.lineage):
            raise PeerError(
                f"worker {part.rank} has copied step {part.step}, and worker 0 step {lead.step}"
            )
    _write_index(draft, parts)
    index = draft / METADATA
    sync(index)
    files = {METADATA: StoredFile(index.stat().st_size, manifest.digest_of(index))}
    for part in parts:
        files.update(part.files)
        (draft / f"{PART}{part.rank}").unlink()
    (draft / OUTLINE).unlink(missing_ok=True)
    shares = [_share(part, lead) for part in parts]
    whole = Manifest(
        step=lead.step,
        lineage=lead.lineage,
        origin=origin,
        position=lead.position,
        written_at=clock.wall().isoformat(timespec="seconds"),
        structure=lead.structure,
        leaves=shares[0].leaves,
        files=files,
        mates=tuple(shares[1:]),
        agreed=agreed,
    )
    write_whole(draft / manifest.NAME, whole.encode(), is_synced=True)
    return directory.publish(draft, lead.step, lead.lineage), whole


def _share(part: Part, lead: Part) -> Share:
    return Share(part.position, part.structure, tuple(_stored(x, lead) for x in part.leaves))


def _stored(leaf: StoredLeaf | int, lead: Part) -> StoredLeaf:
    found = lead.leaves[leaf] if isinstance(leaf, int) else leaf
    assert isinstance(found, StoredLeaf), "the lead repeats nobody"
    return found


def _write_index(draft: Path, parts: Sequence[Part]) -> None:
    plans = [
        SavePlan(
            [_planned(item) for item in part.items],
            planner_data={key: tuple(path) for key, path in part.paths.items()},
        )
        for part in parts
    ]
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    try:
        plans, metadata = planner.create_global_plan(plans)
    except (ValueError, KeyError, AssertionError) as error:
        raise PeerError(f"torch cannot save it: {error}") from error
    writer = FileSystemWriter(draft)
    writer.set_up_storage_writer(True)
    found = []
    for plan, part in zip(plans, parts, strict=True):
        places = {_index(item): item for item in part.items}
        found.append([_result(planned, places[planned.index]) for planned in plan.items])
    writer.finish(metadata, found)


def _index(item: Item) -> MetadataIndex:
    if item.kind == WriteItemType.BYTE_IO.name:
        return MetadataIndex(item.key)
    return MetadataIndex(item.key, torch.Size(item.offsets))


def _planned(item: Item) -> WriteItem:
    kind = WriteItemType[item.kind]
    if kind is WriteItemType.BYTE_IO:
        return WriteItem(_index(item), kind)
    chunk = ChunkStorageMetadata(torch.Size(item.offsets), torch.Size(item.sizes))
    properties = TensorProperties(DTYPES[item.dtype], requires_grad=item.requires_grad)
    data = TensorWriteData(chunk, properties, torch.Size(item.whole))
    return WriteItem(_index(item), kind, tensor_data=data)


def _result(planned: WriteItem, item: Item) -> WriteResult:
    place = _StorageInfo(item.file, item.offset, item.length)
    return WriteResult(planned.index, item.length, place)
