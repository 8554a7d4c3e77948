"""The header of an offered state: its id, its structure and its leaves, as JSON.

The donor writes it at a step's boundary. The receiver checks it in full (sizes, counts and types)
before it allocates memory, because bytes from a socket are not trusted (X3). Not here: the bytes of
the leaves (layout.py).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ftrun.base.errors import ProtocolError, UserError
from ftrun.checkpoint.format import LEAVES_MAX, Json, Packed
from ftrun.checkpoint.layout import CHUNK_BYTES, samples
from ftrun.checkpoint.leaves import LeafSpec
from ftrun.core.ids import StateId, Tag

FORMAT = 1
HEADER_BYTES_MAX = 64 << 20
STATE_BYTES_MAX = 1 << 44


@dataclass(frozen=True, slots=True)
class Header:
    """A donor's description of its state. ``samples``: a fingerprint per leaf (layout.samples)."""

    tag: str
    state_id: StateId
    structure: Json
    specs: tuple[LeafSpec, ...]
    samples: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of all leaves together."""
        return sum(spec.nbytes for spec in self.specs)

    def encode(self) -> bytes:
        """The header as JSON in ASCII."""
        parts = {
            "format": FORMAT,
            "chunk_bytes": CHUNK_BYTES,
            "tag": self.tag,
            "step": self.state_id.step,
            "lineage": self.state_id.lineage,
            "leaves": [spec.fields for spec in self.specs],
            "samples": self.samples,
            "structure": self.structure,
        }
        data = json.dumps(parts, separators=(",", ":"), allow_nan=False).encode("ascii")
        if len(data) > HEADER_BYTES_MAX:
            raise UserError(
                f"a state_dict's structure takes {len(data)} bytes beside its tensors, more than "
                f"the {HEADER_BYTES_MAX} that are carried: hold long lists as tensors or arrays"
            )
        return data


def header_of(tag: Tag, state_id: StateId, packed: Packed, own: Collection[int] = ()) -> Header:
    """The header of a packed tree. ``own``: the leaves, by number, that may differ from others'."""
    specs = tuple(leaf.spec for leaf in packed.leaves)
    return Header(tag.path(), state_id, packed.structure, specs, tuple(samples(packed.leaves, own)))


def decode_header(data: bytes) -> Header:
    """Parse and check a header.

    Raises:
        ProtocolError: it is not one, or contradicts itself, or exceeds a limit.
    """
    if len(data) > HEADER_BYTES_MAX:
        raise ProtocolError(f"a state header of {len(data)} bytes is too long")
    try:
        parts = json.loads(data)
        header = _read(parts)
    except (ValueError, KeyError, TypeError, RecursionError) as why:
        raise ProtocolError(f"a state header is malformed: {why}") from why
    for spec in header.specs:
        spec.check()
    if header.nbytes > STATE_BYTES_MAX:
        raise ProtocolError(f"a state of {header.nbytes} bytes is beyond all limits")
    return header


def _read(parts: Json) -> Header:
    if parts["format"] != FORMAT or parts["chunk_bytes"] != CHUNK_BYTES:
        raise ValueError("another format: are all replicas on the same version of ftrun?")
    leaves = parts["leaves"]
    if len(leaves) > LEAVES_MAX or len(leaves) != len(parts["samples"]):
        raise ValueError(f"{len(leaves)} leaves, {len(parts['samples'])} samples")
    return Header(
        tag=_text(parts["tag"]),
        state_id=StateId(_integer(parts["step"]), _text(parts["lineage"])),
        structure=parts["structure"],
        specs=tuple(_read_spec(leaf) for leaf in leaves),
        samples=tuple(map(_integer, parts["samples"])),
    )


def _read_spec(leaf: Sequence[Json]) -> LeafSpec:
    kind, parent, name, dtype, shape, nbytes, order, requires_grad, mesh = leaf
    return LeafSpec(
        kind=_text(kind),
        parent=_text(parent),
        name=_text(name),
        dtype=_text(dtype),
        shape=tuple(map(_integer, shape)),
        nbytes=_integer(nbytes),
        order=tuple(map(_integer, order)),
        requires_grad=requires_grad is True,
        mesh=_text(mesh),
    )


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _integer(value: Json) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value
