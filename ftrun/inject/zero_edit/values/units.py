"""Tensors and arrays that a script keeps outside its modules, as units that heal as one. Pure.

| unit | for example | kept if at the next draw there is |
|---|---|---|
| a tensor, a parameter, a DTensor or an array | a confusion matrix | the same object |
| a dict of them | ``shadow[name]`` of an average | the same dict, also with other tensors (1) |
| a dict by parameters or modules | ``self.momentum[p]`` | the same dict |
| a list or tuple of them | ``shadow_params`` | the same list, with the same tensors |

A batch is not among these: the next one is another object. Of a DTensor the shard of this rank is
carried, and its mesh and placements stay as they are.

Keys that are parameters or modules, or their ids, are other ones in each process: a state has their
names in the place of these.

(1) A new dict counts at once, as long as the script holds its tensors: at the first draw after an
evaluation it may be the best state, which a newcomer that joins there needs.

Not here: where they are found (walk.py), which of them have changed (tensors.py).
"""

from __future__ import annotations

import copy
import ctypes
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import torch

from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.kinds import DICTS, KINDS, PLAIN, Kind, is_single

_PLAIN = frozenset({*PLAIN, bytes})
_LISTS = (list, tuple)
_OBJECTS = (torch.Tensor, torch.nn.Module)
_NAME, _ID = "the object ", "the id of "
"""Begin the text that stands for a key."""
SAMPLE_BYTES = 64
"""Of the begin, the middle and the end of a tensor."""

Mark = tuple[tuple["weakref.ref[Any]", int], ...]
"""The tensors and arrays of a unit at some time, and their versions."""


def identity_of(value: Any) -> tuple[int, ...]:
    """The ids of a unit's objects, which stay the same as long as the script keeps it."""
    return (id(value), *map(id, value)) if type(value) in _LISTS else (id(value),)


def mark_of(value: Any) -> Mark:
    """The mark of a unit as it is now."""
    return tuple((weakref.ref(leaf), _version(leaf)) for leaf in leaves(value))


def is_as(value: Any, mark: Mark) -> bool:
    """Whether nothing in a unit has changed since it had this mark.

    A new tensor may have the id of one that is gone: a mark refers to the tensors themselves.
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
        is_fit = is_dense and value.is_leaf and not here.is_inference()  # no part of a graph
        return is_fit and not is_single(value) and _span(here) is not None
    is_known = kind is Kind.ARRAY and value.dtype.kind in "biufc"
    return is_known and value.nbytes <= limits.ARRAY_BYTES


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor that may heal, also one number."""
    return KINDS[type(value)] is Kind.TENSOR and (is_single(value) or is_leaf(value))


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A unit's value with others in place of its tensors and arrays; dicts keep their kind."""
    if type(value) in DICTS:
        made = copy.copy(value)
        for key, item in [*made.items()]:
            made[key] = mapped(item, change)
        return made
    if type(value) in _LISTS:
        return type(value)([mapped(item, change) for item in value])
    return value if type(value) in _PLAIN else change(value)


def leaves(value: Any) -> list[Any]:
    """The tensors and arrays of a unit."""
    found: list[Any] = []
    mapped(value, found.append)
    return found


class Keys:
    """The names of parameters and modules, for dicts that have these, or their ids, as keys.

    Args:
        modules: gives the outermost modules by name.

    Attributes:
        lost: where a key has no name, or no object here. The state lacks what is by that key.
    """

    def __init__(self, modules: Callable[[], Mapping[str, torch.nn.Module]]) -> None:
        self._modules = modules
        self.lost: list[str] = []

    def named(self, value: Any, where: str) -> Any:
        """A unit's value with names in the place of the objects."""
        names = cache(lambda: {id(x): name for name, x in self._objects().items()})

        def name(key: Any) -> Any:
            if isinstance(key, _OBJECTS):
                found = names().get(id(key))
                return None if found is None else _NAME + found
            is_id = type(key) is int and key >> 32 and key in names()
            return _ID + names()[key] if is_id else key

        return self._renamed(value, name, where)

    def own(self, value: Any, where: str) -> Any:
        """The value with this worker's own objects."""
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
    """A unit's value, which is not kept alive by this."""

    def __init__(self, value: Any) -> None:
        self._value = mapped(value, weakref.ref)

    @property
    def is_there(self) -> bool:
        """Whether the script still holds a tensor of it."""
        return any(ref() is not None for ref in leaves(self._value))

    def restored(self) -> Any:
        """The value; None if the script has dropped a tensor of it."""
        is_whole = all(ref() is not None for ref in leaves(self._value))
        return mapped(self._value, lambda ref: ref()) if is_whole else None


def is_of_tensors(value: Any) -> bool:
    """Whether a dict or a list has tensors or arrays, and apart from these only plain values."""
    first = next(iter(value.values() if type(value) in DICTS else value), None)
    is_plain = type(first) in _PLAIN or (type(first) is torch.Tensor and is_single(first))
    is_long = len(value) > limits.ITEMS and not isinstance(next(iter(value)), _OBJECTS)
    if is_plain and (type(value) in _LISTS or is_long):
        return False  # a history, which grows at every draw
    return _count(value, limits.DEEP) > 0


def _count(value: Any, deep: int) -> int:
    """How many tensors and arrays; negative: it has something else, or too many."""
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
    """A number that is another one once the tensor was written to.

    torch's own does not count what is written to ``tensor.data``, as averages are: so a few bytes
    of its memory belong to this one.
    """
    (found,) = versions_of([tensor])()
    return found


def versions_of(tensors: Sequence[torch.Tensor]) -> Callable[[], list[int]]:
    """Gives ``version_of`` each of these, as often as it is called. Their memory must stay where it
    is meanwhile."""
    known = [(x, here, *_samples(here)) for x in tensors for here in [part(x)]]
    return lambda: [_version_now(*one) for one in known]


def _samples(here: torch.Tensor) -> tuple[tuple[int, ...], int]:
    """The addresses of a few bytes, and how many are at each."""
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


def digest_of(tensors: Sequence[torch.Tensor]) -> str:
    """Of their shapes and first values, to compare those of two ranks."""
    found = 0
    for tensor in tensors:
        here = part(tensor).detach()
        while here.dim() > 1 and len(here):
            here = here[0]
        first = here.reshape(-1)[: SAMPLE_BYTES // here.itemsize].cpu().contiguous()
        text = f"{[*tensor.shape]}".encode()
        found = zlib.crc32(text + first.view(torch.uint8).numpy().tobytes(), found)
    return f"{found:08x}"


def sampled(values: Sequence[Any]) -> str:
    """Of a few bytes at the begin, the middle and the end of each: to compare those of two ranks
    that may be large."""
    found = 0
    for value in values:
        whole: Any = part(value).detach() if torch.is_tensor(value) else value
        flat, some = whole.reshape(-1), max(1, SAMPLE_BYTES // value.itemsize)
        middle = len(flat) // 2
        for piece in (flat[:some], flat[middle : middle + some], flat[-some:]):
            is_tensor = torch.is_tensor(piece)
            data = piece.cpu().contiguous().view(torch.uint8).numpy() if is_tensor else piece
            found = zlib.crc32(data.tobytes(), found)
    return f"{found:08x}"


def _span(tensor: torch.Tensor) -> int | None:
    """The bytes from a tensor's first value to its last one; None: its memory was freed."""
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
    except (NotImplementedError, RuntimeError, ValueError):  # it has no memory yet
        return 0
