"""Attributes of modules that change and are not in ``state_dict()``.

A layer may count its passes, anneal a temperature, or keep sums as plain tensors (a metric does); a
script may freeze and unfreeze parameters. Attributes that have changed since the first step heal.

A module may register buffers in its first forward pass, and buffers may grow. Before any value is
loaded, a module gets the same buffers as at its peers, in the same order, because ``state_dict()``
and the broadcast of buffers must match.

Not here: the script's objects other than modules (walk.py), ``state_dict()`` (carried.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ftrun.inject.zero_edit.values import histories
from ftrun.inject.zero_edit.values.kinds import (
    CONTAINERS,
    KINDS,
    Kind,
    is_of_rank,
    is_own,
    is_value,
    packed,
    unpacked,
)
from ftrun.inject.zero_edit.values.units import (
    Keys,
    is_as,
    is_leaf,
    is_of_tensors,
    is_tensor,
    leaves,
    mark_of,
    memory,
)
from ftrun.inject.zero_edit.values.writing import set_to

PLAIN, TENSORS = "plain", "tensors"
"""The parts of the state, by module and name: values as JSON has them, and tensors."""
FROZEN, BUFFER = "requires_grad of ", "buffer "
Forms = list[list[Any]]
"""All buffers of a module and its submodules, in order. Each is: path, name, whether
``state_dict()`` has it, and its type and shape; None: the buffer is None; []: a buffer of this kind
cannot be made."""
_TORCHS = vars(torch.nn.Module()).keys()
_REGISTERED = "__composable_api_state_key_"
"""The prefix of the names under which torch's ``fully_shard`` and the like keep their objects."""
_COLLECTIONS = frozenset({Kind.LIST, Kind.TUPLE, Kind.DICT})
_ABSENT = object()


class Attributes:
    """The attributes of one worker's modules.

    Args:
        modules: returns the outermost modules, by name.
        keys: names keys that are parameters or modules.
    """

    def __init__(
        self, modules: Callable[[], Mapping[str, torch.nn.Module]], keys: Keys | None = None
    ) -> None:
        self._modules, self._keys = modules, keys or Keys(modules)
        self._first: dict[str, dict[str, Any]] | None = None

    def begin(self) -> None:
        """The first step begins: take the values as they are now as unchanged."""
        self._first = {
            root: {
                name: packed(value) if is_plain else mark_of(value)
                for name, value, is_plain in _read(module)
            }
            for root, module in self._modules().items()
        }

    def state(self, own: set[int], *, for_peers: bool = False) -> dict[str, Any]:
        """The attributes that have changed.

        Args:
            own: addresses of memory that heals by other means, as ``units.memory`` returns them.
            for_peers: leave out names with ``rank`` or ``device``, which belong to one replica.
        """
        found: dict[str, dict[str, Any]] = {PLAIN: {}, TENSORS: {}}
        for root, module in self._modules().items():
            before = (self._first or {}).get(root, {})
            for name, value, is_plain in _read(module):
                first = before.get(name, _ABSENT)
                if first is value:
                    continue  # the usual case
                if for_peers and is_of_rank(name.partition(" ")[2]):
                    continue
                now = packed(value) if is_plain else value
                if is_plain:
                    is_same = type(first) is type(now) and histories.are_equal(first, now)
                else:
                    tensors = filter(torch.is_tensor, leaves(value))
                    is_same = type(first) is tuple and first != () and is_as(value, first)
                    is_same = is_same or any(memory(x) in own for x in tensors)
                    now = value if is_same else self._keys.named(value, f"{root} {name}")
                if not is_same:
                    found[PLAIN if is_plain else TENSORS].setdefault(root, {})[name] = now
        return found

    def load(self, tree: Mapping[str, Any], own: set[int]) -> None:
        """Set the attributes. ``own``: as in ``state``."""
        for root, module in self._modules().items():
            for kind in (PLAIN, TENSORS):
                for name, value in tree.get(kind, {}).get(root, {}).items():
                    is_plain = kind == PLAIN
                    given = value if is_plain else self._keys.own(value, f"{root} {name}")
                    _put(module, name, given, own, is_plain=is_plain)


def _read(root: torch.nn.Module) -> Iterator[tuple[str, Any, bool]]:
    """All attributes that can heal: name, value, and whether it is plain."""
    for path, module in root.named_modules():
        if isinstance(module, DistributedDataParallel):
            continue  # its own attributes belong to torch
        known = vars(module)
        for key in known.keys() - _TORCHS:
            if not (is_own(key) or key.startswith(_REGISTERED)):
                value = known[key]
                is_plain = _is_plain(value)
                is_unit = is_of_tensors if KINDS[type(value)] in _COLLECTIONS else is_leaf
                if is_plain or is_unit(value):
                    yield f"{path} {key}", value, is_plain
        for key in module._non_persistent_buffers_set:
            if (buffer := module._buffers.get(key)) is not None and is_tensor(buffer):
                yield f"{path} {BUFFER}{key}", buffer, False
        for key, parameter in module._parameters.items():
            if parameter is not None:
                yield f"{path} {FROZEN}{key}", parameter.requires_grad, True


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if KINDS[kind] is Kind.PLAIN:
        return True
    return histories.carries(value) if kind in CONTAINERS and value else is_value(value)


def _put(module: torch.nn.Module, name: str, value: Any, own: set[int], *, is_plain: bool) -> None:
    path, _, key = name.partition(" ")
    try:
        holder = module.get_submodule(path)
    except AttributeError:
        return  # this worker has no such submodule
    if key.startswith(FROZEN):
        parameter = holder._parameters.get(key.removeprefix(FROZEN))
        if parameter is not None and parameter.requires_grad is not value:
            parameter.requires_grad_(value)
        return
    known = holder._buffers if key.startswith(BUFFER) else vars(holder)
    key = key.removeprefix(BUFFER)
    before = known.get(key)
    if not is_plain:
        known[key] = set_to(before, value, "cpu", own)
    elif type(new := unpacked(value)) in CONTAINERS and histories.are_alike(before, new):
        histories.put_into(before, new)
    else:
        known[key] = new


# ---------------------------------------------------------------- buffers


class Buffers:
    """Some buffers of a module, by name, as if they were all that a module has."""

    def __init__(self, buffers: Mapping[str, torch.Tensor]) -> None:
        self._of = buffers

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return iter(())

    def buffers(self) -> Iterator[torch.Tensor]:
        return iter(self._of.values())

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {**self._of}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor], **_: bool) -> None:
        for name in state.keys() & self._of.keys():
            self._of[name].copy_(state[name])


def buffers_of(root: torch.nn.Module) -> Forms:
    """The current buffers of a module."""
    return [
        [path, name, name not in module._non_persistent_buffers_set, _form(buffer)]
        for path, module in root.named_modules()
        for name, buffer in module._buffers.items()
    ]


def give_buffers(root: torch.nn.Module, wanted: Forms) -> None:
    """Give a module the same buffers as at its peers. Their values are loaded later."""
    device = next((x.device for x in (*root.parameters(), *root.buffers())), torch.device("cpu"))
    theirs: dict[str, Forms] = {}
    for path, *more in wanted:
        theirs.setdefault(path, []).append(more)
    for path, module in root.named_modules():
        own, before = module._buffers, {**module._buffers}
        own.clear()
        for name, is_persistent, form in theirs.get(path, ()):
            vars(module).pop(name, None)
            held = module._non_persistent_buffers_set
            (held.discard if is_persistent else held.add)(name)
            own[name] = _as(before.get(name), form, device)


def _form(buffer: torch.Tensor | None) -> list[Any] | None:
    if buffer is None:
        return None
    is_plain = type(buffer) is torch.Tensor and buffer.layout is torch.strided
    is_known = is_plain and not buffer.is_quantized
    return [str(buffer.dtype).removeprefix("torch."), *buffer.shape] if is_known else []


def _as(buffer: Any, form: Any, device: torch.device) -> Any:
    """The buffer, if it has this form; else a new one of zeros, or None."""
    if form == [] or form == _form(buffer):
        return buffer
    at = device if buffer is None else buffer.device
    return form and torch.zeros(form[1:], dtype=getattr(torch, form[0]), device=at)
