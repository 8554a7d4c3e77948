"""A state tree as a JSON structure plus raw leaves, and back. No pickle, nothing executable.

A tree is what ``state_dict()`` functions return: nested dicts, lists and tuples around tensors,
arrays and plain values, and enums, named tuples, dataclasses and plain objects of the script's.
``pack`` splits it into a structure (plain JSON) and leaves (tensors, arrays, bytes), whose memory
is used in place wherever it is dense; ``unpack`` restores the same tree, bit by bit. ``validate``
refuses an object of any other kind, with its key.

Not here: where the leaves' bytes lie on the wire (layout.py) and how they travel (serve.py,
heal.py).

In a structure None, bool, str, list, finite float and int below 2**63 stand for themselves.
Everything else is a JSON object whose only key names its kind::

    {"map": {"a": 1}}            a dict whose keys are all str
    {"pairs": [[0, 1]]}          any other dict, keys written like values
    {"OrderedDict": {...}}       and "Counter": around a map or pairs; maybe a key "metadata"
    {"defaultdict": {...}}       as well; maybe a key "factory", of FACTORIES
    {"tuple": [...]} {"Size": [...]}
    {"set": [...]} {"frozenset": [...]}               of plain values, in one order everywhere
    {"deque": [[...], 10]}                            its items and maxlen
    {"slice": [0, null, 2]}
    {"SimpleNamespace": {"map": {...}}}               and "Namespace", argparse's
    {"int": "-0x1f"} {"path": ["PosixPath", "/a"]}    and other plain values (plain_values.py)
    {"enum": ["module:Class", "MEMBER"]}              of the script's classes (script_classes.py)
    {"namedtuple": ["module:Class", {"field": 1}]}    and "dataclass", and "object"
    {"again": 2}                 the third "object" once more
    {"leaf": 3}                  the fourth of the leaves
"""

from __future__ import annotations

import json
import struct
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch

from ftrun.base.errors import ProtocolError, UserError
from ftrun.checkpoint import script_classes
from ftrun.checkpoint.leaves import Leaf, LeafSpec, leaf_of, restore
from ftrun.checkpoint.plain_values import read_plain, write_plain

Tree: TypeAlias = Any
Json: TypeAlias = Any

DEPTH_MAX = 64
LEAVES_MAX = 1_000_000
NAMESPACES: dict[str, type] = {kind.__name__: kind for kind in (SimpleNamespace, Namespace)}
FACTORIES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, deque, Counter,
        OrderedDict,
    )
}  # fmt: skip
"""The factories that a defaultdict may have, by name."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A tree as its structure, and its leaves in the order of the structure."""

    structure: Json
    leaves: tuple[Leaf, ...]


def pack(tree: Tree) -> Packed:
    """Split ``tree`` into structure and leaves. Dense leaves share its memory; others are copied.

    Raises:
        UserError: an object in the tree cannot be carried; the text names its key and its type.
    """
    packer = _Packer()
    structure = packer.node(tree, "", "", 0)
    return Packed(structure, tuple(packer.leaves))


def leaves_of(tree: Tree) -> tuple[Leaf, ...]:
    """The leaves of a tree that stays here. Values that cannot be sent to peers are left out."""
    packer = _Packer(leaves_out=True)
    packer.node(tree, "", "", 0)
    return tuple(packer.leaves)


def validate(tree: Tree) -> None:
    """Raise UserError if ``tree`` holds an object that cannot be sent."""
    pack(tree)


def unpack(
    structure: Json,
    specs: Sequence[LeafSpec],
    buffers: Sequence[torch.Tensor],
    mine: Sequence[Leaf] = (),
    *,
    is_plain: bool = False,
) -> Tree:
    """Rebuild a tree from its structure and the bytes of its leaves.

    Args:
        structure: ``pack``'s result for the donor's tree.
        specs: of the leaves, in order.
        buffers: one uint8 tensor per leaf; the tree's tensors are views of these.
        mine: leaves of this process's own tree. A tensor takes its device from the leaf with the
            same path, and a DTensor its mesh. Without such a leaf (a fresh optimizer has no
            moments) it takes them from one that is sharded alike, or is on the same mesh. If
            ``mine`` is empty, the mesh is made from its description.
        is_plain: use dicts in place of the script's named tuples and objects, and the names of
            members in place of its enums', because this process need not have those classes.

    Raises:
        ProtocolError: the structure is not one that ``pack`` makes.
        UserError: a DTensor without a counterpart in ``mine``, or a class that is not here.
    """
    own = {leaf.spec.path: leaf for leaf in mine}
    alike = {leaf.spec.mesh: leaf for leaf in mine if leaf.spec.mesh}
    values = [
        restore(spec, buffer, own.get(spec.path) or alike.get(spec.mesh), mine)
        for spec, buffer in zip(specs, buffers, strict=True)
    ]
    return _Unpacker(values, is_plain).node(structure, 0)


# ---------------------------------------------------------------- taking apart


@dataclass(slots=True)
class _Packer:
    """Walks a tree and collects leaves. ``parent`` and ``name`` together are a node's path.

    ``leaves_out``: leave out what cannot be sent, instead of raising UserError.
    """

    leaves: list[Leaf] = field(default_factory=list)
    leaves_out: bool = False
    objects: dict[int, int] = field(default_factory=dict)  # plain ones, by identity

    def node(self, value: Tree, parent: str, name: str, depth: int) -> Json:
        try:
            return self._node(value, parent, name, depth)
        except UserError:
            if self.leaves_out:
                return None
            raise

    def _node(self, value: Tree, parent: str, name: str, depth: int) -> Json:
        path = parent + name
        if depth > DEPTH_MAX:
            raise UserError(
                f"state_dict key {shown(path)[:200]} is nested deeper than {DEPTH_MAX} levels: "
                "it cannot be carried to a peer (does it contain itself?)"
            )
        if value is None or type(value) in (bool, str):
            return value
        written = write_plain(value)
        if written is not None:
            return written
        if type(value) in (dict, OrderedDict, Counter, defaultdict):
            return self._mapping(value, path, depth)
        if type(value) in (list, tuple, torch.Size):
            items = [self.node(v, path, f"[{i}]", depth + 1) for i, v in enumerate(value)]
            return items if type(value) is list else {type(value).__name__: items}
        if type(value) in (set, frozenset):
            return {type(value).__name__: self._members(value, path, depth)}
        if type(value) is deque:
            items = [self.node(v, path, f"[{i}]", depth + 1) for i, v in enumerate(value)]
            return {"deque": [items, value.maxlen]}
        if type(value) is slice:
            return {"slice": self.node([value.start, value.stop, value.step], path, "", depth)}
        if type(value) in NAMESPACES.values():
            return {type(value).__name__: self._mapping({**vars(value)}, path, depth)}
        return self._leaf(value, parent, name, depth)

    def _mapping(self, value: dict[Any, Any], path: str, depth: int) -> Json:
        if all(type(key) is str for key in value):
            written: Json = {
                "map": {k: self.node(v, path, key_name(k), depth + 1) for k, v in value.items()}
            }
        else:
            written = {"pairs": [self._pair(k, v, path, depth) for k, v in value.items()]}
        if type(value) is dict:
            return written
        named = {type(value).__name__: written}
        # Module.state_dict() attaches its layers' versions to the dict that it returns.
        metadata = getattr(value, "_metadata", None)
        if metadata is not None:
            named["metadata"] = self.node(metadata, path, "._metadata", depth + 1)
        factory = getattr(value, "default_factory", None)
        if factory is not None:
            named["factory"] = _factory_name(factory, value, path)
        return named

    def _pair(self, key: Any, value: Tree, path: str, depth: int) -> Json:
        name = key_name(key)
        before = len(self.leaves)
        written = self.node(key, path, f"{name} (the key)", depth + 1)
        if len(self.leaves) > before:
            raise UserError(
                f"state_dict key {shown(path + name)} is keyed by a {type(key).__name__}: "
                "only plain values can be keys"
            )
        return [written, self.node(value, path, name, depth + 1)]

    def _members(self, members: set[Any] | frozenset[Any], path: str, depth: int) -> list[Json]:
        """Members sorted by their text, because donors of one state must write the same."""
        before = len(self.leaves)
        written = [self.node(member, path, "{…}", depth + 1) for member in members]
        if len(self.leaves) > before:
            raise UserError(
                f"state_dict key {shown(path)} is a set with tensors, arrays or bytes: only plain "
                "values can be in a set"
            )
        return sorted(written, key=lambda one: json.dumps(one, sort_keys=True))

    def _leaf(self, value: Any, parent: str, name: str, depth: int) -> Json:
        try:
            leaf = leaf_of(value, parent, name)
        except RuntimeError as error:  # a kind of tensor without plain memory, or out of memory
            raise UserError(
                f"state_dict key {shown(parent + name)} cannot be read: {error}"
            ) from error
        if leaf is None:
            return self._of_script(value, parent + name, depth)
        if len(self.leaves) >= LEAVES_MAX:
            raise UserError(f"a state_dict holds more than {LEAVES_MAX} tensors: too many to carry")
        self.leaves.append(leaf)
        return {"leaf": len(self.leaves) - 1}

    def _of_script(self, value: Any, path: str, depth: int) -> Json:
        kind = script_classes.kind_of(type(value))
        why_not = script_classes.why_not(value) if kind else ""
        if not kind or why_not:
            raise _refusal(value, path, why_not)
        name = script_classes.name_of(type(value))
        if kind == script_classes.ENUM:
            return {kind: [name, value.name]}
        if id(value) in self.objects:
            return {"again": self.objects[id(value)]}
        if kind == script_classes.OBJECT:
            self.objects[id(value)] = len(self.objects)
        fields = script_classes.fields_of(value)
        written = {k: self.node(v, path, key_name(k), depth + 1) for k, v in fields.items()}
        return {kind: [name, written]}


def key_name(key: object) -> str:
    """A key as it appears in a path: ``.weight``, ``[0]``."""
    return f".{key}" if type(key) is str else f"[{key!r}]"


def shown(path: str) -> str:
    """A path as error texts show it, quoted."""
    return f"'{path.removeprefix('.')}'" if path else "'' (the whole of it)"


def _factory_name(factory: object, value: object, path: str) -> str:
    name = getattr(factory, "__name__", type(factory).__name__)
    if FACTORIES.get(name) is not factory:
        names = ", ".join(FACTORIES)
        raise _refusal(value, path, f"whose factory is {name}, none of {names}")
    return str(name)


def _refusal(value: object, path: str, why: str = "") -> UserError:
    kind = type(value)
    what = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(value, torch.Tensor):
        nested = "nested " * value.is_nested
        what = f"{nested}{what} of {value.layout} on {value.device.type}"
    return UserError(
        f"state_dict key {shown(path)} holds a {f'{what} {why}'.rstrip()}: ftrun carries dense "
        "tensors, numpy arrays, plain values, dicts, lists and tuples of them, enums, named "
        "tuples, dataclasses and plain objects to peers, and never code or pickles. Leave the key "
        "out of the state, or give it in one of those forms"
    )


# ---------------------------------------------------------------- putting together


@dataclass(frozen=True, slots=True)
class _Unpacker:
    """Reads a structure; ``values`` are the leaves, restored."""

    values: Sequence[Any]
    is_plain: bool = False
    objects: list[Any] = field(default_factory=list)

    def node(self, written: Json, depth: int) -> Tree:
        if depth > DEPTH_MAX + 2:
            raise ProtocolError(f"a state header is nested deeper than {DEPTH_MAX} levels")
        if isinstance(written, list):
            return [self.node(item, depth + 1) for item in written]
        if not isinstance(written, dict):
            return written
        kind = next(iter(written), "")
        try:
            return self._object(kind, written, depth)
        except _MALFORMED as why:
            raise ProtocolError(f"a state header holds a malformed {kind!r}: {why}") from why

    def _object(self, kind: str, written: dict[str, Json], depth: int) -> Tree:
        body = written[kind]
        if kind in ("map", "pairs"):
            return dict(self._items(kind, body, depth))
        if kind in ("OrderedDict", "Counter", "defaultdict"):
            return self._named(kind, written, depth)
        if kind in ("tuple", "Size"):
            items = tuple(self.node(item, depth + 1) for item in body)
            return items if kind == "tuple" else torch.Size(items)
        if kind in ("set", "frozenset"):
            members = [self.node(item, depth + 1) for item in body]
            return set(members) if kind == "set" else frozenset(members)
        if kind == "deque":
            written_items, most = body
            items = tuple(self.node(item, depth + 1) for item in written_items)
            return deque(items, None if most is None else _natural(most))
        if kind == "slice":
            return slice(*[self.node(item, depth + 1) for item in body])
        if kind in NAMESPACES:
            made = NAMESPACES[kind]()
            vars(made).update(self.node(body, depth + 1))
            return made
        if kind in script_classes.KINDS:
            return self._of_script(kind, body, depth)
        if kind in ("leaf", "again"):
            return (self.values if kind == "leaf" else self.objects)[_natural(body)]
        return read_plain(kind, body)

    def _items(self, kind: str, body: Json, depth: int) -> Iterator[tuple[Any, Tree]]:
        if kind == "map":
            for key, value in body.items():
                yield key, self.node(value, depth + 1)
            return
        for key, value in body:
            yield self.node(key, depth + 1), self.node(value, depth + 1)

    def _of_script(self, kind: str, body: Json, depth: int) -> Tree:
        name, written = body
        if kind == script_classes.ENUM:
            return str(written) if self.is_plain else script_classes.member(name, written)
        if kind == script_classes.OBJECT:  # it may be in one of its attributes
            made = {} if self.is_plain else script_classes.begun(name)
            self.objects.append(made)
            held = made if self.is_plain else vars(made)
            held.update((key, self.node(value, depth + 1)) for key, value in written.items())
            return made
        fields = {key: self.node(value, depth + 1) for key, value in written.items()}
        return fields if self.is_plain else script_classes.make(kind, name, fields)

    def _named(self, kind: str, written: dict[str, Json], depth: int) -> Tree:
        made: Any = OrderedDict() if kind == "OrderedDict" else Counter()
        if kind == "defaultdict":
            factory = None if self.is_plain else written.get("factory")
            made = {} if self.is_plain else defaultdict(factory and FACTORIES[factory])
        [(inner, body)] = written[kind].items()
        if inner not in ("map", "pairs"):
            raise ValueError(f"{inner!r} within it")
        for key, value in self._items(inner, body, depth):
            made[key] = value
        if "metadata" in written:
            made._metadata = self.node(written["metadata"], depth + 1)
        return made


_MALFORMED = (
    ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError, struct.error,
)  # fmt: skip
"""What Python, numpy and torch raise for values that ``pack`` never writes."""


def _natural(value: Json) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not an index")
    return value


def without_parts(structure: Json, parts: Collection[str], path: str = "") -> Json:
    """The structure of a state without the parts at these paths, to compare the rest."""
    held = structure.get("map") if isinstance(structure, dict) else None
    if not isinstance(held, dict) or not any(x.startswith(path) for x in parts):
        return structure
    inside = {key: path + key_name(key) for key in held}
    rest = {key: at for key, at in inside.items() if at not in parts}
    return {key: without_parts(held[key], parts, at) for key, at in rest.items()}
