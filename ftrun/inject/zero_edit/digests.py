"""Digests for ``ftrun check``: of what models and losses are given, and of the script's tensors.

Not here: when they are taken (trial.py), what they are compared with (tools/check/).
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ftrun.checkpoint.format import leaves_of
from ftrun.checkpoint.leaves import local_of
from ftrun.inject.zero_edit.values.units import add_to

BESIDE, OUTSIDE = "modules beside the model", "tensors outside modules"
OWN = "parameters of no model"
TENSORS_MAX = 1_000
DEEP, LEAVES_MAX, PIECE = 4, 256, 1 << 22


def digests_of(
    trained: Sequence[nn.Module],
    known: Collection[int],
    beside: Mapping[str, nn.Module],
    optimizers: Sequence[Optimizer],
    units: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, str]]:
    """A digest and a sketch of each tensor, by kind and name.

    For a sharded tensor it is a digest of this worker's part. At most ``TENSORS_MAX`` a kind.
    ``known``: the ids of the models' parameters.
    """
    buffers = buffers_of(trained)
    parameters = {
        f"{name}{inner}": x
        for name, module in _numbered(trained)
        for inner, x in module.named_parameters()
    }
    modules = {
        f"{name}.{inner}": x
        for name, module in beside.items()
        for inner, x in module.named_parameters()
    }
    for name, module in beside.items():
        buffers.update((f"{name}.{inner}", x) for inner, x in module.named_buffers())
    moments = {
        f"{name} {number}{leaf.spec.path}": leaf.value
        for name, optimizer in _named(optimizers)
        for number, of in enumerate(optimizer.state.values())
        for leaf in leaves_of(of)
        if isinstance(leaf.value, torch.Tensor)
    }
    own = {
        f"{name} {number}": x
        for name, optimizer in _named(optimizers)
        for number, x in enumerate(x for group in optimizer.param_groups for x in group["params"])
        if id(x) not in known
    }
    outside = {
        f"{name.partition(' ')[2]}{leaf.spec.path}": leaf.value
        for name, unit in units.items()
        for leaf in leaves_of(unit.get("value"))
        if isinstance(leaf.value, torch.Tensor)
    }
    every = (
        *(("parameters", parameters), ("buffers", buffers), (BESIDE, modules), (OWN, own)),
        *(("optimizers", moments), (OUTSIDE, outside)),
    )
    return {
        kind: {name: marked(x) for name, x in [*tensors.items()][:TENSORS_MAX]}
        for kind, tensors in every
    }


def buffers_of(modules: Sequence[nn.Module]) -> dict[str, torch.Tensor]:
    """The buffers of the models, by name."""
    return {
        f"{name}{inner}": x
        for name, module in _numbered(modules)
        for inner, x in module.named_buffers()
    }


def _numbered(modules: Sequence[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Each with what begins the names of its tensors: the number, from the second one on."""
    return [(f"{number}: " * bool(number), x) for number, x in enumerate(modules)]


def _named(optimizers: Sequence[Optimizer]) -> list[tuple[str, Optimizer]]:
    """Each with its class, and its number among those of that class, from the second one on."""
    kinds, found = Counter[str](), list[tuple[str, Optimizer]]()
    for one in optimizers:
        kind = type(one).__name__
        kinds[kind] += 1
        found.append((f"{kind} ({kinds[kind]})" if kinds[kind] > 1 else kind, one))
    return found


def marked(tensor: torch.Tensor) -> str:
    """A digest, and two numbers that show how near another tensor is: the norm, and the sum in
    which each value has a weight of its own."""
    local = local_of(tensor.detach())
    norm = found = 0.0
    if local.layout is torch.strided and not local.is_meta and local.numel():
        for number, piece in enumerate(local.reshape(-1).split(PIECE)):
            real = torch.view_as_real(piece).view(-1) if piece.is_complex() else piece
            values = real.double()
            weights = torch.arange(len(values), device=values.device).double().add_(number).sin_()
            norm, found = norm + float(values @ values), found + float(values @ weights)
    return f"{_marked([local])} {norm**0.5:.9g} {found:.9g}"


def marks_of(value: Any) -> list[str]:
    """A digest of each tensor, array and plain value in a batch or in what a model is given."""
    leaves = _leaves(value, DEEP)
    found = [
        marked(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else _marked([x])
        for x in itertools.islice(leaves, LEAVES_MAX)
    ]
    return found if len(found) < LEAVES_MAX else [*found, _marked(leaves)]


def _marked(leaves: Iterable[Any]) -> str:
    hashed = hashlib.blake2b(digest_size=8)
    for leaf in leaves:
        if isinstance(leaf, bytes):
            hashed.update(leaf)
        add_to(hashed, leaf, 0, whole=True)
    return hashed.hexdigest()


def _leaves(value: Any, deep: int) -> Iterator[Any]:
    """Tensors and plain values, also in a package's own kind of batch."""
    dtype = getattr(value, "dtype", None)
    if isinstance(value, torch.Tensor | str | bytes | int | float | None):
        yield value
    elif dtype is not None and hasattr(value, "tobytes") and not dtype.hasobject:  # numpy's
        yield f"{dtype} {value.shape}".encode() + value.tobytes()
    elif deep:
        for part in _parts(value):
            yield from _leaves(part, deep - 1)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Mapping):
        return [*value.values()]
    is_batch = hasattr(value, "__dict__") and not isinstance(value, type | nn.Module)
    return [*vars(value).values()] if is_batch else ()
