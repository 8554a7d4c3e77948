"""Compares the tensors of two state trees, key by key, to explain why one was not loaded.

A difference alone is no error. A state may change its form while it trains, and the script's load
function decides whether it accepts that.

Trees of equal replicas may differ in tensors that do not exist yet: a fresh optimizer has no
moments. So a tensor that only one side has counts as a difference only if the other side has
tensors under the same parent. ``model.layer9.weight`` counts, if there are other layers.
``optimizer.state[0].exp_avg`` does not, if the state is empty. In an optimizer's ``state`` it never
counts, because some optimizers make the master copy of a weight at once, and its moments at the
first step.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ftrun.base.errors import UserError
from ftrun.checkpoint.format import Tree, pack
from ftrun.checkpoint.leaves import LeafSpec
from ftrun.checkpoint.meshes import shown

Shapes: TypeAlias = dict[str, dict[str, LeafSpec]]
"""Leaf specs by parent path and name."""

NAMED_MAX = 8
CHARS_MAX = 2000
_OF_AN_OPTIMIZER = re.compile(r"(?:^|\.)state(?:\[\d+\]|\..+)$")
"""The entry of one parameter, by number or name, in ``Optimizer.state_dict()["state"]``."""


class ShapeMismatch(UserError):
    """The script did not accept a state of other shapes; the text names the keys."""


def describe(tree: Tree) -> Shapes:
    """The shapes and dtypes of all tensors and arrays of ``tree``, by key."""
    shapes: Shapes = {}
    for leaf in pack(tree).leaves:
        shapes.setdefault(leaf.spec.parent, {})[leaf.spec.name] = leaf.spec
    return shapes


def compare(mine: Shapes, theirs: Shapes, there: str) -> list[str]:
    """One line per key that differs: ``model.fc.weight: 128x64 here, 256x64 at the donor``.

    ``there``: where ``theirs`` is.
    """
    lines = []
    for parent in [*mine, *(p for p in theirs if p not in mine)]:
        own, other = mine.get(parent, {}), theirs.get(parent, {})
        if not own or not other:
            continue
        if _OF_AN_OPTIMIZER.search(parent):
            own, other = ({n: x[n] for n in own if n in other} for x in (own, other))
        for name in [*own, *(n for n in other if n not in own)]:
            words = _difference(own.get(name), other.get(name), there)
            if words:
                lines.append(f"{(parent + name).removeprefix('.')}: {words}")
    return lines


def differences(mine: Tree, theirs: Tree, there: str) -> str:
    """The first lines of ``compare`` as one text; "": nothing differs."""
    lines = compare(describe(mine), describe(theirs), there)
    more = f"; and {len(lines) - NAMED_MAX} more" if len(lines) > NAMED_MAX else ""
    return f"{'; '.join(lines[:NAMED_MAX])}{more}"


def explain(
    error: Exception, key: str, state: Callable[[], Tree], theirs: Tree, donors: Sequence[str]
) -> None:
    """Raise ShapeMismatch if the script's state has other shapes, the likely cause of ``error``.

    ``donors``: the replicas that the state came from; empty: it was a snapshot's.
    """
    whose, there = f"replica {donors[0]}" if donors else "the snapshot", "at its peers"
    remedy = "Build the same model and optimizer in all replicas"
    if not donors:
        there, remedy = "in the snapshot", "Build the same ones, or start over with --resume none"
    unlike = ""
    with contextlib.suppress(Exception):  # raised by the script's own function
        unlike = differences({key: state()}, {key: theirs}, there)
    if unlike:
        raise ShapeMismatch(
            f"the load function of key {key!r} did not take the state of {whose}: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:CHARS_MAX]}. Their "
            f"shapes differ: {unlike}. {remedy}, or let the function take what is given"
        ) from error


def _difference(own: LeafSpec | None, other: LeafSpec | None, there: str) -> str:
    if own is None:
        return f"missing here, {_words(other)} {there}"
    if other is None:
        return f"{_words(own)} here, missing {there}"
    if own.mesh != other.mesh:
        ours, theirs = (shown(spec.mesh) or "not sharded" for spec in (own, other))
        return f"{ours} here, {theirs} {there}"
    if own.shape != other.shape:
        return f"{_size(own)} here, {_size(other)} {there}"
    if own.dtype != other.dtype:
        return f"{own.dtype} here, {other.dtype} {there}"
    return ""


def _words(spec: LeafSpec | None) -> str:
    return f"{_size(spec)} {spec.dtype}" if spec else "nothing"


def _size(spec: LeafSpec) -> str:
    return "x".join(map(str, spec.shape)) or "scalar"
