"""Digests for ``ftrun check``: of what models and losses are given, and of the script's tensors.

Not here: when they are taken (trial.py), what they are compared with (tools/check/).
"""

from __future__ import annotations

import hashlib
import itertools
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
DEEP, LEAVES_MAX = 4, 256


def digests_of(
    trained: Sequence[nn.Module],
    known: Collection[int],
    beside: Mapping[str, nn.Module],
    optimizers: Sequence[Optimizer],
    units: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, str]]:
    """A digest of each tensor except the models' parameters, by kind and name.

    For a sharded tensor it is a digest of this worker's part. At most ``TENSORS_MAX`` a kind.
    ``known``: the ids of the models' parameters.
    """
    buffers = {name: x for module in trained for name, x in module.named_buffers()}
    modules = {
        f"{name}.{inner}": x
        for name, module in beside.items()
        for inner, x in module.named_parameters()
    }
    for name, module in beside.items():
        buffers.update((f"{name}.{inner}", x) for inner, x in module.named_buffers())
    moments = {
        f"{type(optimizer).__name__} {number}{leaf.spec.path}": leaf.value
        for optimizer in optimizers
        for number, of in enumerate(optimizer.state.values())
        for leaf in leaves_of(of)
        if isinstance(leaf.value, torch.Tensor)
    }
    own = {
        f"{type(optimizer).__name__} {number}": x
        for optimizer in optimizers
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
        *(("buffers", buffers), (BESIDE, modules), (OWN, own)),
        *(("optimizers", moments), (OUTSIDE, outside)),
    )
    return {
        kind: {
            name: (with_norm if kind == "buffers" else _digest)(x)
            for name, x in [*tensors.items()][:TENSORS_MAX]
        }
        for kind, tensors in every
    }


def _digest(tensor: torch.Tensor) -> str:
    hashed = hashlib.blake2b(digest_size=8)
    add_to(hashed, local_of(tensor.detach()), 0, whole=True)
    return hashed.hexdigest()


def with_norm(buffer: torch.Tensor) -> str:
    """The digest of a buffer, and a norm that shows whether another one is near."""
    return f"{_digest(buffer)} {local_of(buffer.detach()).double().norm().item():.6g}"


def marks_of(value: Any) -> list[str]:
    """A digest of each tensor, array and plain value in a batch or in what a model is given."""
    leaves = _leaves(value, DEEP)
    found = [_marked([x]) for x in itertools.islice(leaves, LEAVES_MAX)]
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
