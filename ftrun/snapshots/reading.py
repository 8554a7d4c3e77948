"""Reads a snapshot back: verified, without unpickling.

The tensors lie in torch's DCP files. The manifest has their places, so DCP's own index, which is a
pickle, is not needed. Each file is read once, and its hash is checked before its content is used.
Not here: when a worker reads, and what follows (training/resuming.py).
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import torch
import xxhash

from ftrun.base.errors import ProtocolError
from ftrun.checkpoint.format import Tree, pack, unpack
from ftrun.checkpoint.leaves import LeafSpec, leaf_of
from ftrun.snapshots.directory import Found
from ftrun.snapshots.manifest import READ_BYTES, Damaged, Share, StoredFile, StoredLeaf


def read(found: Found, mine: Tree, rank: int = 0) -> Tree:
    """The tree of worker ``rank`` of a replica, on the devices of ``mine``, the script's own tree.

    Raises:
        Damaged: the bytes differ from what was written.
        OSError: they cannot be read now.
        UserError: a DTensor is sharded differently from the one in ``mine``; names its key.
    """
    share = found.manifest.share(rank)
    own = pack(mine).leaves
    leaves = next(parts(found, [rank]))
    try:
        return unpack(share.structure, specs_of(share), leaves, own)
    except ProtocolError as why:
        raise Damaged(str(why)) from why


def specs_of(share: Share) -> tuple[LeafSpec, ...]:
    """The specs of a share's leaves."""
    return tuple(_spec(leaf) for leaf in share.leaves)


def _spec(stored: StoredLeaf) -> LeafSpec:
    try:
        spec = LeafSpec.of(stored.spec)
        spec.check()
    except (ValueError, TypeError, ProtocolError) as why:
        raise Damaged(f"its manifest is malformed: {why}") from why
    return spec


def parts(found: Found, ranks: Sequence[int]) -> Iterator[list[torch.Tensor]]:
    """Yield the bytes of the leaves of each of these workers.

    Raises:
        Damaged, OSError: as ``read``.
    """
    of = found.manifest
    shares = [of.share(rank) for rank in ranks]
    last = {leaf: number for number, share in enumerate(shares) for leaf in share.leaves}
    known: dict[StoredLeaf, torch.Tensor] = {}
    read: set[str] = set()
    for number, (rank, share) in enumerate(zip(ranks, shares, strict=True)):
        for name, file in of.files_of(rank).items():
            if name not in read:
                read.add(name)
                known |= _checked(found.path / name, file, [x for x in last if x.file == name])
        yield [known[leaf] for leaf in share.leaves]
        known = {leaf: data for leaf, data in known.items() if last[leaf] > number}


def _checked(
    path: Path, file: StoredFile, leaves: Collection[StoredLeaf]
) -> dict[StoredLeaf, torch.Tensor]:
    """Read one file, check its hash, and return the bytes of these leaves in it."""
    hasher, at = xxhash.xxh3_128(), 0
    data = memoryview(bytearray(file.nbytes if leaves else min(file.nbytes, READ_BYTES)))
    try:
        with open(path, "rb", buffering=0) as opened:
            while count := opened.readinto(data[at : at + READ_BYTES]):
                hasher.update(data[at : at + count])
                at += count if leaves else 0
    except FileNotFoundError as error:
        raise Damaged(f"{path.name} is not there") from error
    if hasher.hexdigest() != file.digest:
        raise Damaged(f"{path.name} is not what was written: its hash differs")
    return {leaf: _bytes_of(leaf, data[leaf.offset : leaf.offset + leaf.length]) for leaf in leaves}


def _bytes_of(leaf: StoredLeaf, data: memoryview) -> torch.Tensor:
    return _raw(data, _spec(leaf)) if leaf.is_raw else _of_dcp(data, _spec(leaf))


def _raw(data: memoryview, spec: LeafSpec) -> torch.Tensor:
    if len(data) != spec.nbytes:
        raise Damaged(f"{spec.path} has {len(data)} bytes instead of {spec.nbytes}")
    return tensor_of(data)


def tensor_of(data: memoryview) -> torch.Tensor:
    """Bytes as a tensor, where they lie."""
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(data, dtype=torch.uint8)


def _of_dcp(data: memoryview, spec: LeafSpec) -> torch.Tensor:
    """The bytes of a tensor that DCP has stored, in the memory order that ``spec`` states."""
    try:
        tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        leaf = leaf_of(tensor.detach(), spec.parent, spec.name)
    except (RuntimeError, ValueError, AttributeError) as why:
        raise Damaged(f"{spec.path} cannot be read: {why}") from why
    same = leaf is not None and (leaf.spec.dtype, leaf.spec.shape) == (spec.dtype, spec.shape)
    if leaf is None or not same:
        raise Damaged(f"{spec.path} is another tensor than its manifest says")
    if leaf.spec.order != spec.order:
        permuted = tensor.permute(spec.order) if spec.order else tensor
        dense: torch.Tensor = permuted.contiguous()
        return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
    assert isinstance(leaf.data, torch.Tensor)
    return leaf.data
