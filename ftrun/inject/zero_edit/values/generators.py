"""Generators of random numbers that a script has made: where they stand, as bytes.

Not here: the global ones (randomness.py), where those of the script are found (walk.py).
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch


def is_generator(kind: type) -> bool:
    """Whether objects of this type are generators that can be set."""
    if kind is torch.Generator or kind is random.Random:
        return True
    numpy: Any = sys.modules.get("numpy.random")
    return numpy is not None and kind in (numpy.Generator, numpy.RandomState)


def state_of(generator: Any) -> bytes:
    """Where it stands."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return json.dumps(generator.getstate()).encode()
    is_old = hasattr(generator, "get_state")  # a RandomState, which keeps one number more
    found = generator.get_state(legacy=False) if is_old else generator.bit_generator.state
    return json.dumps(found, default=_packed).encode()


def set_to(generator: Any, state: bytes) -> None:
    """Let it go on from where another one of its kind stood."""
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        version, inner, gauss = json.loads(state)
        generator.setstate((version, tuple(inner), gauss))
    elif hasattr(generator, "set_state"):
        generator.set_state(json.loads(state, object_hook=_unpacked))
    else:
        generator.bit_generator.state = json.loads(state, object_hook=_unpacked)


def _packed(array: Any) -> dict[str, Any]:
    return {"dtype": str(array.dtype), "array": array.tolist()}


def _unpacked(found: dict[str, Any]) -> Any:
    if found.keys() != {"dtype", "array"}:
        return found
    numpy: Any = sys.modules["numpy"]
    return numpy.array(found["array"], dtype=found["dtype"])
