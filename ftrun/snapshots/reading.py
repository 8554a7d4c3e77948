"""Reads a snapshot back: verified, without unpickling.

The tensors lie in torch's DCP files, and the manifest has their places. So DCP's own index, which
is a pickle, is not read. Not here: when a worker reads, and what follows (training/resuming.py).
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import torch

from ftrun.base.errors import ProtocolError
from ftrun.checkpoint.format import Tree, pack, unpack
from ftrun.checkpoint.leaves import LeafSpec, leaf_of
from ftrun.snapshots import manifest as manifests
from ftrun.snapshots.directory import Found
from ftrun.snapshots.manifest import Damaged, Share, StoredLeaf


def read(found: Found, mine: Tree, rank: int = 0) -> Tree:
    """The tree of worker ``rank`` of a replica, on the devices of ``mine``, the script's own tree.

    Raises:
        Damaged: its bytes are not what was written.
        OSError: they cannot be read now.
        UserError: a DTensor is sharded in another way than that of ``mine``; names its key.
    """
    share = found.manifest.share(rank)
    own = pack(mine).leaves
    manifests.verify(found.path, found.manifest, rank)
    read = buffers(found.path, share)
    try:
        return unpack(share.structure, specs_of(share), read, own)
    except ProtocolError as why:
        raise Damaged(str(why)) from why


def specs_of(share: Share) -> tuple[LeafSpec, ...]:
    """Of its leaves."""
    return tuple(_spec(leaf) for leaf in share.leaves)


def _spec(stored: StoredLeaf) -> LeafSpec:
    try:
        kind, parent, name, dtype, shape, nbytes, order, requires_grad, mesh = stored.spec
        spec = LeafSpec(
            kind, parent, name, dtype, tuple(shape), nbytes, tuple(order), requires_grad, mesh
        )
        spec.check()
    except (ValueError, TypeError, ProtocolError) as why:
        raise Damaged(f"its manifest is malformed: {why}") from why
    return spec


def buffers(path: Path, share: Share) -> list[torch.Tensor]:
    """The bytes of its leaves, whose files were verified.

    Raises:
        Damaged, OSError: as ``read``.
    """
    found, specs = [], specs_of(share)
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context(open(path / name, "rb"))
            for name in {stored.file for stored in share.leaves}
        }
        for stored, spec in zip(share.leaves, specs, strict=True):
            files[stored.file].seek(stored.offset)
            data = files[stored.file].read(stored.length)
            found.append(_raw(data, spec) if stored.is_raw else _of_dcp(data, spec))
    return found


def _raw(data: bytes, spec: LeafSpec) -> torch.Tensor:
    if len(data) != spec.nbytes:
        raise Damaged(f"{spec.path} has {len(data)} bytes instead of {spec.nbytes}")
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _of_dcp(data: bytes, spec: LeafSpec) -> torch.Tensor:
    """The bytes of a tensor that DCP has stored, in the order of memory that ``spec`` states."""
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
