"""The walk over the script's objects: finds its values, by path, at each noted draw.

| an object | for example | is found as |
|---|---|---|
| a plain value (kinds.py) | ``best``, ``self.count``, ``d[key]`` | a value |
| a list, deque, set; a dict that is one value | ``losses``, ``d[train]`` | a container |
| a tensor or an array; a dict, list or tuple of them | ``shadow``, ``ema.shadow`` | a unit |
| a random generator | ``np.random.default_rng()`` | a generator |
| an object of the script, in an attribute or an item | ``self.callbacks[0]`` | its contents |
| a class, a function, a partial of the script (holders.py) | ``Logger``, ``step`` | its contents |

The walk starts at the frames on the stack, and at the modules of the script. A class or a function
is found in its own module, however many import it (modules.py).

A path is a variable's name, followed by ``.attribute`` for objects and ``[key]`` for collections;
``[#3]`` is the integer 3 as a dict's key. The walk is breadth first. An object or a collection that
no variable names is visited once, by the first path that leads to it.

A collection in a variable may be a batch, and the next draw makes a different one. So the objects
in it count only from the second step at which the same collection is there. They count at once if
the collection was there before the first step, or is in an object's attribute. For an object in a
list or a dict, the path with ``.__class__`` has its class, if all of its attributes heal: a
newcomer that lacks the object makes it from these values. For an object that a package keeps in a
collection of its own (each evaluation's loader), that path has "": a newcomer may lack the object,
because no code of the script keeps it.

Packages. In a frame of a package that runs the loop, only plain values of its variables and objects
count. Attributes of its Trainer and of the optimizers count as if they were the script's, although
no variable may lead to them, and also if they change at each draw. Any other package's object
counts if it keeps tensors, such as an average of the weights.

A newcomer that gets its predecessor's values (``reaches_all``) gets more: plain values in the
attributes of packages' objects (a progress bar's count, a meter's sum), and what suspended
generators have. These may belong to the process, so peers do not get them.

Not here: which values have changed (changes.py), setting them (writing.py).
"""

from __future__ import annotations

import gc
import itertools
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.frames import (
    OF_MODULE,
    HeldFrame,
    KeptFrame,
    Values,
    is_loop_package,
    is_script,
    module_frames,
    of_code,
    script_frames,
    spot_of,
    variables_of,
)
from ftrun.inject.zero_edit.values import histories, limits
from ftrun.inject.zero_edit.values.holders import attributes_of, slots_of
from ftrun.inject.zero_edit.values.kinds import (
    DICTS,
    KINDS,
    LEFT_OUT,
    PACKAGES,
    Kind,
    base_of,
    is_data,
    is_name,
    is_of_loop_package,
    is_of_rank,
    is_parameter,
    is_read_again,
    is_single,
    is_table,
    is_value,
    packed,
)
from ftrun.inject.zero_edit.values.limits import remembered
from ftrun.inject.zero_edit.values.modules import READ_ANEW, Modules
from ftrun.inject.zero_edit.values.units import is_leaf, is_of_tensors

CLASS = "__class__"
VALUES, OBJECTS, TENSORS, HELPERS, OF_PACKAGE = 1, 2, 4, 8, 16
"""Flags for what counts below a node: the values and containers in a dict; objects in collections;
units; objects of packages. ``OF_PACKAGE``: a package owns the collection."""
ALL = VALUES | OBJECTS | TENSORS
CYCLE = "(cycle)"
"""In a path: an item that an ``itertools.cycle`` has kept."""
WHOLE = ""
"""The path to all variables of a frame."""
ITERATORS_DEEP = 3
_PYTHONS = "builtins", "itertools"
_STEP = re.compile(r"[.\[(]")
_TORCHS = vars(torch.nn.Module()).keys()
_OPTIMIZERS = vars(torch.optim.SGD([torch.nn.Parameter(torch.empty(0))])).keys() | {
    *("step", "_step_count", "_opt_called", "_need_device_dtype_check_for_fused"),
    *("_step_supports_amp_scaling", "grad_scale", "found_inf"),
}
"""Attributes of torch's own optimizers, including those that schedulers and scalers add."""
KEPT = spot_of(cast(FrameType, KeptFrame({}))).name
"""The function name of objects that packages keep (``Walk.kept``)."""
_COLLECTIONS = frozenset({Kind.LIST, Kind.TUPLE, Kind.DICT})
_NOT_GIVEN = frozenset({Kind.NOTHING, Kind.RECORD, Kind.OBJECT, Kind.LINK})
_Node = tuple[str, Any, int, int, int, int]
"""Path, object, kind, depth, the number of dicts directly above it, and the flags for below."""


@of_code
def _within(code: CodeType) -> list[int]:
    """The ids of the code of all closures inside a function, at any depth."""
    inner = [x for x in getattr(code, "co_consts", ()) if type(x) is CodeType and x.co_freevars]
    return [number for x in inner for number in (id(x), *_within(x))]


@dataclass(slots=True)
class Reached:
    """The objects that one frame's variables reach, by path.

    Attributes:
        function: its name, as in a Spot.
        generators: random generators.
        held: Python's generators.
        dicts: the dicts whose values are read one by one.
        far: the paths whose values go to this worker's successor only, not to peers.
    """

    function: str
    values: Values = field(default_factory=dict)
    containers: dict[str, Any] = field(default_factory=dict)
    units: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, Any] = field(default_factory=dict)
    held: dict[str, Any] = field(default_factory=dict)
    far: set[str] = field(default_factory=set)
    dicts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A collection in a variable. ``first``: an object in it; ``step``: of the first look at it."""

    identity: int
    first: ref[Any] | None
    step: int


class Walk:
    """Walks from the frames of one replica's script. For the main thread.

    Args:
        step: returns the number of committed steps.

    Attributes:
        reaches_all: a newcomer gets its predecessor's values. Values that are reached for this
            reason only are ``far``: peers do not get them.
        trainer: returns the Trainer of the package that runs the loop, or None.
        optimizers: returns all optimizers.
        writers: returns the packages' objects that write a table of the run, and callbacks.
    """

    def __init__(self, step: Callable[[], int] = lambda: 0) -> None:
        self._step = step
        self.trainer: Callable[[], Any] = lambda: None
        self.optimizers: Callable[[], Sequence[Any]] = list
        self.writers: Callable[[], Sequence[Any]] = list
        self.has_begun = self._is_off = self.reaches_all = False
        self.made_early: dict[str, set[str]] = {}  # paths of objects, by function
        self._far: dict[str, Set[str]] = {}  # by function, from its last walk
        self.kept_ids = set[int]()
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._looks = 0
        self._of_tensors: dict[int, tuple[int, bool]] = {}  # by id: length, whether of tensors
        self._before: dict[int, tuple[int, bool]] = {}  # the same at the last walk
        self._made: dict[str, set[str]] = {}  # names of objects made before the first step
        self._around: dict[int, Mapping[str, Any]] = {}  # by the id of the code of a function
        self._inside = WeakKeyDictionary[torch.nn.Module, list[tuple[str, ref[torch.nn.Module]]]]()
        self.modules = Modules()

    def begin(self, late: Iterable[tuple[str, str]] = ()) -> None:
        """The first step begins. All that exists now was made before it, but what a peer has made
        ``late``: functions and paths."""
        self.has_begun = True
        for function, path in late:
            self.made_early.get(function, set[str]()).discard(path)

    def frames(self) -> list[FrameType]:
        """The frames at which a walk starts: the script's on the stack, stand-ins for its modules
        and for what packages keep, and the frames of suspended generators."""
        return self.with_others(script_frames()) + frames_of(self.held())

    def held(self, reached: Sequence[Reached] | None = None) -> dict[tuple[str, str], Any]:
        """The script's suspended generators, by function and path. Empty unless ``reaches_all``.

        ``reached``: the result of a walk from the script's frames, if there is one.
        """
        if not self.reaches_all:
            return {}
        every = self.walk(self.with_others(script_frames())) if reached is None else reached
        known = [(one.function, path, x) for one in every for path, x in one.held.items()]
        once = {id(x): ((name, path), x) for name, path, x in reversed(known) if not x.gi_running}
        return dict(once.values())

    def with_others(self, frames: list[FrameType]) -> list[FrameType]:
        """Add stand-ins for the script's modules and for what packages keep for it."""
        return [*frames, *module_frames(frames), *self.kept()]

    def kept(self) -> list[Any]:
        """A stand-in frame for the Trainer, optimizers with attributes of their own, and writers.
        The names of its variables are their classes."""
        found: dict[str, Any] = {}
        trainer = self.trainer()
        every = [x for x in self.optimizers() if vars(x).keys() - _OPTIMIZERS]
        if trainer is not None and is_of_loop_package(type(trainer)):
            every.append(trainer)
        every += self.writers()
        self.kept_ids = {id(x) for x in every}
        for one in every:
            name, number = type(one).__name__, 1
            while name in found:
                number += 1
                name = f"{type(one).__name__}_{number}"
            found[name] = one
        return [KeptFrame(found)] if found else []

    def walk(
        self, frames: Sequence[FrameType], variables: Sequence[Mapping[str, Any]] | None = None
    ) -> list[Reached]:
        """Find the objects of each frame. ``variables``: copies of the frames' variables."""
        self._looks += 1
        self._before = self._of_tensors if self._looks % READ_ANEW else {}
        self._of_tensors = {}
        known = [variables_of(x) for x in frames] if variables is None else variables
        pairs = [*zip(frames, known, strict=True)]
        self._around = {at: own for x, own in reversed(pairs) for at in _within(x.f_code)}
        found = [self._of_frame(frame, own) for frame, own in pairs]
        self._around = {}  # it would keep a batch alive
        far: dict[str, Set[str]] = {}
        for one in found:
            far[one.function] = far.get(one.function, frozenset()) | one.far
        self._far.update(far)  # other threads read it
        return found

    @property
    def far(self) -> dict[str, list[str]]:
        """The far paths by function, to be sent to another process."""
        return {function: sorted(paths) for function, paths in self._far.items() if paths}

    def is_far(self, function: str, path: str, of: Mapping[str, Any] | None = None) -> bool:
        """Whether the value at a path is for this worker's successor only, not for peers.

        ``of``: ``far`` of another process.
        """
        if not self.reaches_all:
            return False
        known = (self._far if of is None else of).get(function, frozenset())
        if WHOLE in known or is_of_rank(path):
            return True
        ends = [x.start() for x in _STEP.finditer(path)] if known else []
        return any(path[:end] in known for end in (*ends, len(path)))

    def _of_frame(self, frame: FrameType, variables: Mapping[str, Any]) -> Reached:
        to = Reached(spot_of(frame).name)
        if isinstance(frame, HeldFrame):
            to.far.add(WHOLE)
        is_package = is_loop_package(frame.f_code.co_filename)
        search = _Search(self, to, VALUES if is_package else ALL)
        if frame.f_code.co_name.startswith(OF_MODULE):
            search.module = variables.get("__name__", "")
            variables = self.modules.variables(to.function, variables, self._looks, search.counts)
            if not variables:
                return to
        if isinstance(frame, KeptFrame):
            search.keep(variables)
            variables = {}
        links: list[tuple[str, Any, int]] = []
        packages: list[tuple[str, Any]] = []
        for (name, value), kind in zip(
            variables.items(), map(KINDS.__getitem__, map(type, variables.values())), strict=True
        ):
            if LEFT_OUT[name]:
                continue
            if kind is Kind.NOTHING:
                if PACKAGES[type(value)] or _is_torchs(type(value)):
                    packages.append((name, value))
                elif self.reaches_all:
                    packages.append((name, value))
                    to.far.add(name)
            elif kind is Kind.PLAIN:
                to.values[name] = value
            elif kind is Kind.LINK:
                links.append((name, value, kind))
            else:
                search.variable(name, value, kind)
        if search.module and not isinstance(frame, FrameType):
            self.drop_flags(to, "", variables)
        for link in links:  # last, because a module has many
            if not (search.module and self.modules.still(to, *link[:2])):
                search.variable(*link)
        if not self._is_off:
            try:
                for one in packages:
                    search.package(*one, 0, search.mode)
                search.look()
            except Exception as error:  # noqa: BLE001 - the script's objects run its own code
                self._is_off = True
                told.say(
                    "a restarted replica will not restore values in objects and collections, "
                    f"because finding them failed: {type(error).__name__}: {error}"
                )
        if is_package:
            to.containers = {}
        return to

    def drop_flags(self, to: Reached, path: str, known: Mapping[str, Any]) -> None:
        """Leave out the flags of a module, or of a class at ``path``, that has made an object since
        the first step that does not heal.

        A flag may record that the object exists. A newcomer has no such object and makes it at its
        first call, so it must not get the flag.
        """
        start = f"{path}." if path else ""
        flags = [x for x, value in known.items() if type(value) is bool and start + x in to.values]
        if not flags:
            return
        kinds = {name: KINDS[type(value)] for name, value in known.items()}
        made = {
            name
            for name, kind in kinds.items()
            if kind in _NOT_GIVEN and f"{start}{name}.{CLASS}" not in to.values
        }
        key = f"{to.function} {path}"
        if not self.has_begun or key not in self._made:
            self._made[key] = made
        if not made <= self._made[key]:
            for name in flags:
                del to.values[start + name]

    def around(self, holder: Any) -> Mapping[str, Any]:
        """For a closure: the variables of the function on the stack that has made it. Variables
        that it closes over are already found there, and a newcomer sets them there first."""
        code = holder.__code__ if type(holder) is FunctionType else None
        return self._around.get(id(code), {})

    def stays(self, function: str, name: str, value: Any) -> bool:
        """Whether a collection, or a package's object, in a variable is no batch: it was there
        before the first step, or the same one was there at an earlier step."""
        objects = (x for x in _parts(value) if KINDS[type(x)] >= Kind.RECORD)
        first = value if KINDS[type(value)] is Kind.NOTHING else next(objects, None)
        key, before = (function, name), self._seen.get((function, name))
        is_same = before is not None and before.identity == id(value)
        if before is None or not is_same or not _is_at(before.first, first):
            if key in self._seen or len(self._seen) < limits.TRACKED:
                self._seen[key] = _Seen(id(value), _reference(first), self._step())
            return not self.has_begun
        if before.first is None and first is not None:
            self._seen[key] = _Seen(before.identity, _reference(first), before.step)
        return not self.has_begun or before.step < self._step()

    def with_objects(self, root: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
        """The modules inside ``root`` in whose attributes are objects of the script: the path from
        it, and the module. Of a large model all are looked at in one walk of ``READ_ANEW``."""
        known = self._inside.get(root)
        if known is None or self._looks % READ_ANEW == 0:
            self._inside[root] = known = [
                ("".join(f"._modules[{name}]" for name in inner.split(".") if name), ref(module))
                for inner, module in root.named_modules()
                if any(is_kept_by_module(*pair) for pair in list(vars(module).items()))
            ]
        return [(way, module) for way, of in known if (module := of()) is not None]

    def is_unit(self, value: Any) -> bool:
        """Whether a dict, a list or a tuple consists of tensors."""
        return self._known(value, len(value), is_of_tensors)

    def keeps_tensors(self, to: Reached, path: str, item: Any, depth: int) -> bool:
        """Whether a package's object keeps tensors for the script: an average, a metric."""
        known = attributes_of(item) or {}
        if not self._known(item, len(known), _has_tensors):
            return False
        is_near = depth > 0 or self.stays(to.function, path, item)
        if not is_near:
            to.far.add(path)
        return self.reaches_all or is_near

    def _known(self, value: Any, length: int, find: Callable[[Any], bool]) -> bool:
        before = self._before.get(id(value))
        found = before[1] if before and before[0] == length else find(value)
        if len(self._of_tensors) < limits.TRACKED:
            self._of_tensors[id(value)] = length, found
        return found


class _Search:
    """One walk from one frame. ``mode``: the flags for it (``ALL`` ...). ``module``: the name of
    the module whose variables these are; "": they are a function's."""

    def __init__(self, walk: Walk, to: Reached, mode: int) -> None:
        self._walk, self._to, self.mode, self.module = walk, to, mode, ""
        self._nodes: list[_Node] = []
        self._met: set[int] = set()
        self._kept: set[int] = set()
        self._modules: set[int] = set()  # torch's
        self._classes: list[tuple[str, type, Mapping[str, Any]]] = []  # of this module
        self._counting: list[tuple[str, Any]] = []  # packages' objects, by path

    def variable(self, name: str, value: Any, kind: int) -> None:
        """Add the value of a variable."""
        mode = self.mode
        if self.module and kind in (Kind.OBJECT, Kind.RECORD):
            self._is_made_late(name, value)
        if kind in _COLLECTIONS and mode & OBJECTS:
            mode -= OBJECTS * (not self._walk.stays(self._to.function, name, value))
        self._add(name, value, kind, 0, 0, mode)

    def counts(self, name: str, value: Any) -> bool:
        """Whether a variable of the module is a value, or leads to values."""
        kind = KINDS[type(value)]
        if LEFT_OUT[name] or kind not in (Kind.NOTHING, Kind.LINK):
            return not LEFT_OUT[name]
        if kind is Kind.LINK:
            return self._leads_on(name, value, kind)
        leads_on = self._walk.reaches_all and type(value).__module__ in _PYTHONS
        return leads_on or PACKAGES[type(value)] or _is_torchs(type(value))

    def keep(self, objects: Mapping[str, Any]) -> None:
        """Add the objects that packages keep for the script."""
        for name, item in objects.items():
            helps = HELPERS if issubclass(type(item), Optimizer) else 0
            is_table = any(item is x for x in self._walk.writers())
            mode = VALUES if is_table else ALL | helps
            self._nodes.append((name, item, Kind.OBJECT, 0, 0, mode))
            self._kept.add(id(item))

    def package(self, path: str, item: Any, depth: int, mode: int) -> None:
        """Add a package's object that keeps tensors or counts; or the contents of an iterator or of
        a module."""
        walk = self._walk
        if walk.reaches_all and type(item).__module__ in _PYTHONS:
            self._iterator(path, item, ITERATORS_DEEP)
        elif _is_torchs(type(item)):
            self._of_module(path, item, depth)
        elif not PACKAGES[type(item)]:
            return
        elif mode & HELPERS:
            self._object(path, item, Kind.OBJECT, depth, mode)
        elif (mode & TENSORS or walk.reaches_all) and walk.keeps_tensors(
            self._to, path, item, depth
        ):
            if not mode & TENSORS:
                self._to.far.add(path)
            self._object(path, item, Kind.OBJECT, depth, VALUES | TENSORS)
        elif walk.reaches_all and mode & OBJECTS:
            self._to.far.add(path)
            self._counting.append((path, item))

    def _counts(self) -> None:
        """Add the plain values of packages' objects, after all values of the script's own."""
        values = self._to.values
        for path, item in self._counting:
            for name, value in list((attributes_of(item) or {}).items()):
                if len(values) < limits.VALUES and not LEFT_OUT[name] and is_value(value):
                    values[f"{path}.{name}"] = packed(value)

    def _iterator(self, path: str, item: Any, deep: int) -> None:
        """Add a generator of the script, also one inside a ``zip`` or another iterator."""
        if type(item) is GeneratorType:
            if is_script(file := item.gi_code.co_filename) and not is_loop_package(file):
                self._to.held[path] = item
        elif deep and (type(item) is tuple or hasattr(type(item), "__next__")):
            for number, inner in enumerate(gc.get_referents(item)):
                if type(inner).__module__ in _PYTHONS:
                    way = CYCLE if type(item) is itertools.cycle else f"({number})"
                    self._iterator(path + way, inner, deep - 1)

    def _of_module(self, path: str, root: torch.nn.Module, depth: int) -> None:
        if id(root) in self._modules:
            return
        self._modules.add(id(root))
        for way, module in self._walk.with_objects(root):
            for name, item in list(vars(module).items()):
                if is_kept_by_module(name, item):
                    self._object(f"{path}{way}.{name}", item, KINDS[type(item)], depth + 1, ALL)

    def look(self) -> None:
        """Visit all that was added, and all that it leads to, breadth first."""
        to = self._to
        self._met = {*self._kept}  # found under ``KEPT``, even if a variable names it too
        for path, value, kind, depth, dicts, mode in islice(self._nodes, limits.VISITS):
            if len(to.values) >= limits.VALUES or len(to.containers) >= limits.VALUES:
                break
            if kind >= Kind.RECORD:
                self._attributes(path, value, depth, mode)
                kind = self._items_kind(path, value, mode)
            if kind is Kind.DICT:
                self._items(path, value, depth, dicts, mode)
            elif kind in (Kind.LIST, Kind.TUPLE):
                below = mode & (OBJECTS | OF_PACKAGE)
                for index, item in enumerate(value):
                    inner = KINDS[type(item)]
                    if inner >= Kind.LIST or inner is Kind.GENERATOR:
                        self._item(f"{path}[{index}]", item, inner, depth, 0, below, kind)
        self._counts()
        for one in self._classes:
            self._walk.modules.note(to, *one)

    def _items_kind(self, path: str, holder: Any, mode: int) -> int:
        """The kind of collection of a script's object that subclasses one; NOTHING: its items are
        not visited. Adds it to the containers, unless it is a dict that is no single value."""
        base = base_of(type(holder))
        if base is None or not mode & VALUES:
            return Kind.NOTHING
        if base not in DICTS or is_table(holder):
            self._to.containers[path] = holder
        else:
            self._to.dicts[path] = holder
        return KINDS[base] if len(holder) <= limits.ITEMS else Kind.NOTHING

    def _attributes(self, path: str, holder: Any, depth: int, mode: int) -> None:
        kind = type(holder)
        if issubclass(kind, LRScheduler) and kind.state_dict.__module__ == LRScheduler.__module__:
            return  # torch's state_dict has all of it, as of the step's start, not of its place
        is_package = is_of_loop_package(kind) and id(holder) not in self._kept
        if is_data(kind) or (is_package and id(holder) in self._walk.kept_ids):
            mode &= ~(TENSORS | VALUES * is_read_again(kind))
        below = mode & OBJECTS | OF_PACKAGE if is_package else mode
        values = self._to.values
        known = attributes_of(holder) or {}
        torchs = _OPTIMIZERS if issubclass(type(holder), Optimizer) else ()
        around = self._walk.around(holder)
        for name, item in list(known.items()):
            inner = KINDS[type(item)]
            if LEFT_OUT[name] or name in torchs or around.get(name, around) is item:
                continue
            if inner is Kind.NOTHING:
                is_given = PACKAGES[type(item)] or _is_torchs(type(item))
                if self._walk.reaches_all and not is_given:
                    self._to.far.add(f"{path}.{name}")
                if self._walk.reaches_all or is_given:
                    self.package(f"{path}.{name}", item, depth + 1, mode)
            elif inner is Kind.PLAIN:
                values[f"{path}.{name}"] = item
            elif inner < Kind.RECORD:
                is_value_or_tensor = inner < Kind.BAG or inner is Kind.TUPLE
                to_mode = mode if is_value_or_tensor else below
                self._add(f"{path}.{name}", item, inner, depth, 1, to_mode)
            elif not (id(holder) in self._kept and is_of_loop_package(type(item))):
                self._is_made_late(f"{path}.{name}", item)
                further = depth + (inner >= Kind.OBJECT) * (1 + is_package)
                self._object(f"{path}.{name}", item, inner, further, mode)
        if isinstance(holder, type):
            self._walk.drop_flags(self._to, path, known)
            if self.module and "." not in path:
                self._classes.append((path, holder, known))

    def _items(self, path: str, holder: Any, depth: int, dicts: int, mode: int) -> None:
        for key, item in list(holder.items()):  # another thread of the script may add to it
            kind = KINDS[type(item)]
            if kind is Kind.NOTHING:
                continue
            if type(key) is str and not LEFT_OUT[key]:
                below = mode if kind < Kind.LIST or is_name(key) else mode & ~OBJECTS
                self._item(f"{path}[{key}]", item, kind, depth, dicts + 1, below, Kind.DICT)
            elif type(key) is int and kind >= Kind.LIST:
                below = mode & (OBJECTS | OF_PACKAGE)
                self._item(f"{path}[#{key}]", item, kind, depth, 0, below, Kind.DICT)

    def _item(
        self, path: str, item: Any, kind: int, depth: int, dicts: int, mode: int, of: int
    ) -> None:
        """An item of a collection of the kind ``of``."""
        if kind < Kind.LIST:
            if mode & VALUES or kind in (Kind.TENSOR, Kind.ARRAY, Kind.GENERATOR):
                self._add(path, item, kind, depth, dicts, mode)
        elif kind < Kind.RECORD:
            deeper = depth if kind is Kind.DICT and mode & VALUES else depth + 1
            self._add(path, item, kind, deeper, dicts, mode)
        elif mode & OBJECTS:
            is_new = id(item) not in self._met and kind is not Kind.LINK
            if is_new and of is not Kind.TUPLE and _is_whole(item):
                self._to.values[f"{path}.{CLASS}"] = class_name(type(item))
                if any(map(is_of_rank, attributes_of(item) or ())):
                    self._to.far.add(f"{path}.{CLASS}")  # peers do not get values of a rank
            elif is_new and mode & OF_PACKAGE and is_of_loop_package(type(item)):
                self._to.values[f"{path}.{CLASS}"] = ""
            self._object(path, item, kind, depth + 1, ALL)

    def _is_made_late(self, path: str, item: Any) -> None:
        """Note an object in an attribute, or in a module's variable, that the script has made since
        the first step: a newcomer that has None there makes it."""
        known = self._walk.made_early.setdefault(self._to.function, set())
        if not self._walk.has_begun:
            known.add(path)
        elif path not in known and _is_whole(item):
            self._to.values[f"{path}.{CLASS}"] = class_name(type(item))

    def _add(self, path: str, value: Any, kind: int, depth: int, dicts: int, mode: int) -> None:
        if kind < Kind.BAG:
            self._add_single(path, value, kind, mode)
        elif kind is Kind.BAG:
            if mode & VALUES:
                self._to.containers[path] = value
            if mode & OBJECTS and type(value) is deque and 0 < len(value) <= limits.ITEMS:
                self._nodes.append((path, value, Kind.LIST, depth, dicts, mode))
        elif kind >= Kind.RECORD:
            if self._leads_on(path, value, kind):
                self._nodes.append((path, value, kind, depth, dicts, mode))
        elif kind is Kind.TUPLE and is_value(value):
            if mode & VALUES:
                self._to.values[path] = packed(value)
        else:
            self._collection(path, value, kind, depth, dicts, mode)

    def _add_single(self, path: str, value: Any, kind: int, mode: int) -> None:
        if kind is Kind.TEXT:
            if len(value) <= limits.TEXT_CHARS:
                self._to.values[path] = value
        elif kind is Kind.TENSOR or kind is Kind.ARRAY:
            if kind is Kind.TENSOR and is_single(value):
                if mode & VALUES:
                    self._to.values[path] = packed(value)
            elif mode & TENSORS and is_leaf(value):
                self._to.units[path] = value
        elif kind is Kind.GENERATOR:
            self._to.generators[path] = value
        elif is_value(value):
            self._to.values[path] = packed(value)

    def _collection(
        self, path: str, value: Any, kind: int, depth: int, dicts: int, mode: int
    ) -> None:
        if mode & TENSORS and value and self._walk.is_unit(value):
            self._to.units[path] = value
            mode &= ~TENSORS
        elif mode & VALUES and kind is Kind.LIST:
            self._to.containers[path] = value
        if kind is Kind.DICT and mode & VALUES and (dicts >= limits.DICTS_DEEP or is_table(value)):
            self._to.containers[path] = value
            mode &= ~VALUES if dicts >= limits.DICTS_DEEP else -1
        elif kind is Kind.DICT and mode & VALUES:
            self._to.dicts[path] = value
        if depth and id(value) in self._met:
            return
        self._met.add(id(value))
        is_searched = kind is Kind.DICT or mode & OBJECTS
        if is_searched and depth <= limits.DEEP and 0 < len(value) <= limits.ITEMS:
            self._nodes.append((path, value, kind, depth, dicts, mode))

    def _object(self, path: str, item: Any, kind: int, depth: int, mode: int) -> None:
        is_new = depth <= limits.DEEP and id(item) not in self._met
        has_slots = bool(slots_of(type(item)))
        has_any = has_slots or hasattr(item, "__dict__") or kind is Kind.LINK
        if is_new and has_any and self._leads_on(path, item, kind):
            self._met.add(id(item))
            self._nodes.append((path, item, kind, depth, 0, mode))

    def _leads_on(self, path: str, item: Any, kind: int) -> bool:
        if id(item) in self._walk.kept_ids and issubclass(type(item), Optimizer):
            return False
        if kind is not Kind.LINK:
            return True
        known = attributes_of(item) if self._is_at_home(path, item) else None
        return known is not None if isinstance(item, type) else bool(known)

    def _is_at_home(self, path: str, item: Any) -> bool:
        """Whether the ``path`` is the way to a class or a function by its own module, if it has
        one: others import it, and a registry may have it."""
        if not isinstance(item, type | FunctionType):
            return True
        home, name = sys.modules.get(item.__module__), item.__qualname__
        has_home = isinstance(home, ModuleType) and vars(home).get(name) is item
        return not has_home or (path == name and item.__module__ == self.module)


def frames_of(held: Mapping[tuple[str, str], Any]) -> list[Any]:
    """Stand-ins for the frames of suspended generators."""
    known = ((path, x.gi_frame) for (_, path), x in held.items())
    return [HeldFrame(frame, path) for path, frame in known if frame is not None]


def is_kept_by_module(name: str, item: Any) -> bool:
    """Whether an attribute of torch's module is an object of the script's."""
    kind = KINDS[type(item)]
    is_one = kind >= Kind.RECORD and name not in _TORCHS and not LEFT_OUT[name]
    return is_one and (kind is not Kind.LINK or bool(attributes_of(item)))


@remembered
def _is_torchs(kind: Any) -> bool:
    return issubclass(kind, torch.nn.Module)


def class_name(kind: type) -> str:
    """The name by which a newcomer finds a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _parts(value: Any) -> Iterator[Any]:
    if len(value) <= limits.ITEMS:
        yield from list(value.values()) if KINDS[type(value)] is Kind.DICT else value


def _is_whole(item: Any) -> bool:
    """Whether all attributes of an object heal, so that it can be made from them."""
    plain: Any = object.__new__
    known = attributes_of(item) if type(item).__new__ is plain else None
    if known is None:
        return False
    return all(not LEFT_OUT[key] and _is_made(x) for key, x in list(known.items()))


def _is_made(value: Any) -> bool:
    """Whether a newcomer can make a value. It cannot make a deque or a subclass of dict, because
    their ``maxlen`` or factory is not known."""
    if type(value) in (list, set) or (type(value) is dict and is_table(value)):
        return histories.carries(value)
    return is_value(value)


def _has_tensors(item: Any) -> bool:
    """Whether an object has a tensor, not a parameter, or a collection that begins with one."""
    parts = list((attributes_of(item) or {}).values())
    parts += [x for one in parts if type(one) in (list, tuple) for x in one[:1]]
    parts += [x for one in parts if type(one) is dict for x in islice(one.values(), 1)]
    return any(KINDS[type(x)] is Kind.TENSOR and not is_parameter(type(x)) for x in parts)


def _reference(item: Any) -> ref[Any] | None:
    try:
        return None if item is None else ref(item)
    except TypeError:
        return None


def _is_at(reference: ref[Any] | None, item: Any) -> bool:
    return reference is None or reference() is item
