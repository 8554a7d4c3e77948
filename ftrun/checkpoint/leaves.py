"""The leaves of a state tree: tensors, arrays and bytes, each with a spec and its raw memory.

A dense tensor is used in place, whatever the order of its dimensions; any other tensor is copied to
dense memory first. A DTensor is sent as its local shard: the same group_rank of another replica
group holds the same shard, and the receiver's own DTensor provides the mesh.

Not here: the tree around the leaves (format.py).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

import numpy as np
import torch

from ftrun.base.errors import ProtocolError, UserError
from ftrun.checkpoint import meshes

DIMENSIONS_MAX = 64
NUMPY_KINDS = "biufcmMSU"
_TYPESTR = re.compile(rf"[<>|=][{NUMPY_KINDS}][0-9]{{1,9}}(\[[0-9A-Za-z]{{1,16}}\])?")
DTYPES = {name: kind for name, kind in vars(torch).items() if isinstance(kind, torch.dtype)}
"""By name. ``getattr(torch, name)`` with a peer's name would import whatever it names."""
KINDS = ("tensor", "param", "dtensor", "ndarray", "bytes", "bytearray")


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """The kind, path and shape of a leaf. ``path`` = ``parent`` + ``name``.

    Attributes:
        dtype: torch's name, or numpy's typestr for an ndarray.
        order: the dimensions in memory order, outermost first; empty: their own order.
        mesh: the global shape, placements and mesh of a DTensor, as a text; DTensors with equal
            texts fit together.
    """

    kind: str
    parent: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    order: tuple[int, ...] = ()
    requires_grad: bool = False
    mesh: str = ""

    @staticmethod
    def of(fields: Iterable[Any]) -> LeafSpec:
        """Build it from its fields in order, as JSON has them."""
        known: list[Any] = [tuple(x) if type(x) is list else x for x in fields]
        return LeafSpec(*known)

    @property
    def fields(self) -> tuple[Any, ...]:
        """All fields in order. (``astuple`` would take much longer.)"""
        found: tuple[Any, ...] = _FIELDS(self)
        return found

    @property
    def path(self) -> str:
        """The keys that lead to the leaf, with the leading dot if there is one."""
        return self.parent + self.name

    def check(self) -> None:
        """Raise ProtocolError if the fields contradict each other, because a peer is not
        trusted."""
        sizes = (*self.shape, self.nbytes, *self.order)
        if self.kind not in KINDS or len(self.shape) > DIMENSIONS_MAX or min(sizes) < 0:
            raise ProtocolError(f"leaf {self.path!r}: no such {self.kind!r} of {self.shape}")
        if self.nbytes != math.prod(self.shape) * _itemsize(self):
            raise ProtocolError(f"leaf {self.path!r}: {self.nbytes} bytes do not fit its shape")
        if self.order and sorted(self.order) != list(range(len(self.shape))):
            raise ProtocolError(f"leaf {self.path!r}: {self.order} is not an order of dimensions")
        if self.requires_grad and not _differentiable(self):
            raise ProtocolError(f"leaf {self.path!r}: a {self.dtype} cannot require a gradient")


FIELDS = [field.name for field in dataclasses.fields(LeafSpec)]
_FIELDS = attrgetter(*FIELDS)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of a live tree: its spec, its bytes (a view if possible), and the object."""

    spec: LeafSpec
    data: torch.Tensor | memoryview
    value: Any


def leaf_of(value: Any, parent: str, name: str) -> Leaf | None:
    """``value`` as a leaf, or None if it is of another kind."""
    if isinstance(value, torch.Tensor):
        return _tensor_leaf(value, parent, name)
    if type(value) is np.ndarray and value.dtype.kind in NUMPY_KINDS:
        return _array_leaf(value, parent, name)
    if type(value) in (bytes, bytearray):
        spec = LeafSpec(type(value).__name__, parent, name, "uint8", (len(value),), len(value))
        return Leaf(spec, memoryview(value), value)
    return None


def restore(
    spec: LeafSpec, buffer: torch.Tensor, mine: Leaf | None, others: Sequence[Leaf] | None = None
) -> Any:
    """The object that ``spec`` describes, on the memory of ``buffer`` (uint8, of spec.nbytes).

    ``others``: without ``mine``, a DTensor gets the mesh of one of these if that is on the same
    mesh. If ``others`` is empty, the mesh is made from its description.
    """
    if spec.kind == "bytes":
        return buffer.numpy().tobytes()
    if spec.kind == "bytearray":
        return bytearray(buffer.numpy())
    if spec.kind == "ndarray":
        return buffer.numpy().view(numpy_dtype(spec.dtype)).reshape(spec.shape)
    tensor = _shaped(spec, buffer)
    if mine is not None and isinstance(mine.data, torch.Tensor) and mine.data.device.type != "cpu":
        tensor = tensor.to(mine.data.device)
    if spec.kind == "dtensor":
        known = ((x.spec.mesh, x.value) for x in others or () if x.spec.mesh)
        mesh = meshes.live(spec.mesh, known) if mine is None else None
        if mesh is not None or (mine is None and others is not None and not others):
            made = meshes.rebuild(spec.mesh, tensor, mesh)
            return made.requires_grad_(spec.requires_grad)
        return _sharded(spec, tensor, mine)
    if spec.kind == "param":
        return torch.nn.Parameter(tensor, requires_grad=spec.requires_grad)
    return tensor.requires_grad_(spec.requires_grad)


def in_place(leaf: Leaf, spec: LeafSpec, device: str = "cpu") -> torch.Tensor | None:
    """The memory of ``leaf`` on ``device``, if a leaf of this ``spec`` can be written into it."""
    own, data = leaf.spec, leaf.data
    same = (own.dtype, own.shape, own.order, own.mesh) == (
        spec.dtype,
        spec.shape,
        spec.order,
        spec.mesh,
    )
    if not same or not isinstance(data, torch.Tensor) or data.device.type != device:
        return None
    local = cast(torch.Tensor, local_of(leaf.value))
    aliased = data.untyped_storage().data_ptr() == local.untyped_storage().data_ptr()
    return data if aliased else None


# ---------------------------------------------------------------- tensors


def local_of(value: Any) -> Any:
    """This process's part of a DTensor; any other value unchanged."""
    if not _is_dtensor(value):
        return value
    local = value._local_tensor
    # DTensor's own way takes ten times as long. A rank may not be in the mesh.
    if type(local) is torch.Tensor or value.device_mesh.get_coordinate() is None:
        return local.detach()
    return value.detach().to_local()


def clone_of(value: torch.Tensor) -> torch.Tensor:
    """A copy without a graph. Avoids DTensor's own clone, which first adds a sharding rule."""
    if not _is_dtensor(value) or type(value._local_tensor) is not torch.Tensor:  # type: ignore[attr-defined]
        return value.detach().clone()
    kind: Any = type(value)
    made: torch.Tensor = kind(local_of(value).clone(), value._spec, requires_grad=False)  # type: ignore[attr-defined]
    return made


def _is_dtensor(value: Any) -> bool:
    kind: Any = type(value)
    return _is_dtensors(kind)


@functools.lru_cache(maxsize=256)
def _is_dtensors(kind: type) -> bool:
    # By name, because importing torch.distributed.tensor takes half a second.
    return any(
        base.__name__ == "DTensor" and base.__module__.startswith("torch.distributed")
        for base in kind.__mro__
    )


def _tensor_leaf(value: torch.Tensor, parent: str, name: str) -> Leaf | None:
    dtensor = _is_dtensor(value)
    if not dtensor and type(value) not in (torch.Tensor, torch.nn.Parameter):
        return None
    local = cast(torch.Tensor, local_of(value)) if dtensor else value.detach()
    if (
        local.is_nested
        or local.layout != torch.strided
        or local.is_quantized
        or local.device.type == "meta"
    ):
        return None
    order, dense = _dense(local.resolve_conj().resolve_neg())
    # By strides, because reshape keeps the odd stride of a dimension with one element.
    data = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
    plain = "param" if isinstance(value, torch.nn.Parameter) else "tensor"
    spec = LeafSpec(
        kind="dtensor" if dtensor else plain,
        parent=parent,
        name=name,
        dtype=str(local.dtype).removeprefix("torch."),
        shape=tuple(local.shape),
        nbytes=data.numel(),
        order=order,
        requires_grad=value.requires_grad and value.is_leaf,
        mesh=meshes.describe(value) if dtensor else "",
    )
    return Leaf(spec, data, value)


def _dense(tensor: torch.Tensor) -> tuple[tuple[int, ...], torch.Tensor]:
    """``tensor`` with its dimensions in memory order, and that order; copied if necessary.

    A copy has the same order, because the last bits of a product depend on it.
    """
    if tensor.is_contiguous():
        return (), tensor
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda d: -strides[d]))
    return order, tensor.permute(order).contiguous()


def _shaped(spec: LeafSpec, buffer: torch.Tensor) -> torch.Tensor:
    flat = buffer.view(_torch_dtype(spec.dtype))
    if not spec.order:
        return flat.view(spec.shape)
    permuted = flat.view([spec.shape[d] for d in spec.order])
    back = sorted(range(len(spec.order)), key=lambda d: spec.order[d])
    return permuted.permute(back)


def _sharded(spec: LeafSpec, local: torch.Tensor, mine: Leaf | None) -> Any:
    if mine is None or mine.spec.mesh != spec.mesh:
        here = "no DTensor" if mine is None else meshes.shown(mine.spec.mesh) or "no DTensor"
        raise UserError(
            f"state_dict key '{spec.path.removeprefix('.')}' is a DTensor "
            f"({meshes.shown(spec.mesh)}) at the donor and {here} here: replica groups must be "
            "sharded alike to heal from each other"
        )
    from torch.distributed.tensor import DTensor

    own = mine.value
    sharded = DTensor.from_local(
        local,
        own.device_mesh,
        own.placements,
        run_check=False,
        shape=own.shape,
        stride=own.stride(),
    )
    return sharded.requires_grad_(spec.requires_grad)


def _torch_dtype(name: str) -> torch.dtype:
    dtype = DTYPES.get(name)
    if dtype is None:
        raise ProtocolError(f"{name!r} is not a dtype of this torch: are all replicas alike?")
    return dtype


def _differentiable(spec: LeafSpec) -> bool:
    if spec.kind in ("ndarray", "bytes", "bytearray"):
        return False
    dtype = _torch_dtype(spec.dtype)
    return dtype.is_floating_point or dtype.is_complex


# ---------------------------------------------------------------- arrays


def _array_leaf(value: np.ndarray[Any, Any], parent: str, name: str) -> Leaf:
    dense = value if value.flags.c_contiguous else value.copy(order="C")
    spec = LeafSpec("ndarray", parent, name, value.dtype.str, value.shape, value.nbytes)
    return Leaf(spec, dense.reshape(-1).view(np.uint8).data, value)


def numpy_dtype(text: str) -> np.dtype[Any]:
    """The dtype of a typestr. numpy itself accepts other texts too, and evaluates some.

    Raises:
        ProtocolError: the text is no supported dtype.
    """
    if not _TYPESTR.fullmatch(text):
        raise ProtocolError(f"{text[:40]!r} is not a numpy dtype")
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError) as why:
        raise ProtocolError(f"{text!r} is not a numpy dtype") from why
    return dtype


def _itemsize(spec: LeafSpec) -> int:
    if spec.kind == "ndarray":
        return numpy_dtype(spec.dtype).itemsize
    return _torch_dtype(spec.dtype).itemsize
