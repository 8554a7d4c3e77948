"""A DTensor's place in its mesh, as text that is stored with its leaf, and back.

Two DTensors are sharded alike if their texts are equal. A receiver that holds no such tensor (a
script's own transport receives into nothing) makes the mesh from the text. That mesh has no process
groups, because only the local part was sent.

Not here: the local part's bytes (leaves.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ftrun.base.errors import ProtocolError, UserError

RANKS_MAX = 1 << 20
_encode = json.JSONEncoder(separators=(",", ":")).encode


class _World:
    """``first``: the rank of this replica group's first worker in the script's world."""

    first = 0


_KNOWN: WeakKeyDictionary[Any, tuple[int, str]] = WeakKeyDictionary()
"""Cached texts of specs, which would otherwise be made again for each copy of a state."""


def count_from(rank: int) -> None:
    """Let ranks in texts begin at ``rank``, if all replica groups are one world.

    Then groups that are sharded alike have equal texts, although their ranks differ.
    """
    _World.first = rank


def describe(value: Any) -> str:
    """The text of a DTensor: placements, shape and stride of the whole, device, ranks, names."""
    spec = value._spec
    first, text = _KNOWN.get(spec, (None, ""))
    if first != _World.first:
        placements = [_words_of(placement) for placement in value.placements]
        whole = [placements, list(value.shape), list(value.stride()), *_of_mesh(value.device_mesh)]
        text = _encode(whole)
        _KNOWN[spec] = _World.first, text
    return text


def _of_mesh(mesh: Any) -> list[Any]:
    ranks = [rank - _World.first for rank in mesh.mesh.reshape(-1).tolist()]
    in_order = ranks == list(range(len(ranks)))
    names = list(mesh.mesh_dim_names) if mesh.mesh_dim_names else None
    return [mesh.device_type, list(mesh.mesh.shape), None if in_order else ranks, names]


def whole_shape(text: str) -> tuple[int, ...]:
    """The shape of the whole tensor of which ``text`` describes a part."""
    return tuple(json.loads(text)[1])


def is_split(text: str) -> bool:
    """Whether no two ranks of the mesh hold the same part."""
    return all(str(word).startswith("shard ") for word in json.loads(text)[0])


def chunk_of(value: Any) -> tuple[int, ...] | None:
    """The offsets of this process's part of a DTensor; None: it has no such part.

    It has none if it is not in the mesh, or if all ranks' parts are summands of the whole.

    Raises:
        UserError: the part is not a box of the whole.
    """
    is_summand = any(placement.is_partial() for placement in value.placements)
    if is_summand or value.device_mesh.get_coordinate() is None:
        return None
    try:
        chunks = value.__create_chunk_list__()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise UserError(f"a DTensor ({shown(describe(value))}) has no shards: {error}") from error
    if len(chunks) != 1 or tuple(chunks[0].sizes) != tuple(value._local_tensor.shape):
        raise UserError(f"a DTensor ({shown(describe(value))}) is not sharded in whole boxes")
    return tuple(chunks[0].offsets)


def shown(text: str) -> str:
    """The text for people; any other text as it is."""
    try:
        placements, shape, _, device, mesh, _, names = json.loads(text)
        sizes = "x".join(map(str, shape))
        return f"{placements} of {sizes} on {device} {tuple(mesh)} {names or ''}".rstrip()
    except (ValueError, TypeError):
        return text


def live(text: str, known: Iterable[tuple[str, Any]]) -> Any:
    """The mesh that ``text`` describes, if one of the ``known`` DTensors, by text, is on it."""
    wanted = _mesh_words(text)
    return next((x.device_mesh for other, x in known if wanted == _mesh_words(other)), None)


def _mesh_words(text: str) -> Any:
    try:
        return json.loads(text)[3:]
    except (ValueError, TypeError):
        return text


def rebuild(text: str, local: torch.Tensor, mesh: Any = None) -> Any:
    """The DTensor that ``text`` describes, around this process's part of it.

    ``mesh``: the one that the text describes (``live``); None: one without process groups is made.

    Raises:
        ProtocolError: the text describes none, or a placement that cannot be made from text.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    try:
        words, shape, stride, device, mesh_shape, ranks, names = json.loads(text)
        size = math.prod(mesh_shape)
        if size > RANKS_MAX:
            raise ValueError(f"a mesh of {size} ranks")
        tensor = torch.tensor(list(range(size)) if ranks is None else ranks, dtype=torch.int)
        tensor += _World.first
        mesh = mesh or DeviceMesh(
            str(device),
            tensor.view(mesh_shape),
            mesh_dim_names=None if names is None else tuple(map(str, names)),
            _init_backend=False,
        )
        # Not by from_local, which empties the part of a rank that is not in the mesh.
        meta = TensorMeta(torch.Size(shape), tuple(stride), local.dtype)
        spec = DTensorSpec(mesh, tuple(_placement(word) for word in words), tensor_meta=meta)
        build: Any = DTensor
        return build(local, spec, requires_grad=False)
    except (ValueError, TypeError, LookupError, RuntimeError, ImportError) as error:
        raise ProtocolError(f"a DTensor cannot be made of {text[:200]!r}: {error}") from error


def _words_of(placement: Any) -> str:
    name = type(placement).__name__
    if name == "Shard":
        return f"shard {placement.dim}"
    if name == "Replicate":
        return "replicate"
    if name == "_NormPartial":  # a gradient's norm
        return f"norm {placement.norm_type}"
    return f"partial {placement.reduce_op}" if name == "Partial" else repr(placement)


def _placement(word: str) -> Any:
    from torch.distributed.tensor import Partial, Replicate, Shard

    kind, _, argument = word.partition(" ")
    if kind == "shard":
        return Shard(int(argument))
    if kind == "partial":
        return Partial(argument)
    if kind == "replicate":
        return Replicate()
    if kind == "norm":
        from torch.distributed.tensor._ops._math_ops import _NormPartial

        return _NormPartial(float(argument))
    raise ValueError(f"no placement that can be made from text: {word!r}")
