"""The states of random generators, as bytes; also of the global ones of torch, Python and numpy.

Not here: how the script's generators are found (walk.py), which state a newcomer takes
(randomness.py).
"""

from __future__ import annotations

import array
import base64
import ctypes
import json
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from ftrun.inject.zero_edit.values.journal import packed, unpacked

TORCH = "torch"
"""The name of torch's global generator for the CPU."""
_WORDS = "I"  # of 4 bytes
_MT19937_BYTES = 625 * 4  # key and position


def is_generator(kind: type) -> bool:
    """Whether objects of this type are generators that can be set."""
    if kind is torch.Generator or kind is random.Random:
        return True
    numpy: Any = sys.modules.get("numpy.random")
    return numpy is not None and kind in (numpy.Generator, numpy.RandomState)


def global_ones() -> dict[str, Any]:
    """The global generators by name: torch's for the CPU and the current GPU, Python's, numpy's."""
    pythons: Any = random.getstate
    found: dict[str, Any] = {TORCH: torch.default_generator, "python": pythons.__self__}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = torch.cuda.default_generators[torch.cuda.current_device()]
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy"] = numpy.random.get_state.__self__
    return found


def state_of(generator: Any) -> bytes:
    """The state of a generator, as bytes."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        pythons: Any = random.getstate
        return PYTHON.state(generator) if generator is pythons.__self__ else _pythons(generator)
    module: Any = sys.modules["numpy"].random
    is_global = generator is module.get_state.__self__
    return NUMPY.state(generator) if is_global else _numpys(generator)


def set_to(generator: Any, state: bytes) -> None:
    """Set a generator to a state of another one of the same kind."""
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        (version, gauss), [inner], _ = unpacked(state)
        generator.setstate((version, tuple(array.array(_WORDS, inner)), gauss))
    elif hasattr(generator, "set_state"):
        generator.set_state(json.loads(state, object_hook=_unpacked))
    else:
        generator.bit_generator.state = json.loads(state, object_hook=_unpacked)


class Global:
    """A cache for the state of a global generator. Reading the state takes 40 to 110 µs, so it is
    read again only if the generator's memory has changed.

    Args:
        read: returns the state.
        memory: returns the generator's memory; b"": unknown, so the state is always read.
        is_all: the memory has all of the state. If not, a changed memory means that the rest may
            change unseen, so from the first change on the state is always read.
    """

    def __init__(
        self, read: Callable[[Any], bytes], memory: Callable[[Any], bytes], *, is_all: bool
    ) -> None:
        self._read, self._look, self._is_all = read, memory, is_all
        self._memory = self._state = b""

    def state(self, generator: Any) -> bytes:
        memory = self._look(generator)
        if not memory or memory != self._memory:
            self._state = self._read(generator)
            if self._is_all or not self._memory:
                self._memory = memory
        return self._state


def _pythons(generator: Any) -> bytes:
    version, inner, gauss = generator.getstate()
    return packed([version, gauss], [array.array(_WORDS, inner).tobytes()])


def _pythons_memory(generator: Any) -> bytes:
    """Position and key, which follow the object's header; b"": this Python has another layout."""
    if not _IS_KNOWN:
        return b""
    memory = ctypes.string_at(id(generator) + object.__basicsize__, _MT19937_BYTES)
    return memory + repr(generator.gauss_next).encode()


def _is_known() -> bool:
    made = random.Random(1)
    made.random()
    memory = ctypes.string_at(id(made) + object.__basicsize__, _MT19937_BYTES)
    *key, position = array.array(_WORDS, made.getstate()[1])
    return array.array(_WORDS, memory).tolist() == [position, *key]


_IS_KNOWN = random.Random.__basicsize__ > object.__basicsize__ + _MT19937_BYTES and _is_known()


def _numpys_memory(_: Any) -> bytes:
    module: Any = sys.modules["numpy"].random
    bits: Any = getattr(module, "get_bit_generator", lambda: None)()  # numpy < 1.24 has none
    is_known = type(bits).__name__ == "MT19937"
    return ctypes.string_at(bits.ctypes.state_address, _MT19937_BYTES) if is_known else b""


def _numpys(generator: Any) -> bytes:
    is_old = hasattr(generator, "get_state")  # a RandomState, which also keeps a Gaussian number
    found = generator.get_state(legacy=False) if is_old else generator.bit_generator.state
    return json.dumps(found, default=_packed).encode()


PYTHON = Global(_pythons, _pythons_memory, is_all=True)
NUMPY = Global(_numpys, _numpys_memory, is_all=False)


def _packed(array: Any) -> dict[str, Any]:
    return {"dtype": str(array.dtype), "array": base64.b64encode(array.tobytes()).decode()}


def _unpacked(found: dict[str, Any]) -> Any:
    if found.keys() != {"dtype", "array"}:
        return found
    numpy: Any = sys.modules["numpy"]
    return numpy.frombuffer(base64.b64decode(found["array"]), found["dtype"])
