"""Encodes a state's tree for an area's head, and rebuilds the tree from an area.

Not here: the area (area.py), the state's content (inject/zero_edit/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.checkpoint.format import Packed, unpack
from ftrun.checkpoint.leaves import FIELDS, Leaf, LeafSpec
from ftrun.snapshots.area import State
from ftrun.snapshots.memory import offsets_of


def described(given: Packed) -> dict[str, Any]:
    """The description, as JSON, from which ``restored`` rebuilds the tree."""
    specs = [dict(zip(FIELDS, x.spec.fields, strict=True)) for x in given.leaves]
    return {"structure": given.structure, "specs": specs}


def restored(state: State, head: Mapping[str, Any], own: Sequence[Leaf]) -> Any:
    """The tree of a state. ``own``: the leaves that this worker has now."""
    specs = [LeafSpec.of(x.values()) for x in head["specs"]]
    offsets, _ = offsets_of([spec.nbytes for spec in specs])
    pairs = zip(offsets, specs, strict=True)
    buffers = [state.state[at : at + spec.nbytes].clone() for at, spec in pairs]
    for index in head.get("on_device", ()):
        buffers[index] = buffers[index].cuda()
    return unpack(head["structure"], specs, buffers, own)
