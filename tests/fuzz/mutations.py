"""Bytes that are almost valid, as from a hostile or broken peer. Seeded, so repeatable.

Not here: the readers that get them (targets.py, servers.py).
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from enum import Enum
from random import Random
from typing import Any

BYTES_MAX = 1 << 16
EDITS_MAX = 4
WORDS = ("0", "1", "aa", "bb", "node", "job", "h", "127.0.0.1:1", "", "quorum", "é", "x" * 300)
NUMBERS = (0, 1, 2, 3, 255, 65_536, (1 << 31) - 1, 1 << 32, (1 << 32) + 1, 1 << 62, (1 << 63) - 1)
FLOATS = (0.0, 1.0, 5.0, 60.0, 1e-9, 1e300, -1.0, float("inf"), float("nan"))
ODD_BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF, 0x0A, 0x0D, 0x20, 0x2F, 0x5B, 0x7B)
JSON_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 3, 1 << 40, 1 << 70, 1.5, "", "float32", "<f4", "<f4,<i4", "O", "V9999999",
    "zz", "cuda:99", "_dynamo", "map", [], [0], [[[]]], {}, {"leaf": 0}, {"leaf": 1 << 70},
    {"map": {}}, {"pairs": [[[], 0]]}, {"Size": [1 << 80]}, {"int": "0x"}, {"float": "00"},
    {"tuple": 3}, {"OrderedDict": {"map": {}}}, {"dtype": "nn"}, {"device": "?:x"},
    {"scalar": ["O", "00"]}, {"scalar": ["<M8[7D]", "00" * 8]}, {"Counter": {"pairs": [[{}, 1]]}},
    {"path": ["Path", "a"]}, {"Decimal": "1E"}, {"Fraction": ["0x1", "0x0"]},
    {"datetime": [1, 1, 1, 0, 0, 0, 0, 0, {"timezone": [-1, 0, 1]}]}, {"date": [1 << 70, 1, 1]},
    {"UUID": "0"}, {"range": ["0x1", "0x1", "0x0"]}, {"slice": [{}, []]},
    {"Namespace": {"pairs": [[0, {"leaf": 0}]]}},
)  # fmt: skip


def mutate(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """One of ``corpus`` with one to four edits; now and then as it is, or pure noise."""
    roll = rng.random()
    if roll < 0.02:
        return rng.choice(corpus)
    if roll < 0.05:
        return rng.randbytes(rng.randrange(200))
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, EDITS_MAX)):
        rng.choice(_EDITS)(rng, data, corpus)
    return bytes(data[:BYTES_MAX])


def mutate_json(rng: Random, document: Any) -> Any:
    """A copy of a JSON document with one to four of its nodes replaced."""
    copy = json.loads(json.dumps(document))
    for _ in range(rng.randint(1, EDITS_MAX)):
        copy = _with_other_node(rng, copy)
    return copy


def sample(cls: Any, rng: Random) -> Any:
    """A record of ``cls`` with values that its types allow, but mostly senseless."""
    hints = typing.get_type_hints(cls)
    return cls(**{field.name: _value(hints[field.name], rng) for field in fields(cls)})


# ---------------------------------------------------------------- edits


def _place(rng: Random, data: bytearray) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 2, 4, 16, 256)))


def _flip(rng: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(rng: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice(ODD_BYTES)


def _truncate(rng: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _cut_out(rng: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    start, stop = _place(rng, data)
    del data[start:stop]


def _duplicate(rng: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    start, stop = _place(rng, data)
    data[start:start] = data[start:stop] * rng.choice((1, 2, 50))


def _reorder(rng: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    start, stop = _place(rng, data)
    piece = data[start:stop]
    del data[start:stop]
    at = rng.randrange(len(data) + 1)
    data[at:at] = piece


def _insert(rng: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice((rng.randbytes(4), b"\xff" * 9 + b"\x01", b"\r\n", b"[" * 3000))


def _splice(rng: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    other = rng.choice(corpus)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


Edit = Callable[[Random, bytearray, Sequence[bytes]], None]
_EDITS: tuple[Edit, ...] = (
    _flip, _flip, _overwrite, _truncate, _cut_out, _duplicate, _reorder, _insert, _splice,
)  # fmt: skip


def _with_other_node(rng: Random, node: Any) -> Any:
    if isinstance(node, dict) and node and rng.random() < 0.9:
        key = rng.choice(list(node))
        if rng.random() < 0.1:
            node.pop(key)
        elif rng.random() < 0.1:
            node[rng.choice(list(node))] = deepcopy(node[key])
        else:
            node[key] = _with_other_node(rng, node[key])
        return node
    if isinstance(node, list) and node and rng.random() < 0.9:
        at = rng.randrange(len(node))
        node[at] = _with_other_node(rng, node[at])
        if rng.random() < 0.1:
            node.insert(at, deepcopy(node[at]))
        return node
    return deepcopy(rng.choice(JSON_VALUES))


def _value(hint: Any, rng: Random) -> Any:
    args = typing.get_args(hint)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        kind = rng.choice(args)
        return None if kind is type(None) else _value(kind, rng)
    if typing.get_origin(hint) is tuple:
        if args[-1] is not Ellipsis:
            return tuple(_value(arg, rng) for arg in args)
        return tuple(_value(args[0], rng) for _ in range(rng.randrange(4)))
    if is_dataclass(hint):
        return sample(hint, rng)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return rng.choice(list(hint))
    if hint is str:
        return rng.choice(WORDS[: rng.choice((4, len(WORDS) - 1))])
    if hint is float:
        return rng.choice(FLOATS[: rng.choice((4, 6))])
    if hint is bool:
        return rng.random() < 0.5
    return rng.choice(NUMBERS[: rng.choice((4, len(NUMBERS)))])
