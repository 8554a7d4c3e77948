"""Tensors and arrays that a script keeps outside its modules, in units that heal as a whole. Pure.

| unit | for example | counts if the next draw finds |
|---|---|---|
| a tensor, a parameter, a DTensor or an array | a confusion matrix | the same object |
| a dict of them | ``shadow[name]`` of an average | the same dict, also with other tensors (1) |
| a dict by parameters or modules | ``self.momentum[p]`` | the same dict |
| a list or tuple of them | ``shadow_params`` | the same list, with the same tensors |

So a batch does not count, because the next batch is another object. Of a DTensor, this rank's shard
is carried; its mesh and placements stay as they are.

A key that is a parameter or a module, or the id of one, differs between processes. So a state has a
name in place of the key.

(1) A new dict counts at once, while the script holds its tensors. At the first draw after an
evaluation it may be the best state so far, which a newcomer that joins there needs.

Not here: where they are found (walk.py), which of them have changed (tensors.py).
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import torch

from ftrun.checkpoint.leaves import local_of
from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.kinds import DICTS, KINDS, PLAIN, Kind, is_single

_PLAIN = frozenset({*PLAIN, bytes})
_LISTS = (list, tuple)
_LEAVES = (Kind.TENSOR, Kind.ARRAY, Kind.LINK)
_OBJECTS = (torch.Tensor, torch.nn.Module)
_NAME, _ID = "the object ", "the id of "
"""The prefixes of a text in place of a key."""
_COPIES = ("CloneBackward0", "ToCopyBackward0")
SAMPLE_BYTES = 64
"""Bytes that are sampled at each of the start, the middle and the end of a tensor."""
HASHED_BYTES = 64 << 10

Mark = tuple[tuple["weakref.ref[Any]", int], ...]
"""The tensors and arrays of a unit at some moment, and their versions."""


def identity_of(value: Any) -> tuple[int, ...]:
    """The ids of a unit's objects; equal at two draws if the script has kept the unit."""
    return (id(value), *map(id, value)) if type(value) in _LISTS else (id(value),)


def mark_of(value: Any) -> Mark:
    """The current mark of a unit."""
    return tuple((weakref.ref(leaf), _version(leaf)) for leaf in leaves(value))


def is_as(value: Any, mark: Mark) -> bool:
    """Whether a unit is unchanged since it had this mark.

    A mark has weak references, not ids, because a new tensor may get the id of a deleted one.
    """
    now = leaves(value)
    return len(now) == len(mark) and all(
        ref() is leaf and before == _version(leaf)
        for leaf, (ref, before) in zip(now, mark, strict=True)
    )


def is_leaf(value: Any) -> bool:
    """Whether a value is a tensor or an array that may heal."""
    kind = KINDS[type(value)]
    if kind is Kind.TENSOR:
        here = part(value)
        is_dense = here.layout is torch.strided and not here.is_quantized
        is_fit = is_dense and not (_is_result(value) or here.is_inference())
        return is_fit and not is_single(value) and _span(here) is not None
    is_known = kind is Kind.ARRAY and value.dtype.kind in "biufc"
    return is_known and value.nbytes <= limits.ARRAY_BYTES


def _is_result(tensor: torch.Tensor) -> bool:
    """Whether it is a result of autograd, but no plain copy: ``[p.clone() for p in …]`` may be an
    average of the weights that is changed in place from then on."""
    return not (tensor.is_leaf or type(tensor.grad_fn).__name__ in _COPIES)


def is_left_out(value: Any) -> bool:
    """Whether a value is a tensor that does not heal, because it is a result of autograd."""
    return KINDS[type(value)] is Kind.TENSOR and not is_single(value) and _is_result(value)


def without_graph(value: Any) -> Any:
    """A tensor or a collection of tensors that were computed with gradients, without these; None if
    it is none of them, or is too large."""
    is_known = type(value) in _LISTS or type(value) in DICTS
    if not (is_left_out(value) or (is_known and 0 < len(value) <= limits.ITEMS)):
        return None
    if is_known and not any(map(is_left_out, leaves(value))):
        return None
    found = mapped(value, lambda x: x.detach() if torch.is_tensor(x) else x)
    return found if is_leaf(found) or (is_known and is_of_tensors(found)) else None


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor that may heal, including a single number."""
    return KINDS[type(value)] is Kind.TENSOR and (is_single(value) or is_leaf(value))


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of a unit with ``change`` applied to each tensor and array; dicts keep their type.

    The script may have put something else into it since the draw, as a number of numpy's.
    """
    if type(value) in DICTS:
        made = copy.copy(value)
        for key, item in [*made.items()]:
            made[key] = mapped(item, change)
        return made
    if type(value) in _LISTS:
        return type(value)([mapped(item, change) for item in value])
    return change(value) if KINDS[type(value)] in _LEAVES else value


def leaves(value: Any) -> list[Any]:
    """The tensors and arrays of a unit."""
    found: list[Any] = []
    mapped(value, found.append)
    return found


class Keys:
    """Translates keys that are parameters or modules, or their ids, to names and back.

    Args:
        modules: returns the outermost modules by name.

    Attributes:
        lost: the units in which a key had no name, or a name no object here. Such items are
            dropped.
    """

    def __init__(self, modules: Callable[[], Mapping[str, torch.nn.Module]]) -> None:
        self._modules = modules
        self.lost: list[str] = []

    def named(self, value: Any, where: str) -> Any:
        """A unit with names in place of such keys; ``where``: describes the unit."""
        names = cache(lambda: {id(x): name for name, x in self._objects().items()})

        def name(key: Any) -> Any:
            if isinstance(key, _OBJECTS):
                found = names().get(id(key))
                return None if found is None else _NAME + found
            is_id = type(key) is int and key >> 32 and key in names()
            return _ID + names()[key] if is_id else key

        return self._renamed(value, name, where)

    def own(self, value: Any, where: str) -> Any:
        """A unit with this worker's own objects in place of the names."""
        objects = cache(self._objects)

        def object_of(key: Any) -> Any:
            if type(key) is not str or not key.startswith((_NAME, _ID)):
                return key
            is_id = key.startswith(_ID)
            found = objects().get(key.removeprefix(_ID if is_id else _NAME))
            return id(found) if is_id and found is not None else found

        return self._renamed(value, object_of, where)

    def _objects(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for root, module in self._modules().items():
            found.update((f"{root} {name}", x) for name, x in module.named_modules())
            found.update((f"{root} {name}", x) for name, x in module.named_parameters())
        return found

    def _renamed(self, value: Any, rename: Callable[[Any], Any], where: str) -> Any:
        if type(value) in _LISTS:
            return type(value)(self._renamed(x, rename, where) for x in value)
        if type(value) not in DICTS:
            return value
        found = {rename(key): self._renamed(x, rename, where) for key, x in value.items()}
        if None in found:
            del found[None]
            self.lost.append(where)
        return found


class Thin:
    """Weak references to the tensors and arrays of a unit."""

    def __init__(self, value: Any) -> None:
        self._value = mapped(value, weakref.ref)

    @property
    def is_there(self) -> bool:
        """Whether the script still holds any tensor of the unit."""
        return any(ref() is not None for ref in leaves(self._value))

    def restored(self) -> Any:
        """The unit; None: the script has dropped a tensor of it."""
        is_whole = all(ref() is not None for ref in leaves(self._value))
        return mapped(self._value, lambda ref: ref()) if is_whole else None


def is_of_tensors(value: Any) -> bool:
    """Whether a dict or a list has tensors or arrays, and apart from these only plain values."""
    first = next(iter(value.values() if type(value) in DICTS else value), None)
    is_plain = type(first) in _PLAIN or (type(first) is torch.Tensor and is_single(first))
    is_long = len(value) > limits.ITEMS and not isinstance(next(iter(value)), _OBJECTS)
    if is_plain and (type(value) in _LISTS or is_long):
        return False  # a history of values, which grows with the draws
    return _count(value, limits.DEEP) > 0


def _count(value: Any, deep: int) -> int:
    """The number of tensors, arrays and object keys; -1: anything else is there, or too many."""
    kind = type(value)
    if kind in _PLAIN:
        return 0 if kind is not str or len(value) <= limits.TEXT_CHARS else -1
    if kind not in DICTS and kind not in _LISTS:
        return 1 if (kind is torch.Tensor and is_single(value)) or is_leaf(value) else -1
    if not deep or len(value) > limits.TENSORS:
        return -1
    total = 0
    for key, item in list(value.items()) if kind in DICTS else enumerate(value):
        is_object = type(key) not in (str, int)
        is_known = not is_object or isinstance(key, _OBJECTS)
        found = _count(item, deep - 1) if is_known else -1
        if found < 0:
            return -1
        total += found + is_object
    return total if total <= limits.TENSORS else -1


def _version(leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor):
        return version_of(leaf)
    return zlib.crc32(leaf if leaf.flags.c_contiguous else leaf.tobytes())


def version_of(tensor: torch.Tensor) -> int:
    """A number that changes when the tensor is written to.

    torch's version counter misses writes to ``tensor.data``, which averages use. So this number
    also covers a few bytes of the tensor's memory.
    """
    (found,) = versions_of([tensor])()
    return found


def versions_of(tensors: Sequence[torch.Tensor]) -> Callable[[], list[int]]:
    """A function that returns the current ``version_of`` of each tensor. The tensors' memory must
    not move while it is in use."""
    known = [(x, here, *_samples(here)) for x in tensors for here in [part(x)]]
    return lambda: [_version_now(*one) for one in known]


def _samples(here: torch.Tensor) -> tuple[tuple[int, ...], int]:
    """The addresses of the sampled bytes, and the number of bytes at each."""
    size = 0 if here.is_inference() or here.device.type != "cpu" else _span(here)
    if not size:
        return (), 0
    at, some = here.data_ptr(), min(SAMPLE_BYTES, size)
    return (at, at + (size - some) // 2, at + size - some), some


def _version_now(tensor: torch.Tensor, here: torch.Tensor, places: Sequence[int], some: int) -> int:
    if here.is_inference():
        return 0
    count = here._version if here is tensor else here._version + tensor._version
    if not places:
        return count
    return count << 32 | zlib.crc32(b"".join([ctypes.string_at(at, some) for at in places]))


def hashed(value: Any, deep: int, *, whole: bool = False) -> str:
    """A digest of a value's shapes and bytes; see ``add_to``."""
    found = hashlib.blake2b(digest_size=8)
    add_to(found, value, deep, whole=whole)
    return found.hexdigest()


def add_to(hashed: Any, value: Any, deep: int, *, whole: bool = False) -> None:
    """Add a value's shape and bytes to a hash; of a tensor only the first ``HASHED_BYTES``, unless
    ``whole``."""
    if isinstance(value, torch.Tensor):
        hashed.update(f"{value.dtype} {tuple(value.shape)}".encode())
        if value.layout is torch.strided and not value.is_meta and value.numel():
            flat = local_of(value.detach()).reshape(-1)
            flat = flat if whole else flat[: HASHED_BYTES // value.element_size()]
            hashed.update(flat.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    elif isinstance(value, dict) and deep:
        for key, item in value.items():
            hashed.update(repr(key).encode())
            add_to(hashed, item, deep - 1, whole=whole)
    elif isinstance(value, list | tuple) and deep:
        for item in value:
            add_to(hashed, item, deep - 1, whole=whole)
    elif isinstance(value, int | float | str | None):
        hashed.update(repr(value).encode())


def sampled(values: Sequence[Any]) -> str:
    """A digest of each value's shape and a few bytes at its start, middle and end, to compare large
    values of two ranks."""
    found = 0
    for value in values:
        whole: Any = part(value).detach() if torch.is_tensor(value) else value
        flat, some = whole.reshape(-1), max(1, SAMPLE_BYTES // value.itemsize)
        found = zlib.crc32(f"{[*value.shape]}".encode(), found)
        middle = len(flat) // 2
        for piece in (flat[:some], flat[middle : middle + some], flat[-some:]):
            is_tensor = torch.is_tensor(piece)
            data = piece.cpu().contiguous().view(torch.uint8).numpy() if is_tensor else piece
            found = zlib.crc32(data.tobytes(), found)
    return f"{found:08x}"


def _span(tensor: torch.Tensor) -> int | None:
    """The number of bytes from a tensor's first value to its last; None: its memory was freed."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    size = tensor.itemsize * (1 + sum((length - 1) * stride for length, stride in steps))
    end = tensor.storage_offset() * tensor.itemsize + size
    return size if tensor.untyped_storage().nbytes() >= end else None


def part(tensor: torch.Tensor) -> torch.Tensor:
    """The shard of a DTensor that this rank holds; any other tensor itself."""
    return cast(torch.Tensor, getattr(tensor, "_local_tensor", tensor))


def memory(tensor: torch.Tensor) -> int:
    """The address of a tensor's memory; 0: it has none yet."""
    try:
        return int(part(tensor).untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError, ValueError):  # no memory is allocated
        return 0
