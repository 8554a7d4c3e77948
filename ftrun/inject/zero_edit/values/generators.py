"""Generators of random numbers: where they stand, as bytes.

The global ones of torch, Python and numpy are here too. Not here: where those of the script are
found (walk.py), who goes on with which (randomness.py).
"""

from __future__ import annotations

import array
import base64
import ctypes
import json
import random
import sys
from typing import Any

import torch

from ftrun.inject.zero_edit.values.journal import packed, unpacked

_WORDS = "I"  # of 4 bytes
_MT19937_BYTES = 625 * 4  # its key and its position


def is_generator(kind: type) -> bool:
    """Whether objects of this type are generators that can be set."""
    if kind is torch.Generator or kind is random.Random:
        return True
    numpy: Any = sys.modules.get("numpy.random")
    return numpy is not None and kind in (numpy.Generator, numpy.RandomState)


def global_ones() -> dict[str, Any]:
    """By name: torch's on the CPU and on the current GPU, Python's, and numpy's."""
    pythons: Any = random.getstate
    found: dict[str, Any] = {"torch": torch.default_generator, "python": pythons.__self__}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = torch.cuda.default_generators[torch.cuda.current_device()]
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy"] = numpy.random.get_state.__self__
    return found


def state_of(generator: Any) -> bytes:
    """Where it stands."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        version, inner, gauss = generator.getstate()
        return packed([version, gauss], [array.array(_WORDS, inner).tobytes()])
    return NUMPY.state(generator)


def set_to(generator: Any, state: bytes) -> None:
    """Let it go on from where another one of its kind stood."""
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        (version, gauss), [inner], _ = unpacked(state)
        generator.setstate((version, tuple(array.array(_WORDS, inner)), gauss))
    elif hasattr(generator, "set_state"):
        generator.set_state(json.loads(state, object_hook=_unpacked))
    else:
        generator.bit_generator.state = json.loads(state, object_hook=_unpacked)


class _Numpy:
    """numpy's generators. To read the state of the global one takes 40 µs, so that it is read again
    only when it is known to have been drawn from: its memory has changed since the first look."""

    def __init__(self) -> None:
        self._first = self._state = b""

    def state(self, generator: Any) -> bytes:
        module: Any = sys.modules["numpy"].random
        if generator is not module.get_state.__self__:
            return _numpys(generator)
        bits: Any = getattr(module, "get_bit_generator", lambda: None)()  # numpy < 1.24 has none
        is_known = type(bits).__name__ == "MT19937"
        memory = ctypes.string_at(bits.ctypes.state_address, _MT19937_BYTES) if is_known else b""
        if not (self._state and memory) or memory != self._first:
            self._first = self._first or memory
            self._state = _numpys(generator)
        return self._state


NUMPY = _Numpy()


def _numpys(generator: Any) -> bytes:
    is_old = hasattr(generator, "get_state")  # a RandomState, which keeps one number more
    found = generator.get_state(legacy=False) if is_old else generator.bit_generator.state
    return json.dumps(found, default=_packed).encode()


def _packed(array: Any) -> dict[str, Any]:
    return {"dtype": str(array.dtype), "array": base64.b64encode(array.tobytes()).decode()}


def _unpacked(found: dict[str, Any]) -> Any:
    if found.keys() != {"dtype", "array"}:
        return found
    numpy: Any = sys.modules["numpy"]
    return numpy.frombuffer(base64.b64decode(found["array"]), found["dtype"])
