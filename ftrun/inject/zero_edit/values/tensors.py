"""Tensors and arrays of the script outside its modules: those that have changed heal.

One that never changes (data, weights of classes) belongs to its replica, which has made it itself.
A unit (units.py) that has changed since the first step is in the state that peers get, with the
rest of it. A newcomer sets it in place where it can, because the script may hold it under other
names; a tensor that is a part of another one is replaced, so that the other one stays as it is.

Modules beside the trained ones are here too, by the line that made them: a replica may have others
than its peers, as an average that rank 0 alone keeps. So may one have more or fewer of those that
were made after the first step.

Not here: plain values (counters.py), trained modules and optimizers (carried.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import FrameType
from typing import Any, cast
from weakref import ref

import torch

from ftrun.checkpoint.leaves import local_of
from ftrun.core.worker.origins import Known, Origin, origin
from ftrun.inject.zero_edit.frames import innermost_of
from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.attributes import Attributes, Buffers, buffers_of, give_buffers
from ftrun.inject.zero_edit.values.changes import NEVER
from ftrun.inject.zero_edit.values.histories import DIGEST
from ftrun.inject.zero_edit.values.kinds import DICTS, is_of_rank, is_own, is_small, packed
from ftrun.inject.zero_edit.values.travelling import completed, travelling
from ftrun.inject.zero_edit.values.units import (
    Keys,
    Mark,
    Thin,
    identity_of,
    is_as,
    leaves,
    mark_of,
    memory,
    sampled,
    without_graph,
)
from ftrun.inject.zero_edit.values.walk import KEPT, Reached, Walk
from ftrun.inject.zero_edit.values.writing import FrameVariables, set_to
from ftrun.training.sharded import parameters_of

DOUBTS_MAX = 2
PLACES_MAX = 63
"""From so many on, places of draws are one."""
KEY = "beside"
"""In the state that heals. Replicas may have different units there: they are not compared."""
_OWN = object()
LATE_ONES, FAR = "late", "far"
"""What in a state is its worker's own: units by name, and paths by function."""
UNITS, REBOUND, MODULES, ATTRIBUTES, AS = "units", "rebound", "modules", "attributes", "as"
BUFFERS, STILL = "buffers", "still"
"""Parts of the state: the units that heal; the names of always new tensors, which do not; the
states of modules beside the trained ones; attributes of all modules; the buffers of those beside,
and which of these are as before the first step.
``AS``: in place of a unit's value, its other name."""
CHANGED, APART = "changed", "apart"
"""Of a unit in a state, and of a module: how many steps were committed when it was seen to be
another one. Of one that is left to a successor: whether another rank has it otherwise; of a state,
the names of those of which that is so."""
DOUBTFUL, STEP, LACKS = "doubtful", "step", "lacks"
"""In a state, the names of buffers of which that is not known; how many steps were committed; by
rank, the names of what it had not changed, or did not have, as others had."""
LATE = " late"
"""In the name of a module beside the trained ones that was made after the first step."""
_LATER: Mark = ((ref(Thin), 0),)  # it may be a batch
Key = tuple[str, str]
"""Function and path."""
_Beside = torch.nn.Module | Buffers


@dataclass(slots=True)
class _Known:
    """A unit at the last draw.

    ``kept``: its value; None if it was not there at the draw before: it may be a batch, whose
    memory the script wants back. ``mark``: before the first step; None: it is younger, and so has
    changed. ``thin``: without ``kept``, its value with weak references. ``doubts``: at so many
    draws in turn a dict had its id and none of its tensors: it is the same one with new tensors, or
    a batch has got the id of another. ``is_of_batch``: it was met when the script had drawn.
    ``seen``: the places of the draws at which it was met, as bits.
    """

    identity: tuple[int, ...]
    kept: Any
    mark: Mark | None
    thin: Thin | None = None
    doubts: int = 0
    is_of_batch: bool = False
    seen: int = 0

    @property
    def value(self) -> Any:
        """The value of the unit; None if it may be a batch, or is gone."""
        if self.kept is not None:
            return self.kept
        return self.thin.restored() if self.mark is None and self.thin is not None else None

    @property
    def is_there(self) -> bool:
        """Whether a tensor of it lives, so that what has its ids now is the same."""
        return self.kept is not None or (self.thin is not None and self.thin.is_there)

    @property
    def has_changed(self) -> bool:
        """Whether it is not as before the first step."""
        return self.kept is None or not self.mark or not is_as(self.kept, self.mark)


@dataclass(frozen=True, slots=True)
class Left:
    """What a predecessor has left (own.py).

    ``step``: so many were committed then. ``modules``, ``units``: by name, as ``own_state`` gives
    them.
    """

    step: int
    modules: Mapping[str, Mapping[str, Any]]
    units: Mapping[str, Mapping[str, Any]]


class Tensors:
    """The tensors and arrays of one replica.

    Args:
        modules: gives the modules whose parameters and buffers heal by themselves.
        beside: gives the other modules by name.
        walk: finds them.
        bare: gives modules without parameters and buffers by name.
        buffers: gives buffers of the former that each rank has for itself, by name.

    Attributes:
        keeps_all: also what is another tensor at each step heals, which peers do not give: it is
            held from the draw on until it is asked for. So is always what packages keep.
        gives_all: what asks for the state now is for this worker's own successor; else that is left
            out which peers do not give.
        unlike: the modules that were not alike on all ranks before the first step; ``again``: those
            of a newcomer that it has made as its predecessor had.
        shared, apart: what is alike on all ranks, and what is not, as last compared. ``lacks``: by
            rank, what others alone had changed then, or had; ``rank``: this one.
        left: what a predecessor alone had, until this worker leaves its own; ``own_words``: what
            was taken of it.
        own_buffers: the ``data_ptr`` of buffers that were taken from ``left``.
        step: how many steps are committed.
        busy: gives the memory of what calls since this replica's place write, perhaps later.
        stepping: gives the optimizers, whose state heals by itself: a state dict that the script
            keeps after it has saved it has the same tensors.
    """

    def __init__(
        self,
        modules: Callable[[], Iterable[torch.nn.Module]],
        beside: Callable[[], Mapping[str, torch.nn.Module]] = dict,
        walk: Walk | None = None,
        bare: Callable[[], Mapping[str, torch.nn.Module]] = dict,
        buffers: Callable[[], Mapping[str, Buffers]] = dict,
    ) -> None:
        self._walk = walk or Walk()
        self._modules, self._beside, self._buffers = modules, beside, buffers

        def named() -> dict[str, torch.nn.Module]:
            return {**{str(at): x for at, x in enumerate(modules())}, **beside(), **bare()}

        self._keys = Keys(named)
        self._attributes = Attributes(named, self._keys)
        self._known: dict[Key, _Known] = {}
        self._held: list[Any] = []
        self._also: dict[Key, Key] = {}  # further names of units
        self._changed: set[Key] = set()
        self._digests: dict[Key, tuple[Any, str]] = {}
        self._healed: set[Key] = set()  # with the modules that they are of
        self._others: set[Key] = set()
        self._grown: set[Key] = set()  # lists
        self._handed_on: set[Key] = set()
        self._developed: set[Key] = set()
        self._late: set[Key] = set()  # always other ones, which are kept by ``keeps_all`` alone
        self._places: dict[Hashable, int] = {}  # of draws, each with its bit
        self._has_begun = self.keeps_all = False
        self.gives_all = True
        self.unlike = self.again = self.shared = self.apart = frozenset[str]()
        self.lacks: Mapping[str, Sequence[str]] = {}
        self.rank = ""
        self.left: Left | None = None
        self.step: Callable[[], int] = lambda: NEVER
        self._steps: dict[str, tuple[Mark, int]] = {}
        self._firsts: dict[str, Mark] = {}  # of the modules beside
        self._loaded: set[str] = set()
        self.busy: Callable[[], Set[int]] = frozenset
        self.stepping: Callable[[], Iterable[torch.optim.Optimizer]] = tuple
        self.own_buffers = frozenset[int]()
        self.words: list[str] = []
        self.own_words: list[str] = []
        self.lacking: list[str] = []

    def look(
        self,
        reached: Sequence[Reached],
        drawn: Sequence[Set[str]] = (),
        *,
        place: Hashable = None,
        begins: bool = False,
        has_batch: bool = False,
    ) -> None:
        """The objects that the script's frames reach, innermost first. It runs at every draw.

        ``place``: where the script draws. A step may draw from several loaders, so that a batch of
        one is there at the draw from the next one, and when the next step draws: what is kept is
        there at the same draw again. ``begins``: at the first one of a loop, which may read all
        that was made before it. ``drawn``: for each frame the variables that its loops draw into,
        as batches. ``has_batch``: the script has its batch already, and may have made some of them
        of it.
        """
        now: dict[Key, _Known] = {}
        bit = self._places.setdefault(place, 1 << min(len(self._places), PLACES_MAX))
        met: dict[tuple[int, ...], Key] = {}
        self._also = {}
        before = {known.identity: known for known in self._known.values()}
        for number, frame in enumerate(reached):
            batches: Set[str] = drawn[number] if drawn else frozenset()
            for path, value in frame.units.items():
                key, identity = (frame.function, path), identity_of(value)
                if key in now or len(now) + len(self._also) >= limits.TRACKED:
                    continue
                if met.setdefault(identity, key) != key:  # several frames reach the same object
                    self._also[key] = met[identity]
                    continue
                is_batch, last = path in batches, before.get(identity)
                was = self._known[key].identity if key in self._known else identity
                if type(value) is list and was[0] == identity[0] and len(was) != len(identity):
                    self._grown.add(key)  # a list that the script keeps
                if key in self._developed:
                    mark = None if self._has_begun else mark_of(value)
                    now[key] = _Known(identity, value, mark)
                    continue
                now[key] = known = self._met(key, value, last, identity, bit, begins, is_batch)
                known.seen = bit if last is None else last.seen | bit
                known.is_of_batch = has_batch and (last is None or last.is_of_batch)
                if last is not None and last.is_there and not (has_batch or last.is_of_batch):
                    self._late.discard(key)
            if frame.function == KEPT and not (self.keeps_all and self.gives_all):
                frame.values.update(self._compared(now))
        self._known = now
        self._held = [x.value for key, x in now.items() if self.keeps_all or key[0] == KEPT]

    def develop(self, to: Reached, names: Iterable[str], values: Mapping[str, Any]) -> None:
        """Of a frame the variables whose next value follows from the present one, as a hidden state
        that each turn of a loop hands on: another tensor each time, and no batch."""
        for name in names:
            if (unit := without_graph(values[name])) is not None:
                to.units[name] = unit
            if name in to.units and not (
                torch.is_tensor(to.units[name]) and self._is_value(to, name)
            ):
                self._developed.add((to.function, name))

    def _is_value(self, to: Reached, name: str) -> bool:
        """Let a small tensor be a value."""
        is_value = is_small(to.units[name])
        if is_value:
            to.values[name] = packed(to.units.pop(name))
        return is_value

    def hand_on(
        self, reached: Sequence[Reached], names: Iterable[Set[str]], *, batches: bool
    ) -> None:
        """Of each frame the variables in which a turn of a loop leaves tensors to the next one, as
        a mean that is another tensor each time: a small one is a value. Without a loader others may
        be ``batches``, which a rank alone has, and do not heal."""
        for to, of_frame in zip(reached, names, strict=False):
            for name in of_frame & to.units.keys():
                is_other = (to.function, name) not in self._developed
                if not (is_other and torch.is_tensor(to.units[name])) or self._is_value(to, name):
                    continue
                if batches:
                    if self._has_begun:
                        self._handed_on.add((to.function, name))
                    if not self.keeps_all:
                        del to.units[name]

    def let_go(self) -> None:
        """Nobody asks for the state any more in this step: the script may want the memory back."""
        self._held = []

    def _compared(self, now: Mapping[Key, _Known]) -> dict[str, str]:
        """Digests of what packages keep; "" of what is perhaps another one at each draw."""
        found = {}
        for key, known in now.items():
            if key[0] != KEPT:
                continue
            before = self._known.get(key)
            whole = known.kept
            if whole is None and before is not None and before.kept is not None:
                whole = known.value  # it follows one that has lasted
            found[key[1] + DIGEST] = "" if whole is None else self._digest(key, whole)
        return found

    def _digest(self, key: Key, value: Any) -> str:
        tensors = [x for x in leaves(value) if torch.is_tensor(x)]
        some = tensors[:: max(1, len(tensors) // 2)]
        # To read another device's memory, the thread waits for it: once for each.
        counts = [x._version for x in some if x.device.type == "cpu"]
        seen = identity_of(value), counts
        if key not in self._digests or self._digests[key][0] != seen:
            self._digests[key] = seen, sampled(some)
        return self._digests[key][1]

    def _met(
        self,
        key: Key,
        value: Any,
        last: _Known | None,
        identity: tuple[int, ...],
        bit: int,
        begins: bool,
        is_batch: bool,
    ) -> _Known:
        is_dict = type(value) in DICTS
        is_elsewhere = last is not None and last.kept is None and not last.seen & bit
        if last is not None and is_elsewhere and last.is_there and not is_dict:
            mark = last.mark if self._has_begun else mark_of(value)
            return _Known(identity, None, mark, Thin(value))
        if last is not None and is_dict and not last.is_there and last.doubts < DOUBTS_MAX:
            mark = None if self._has_begun else mark_of(value)
            return _Known(identity, None, mark, Thin(value), last.doubts + 1)
        if last is not None and (is_dict or last.is_there):
            mark = None if last.mark is _LATER and not is_batch else last.mark
            is_marked = self._has_begun and mark is not _LATER  # a batch heals if it changes
            return _Known(identity, value, mark if is_marked else mark_of(value))
        if not self._has_begun:
            return _Known(identity, None, mark_of(value), Thin(value))
        one_before = self._known.get(key)
        if one_before is not None:
            self._others.add(key)
            begins |= one_before.kept is not None
        begins |= key[0] == KEPT
        if self.keeps_all and not (begins or is_dict or is_batch):
            self._late.add(key)
        begins |= self.keeps_all
        is_kept = is_dict or (begins and not is_batch)
        return _Known(identity, None, None if is_kept else _LATER, Thin(value))

    def begin(self) -> None:
        """The first step begins: nothing has changed."""
        self._has_begun = True
        self._firsts = {name: mark_of(_every(x)) for name, x in self._all_beside().items()}
        self._attributes.begin()

    def changing(self) -> list[str]:
        """The attributes and items that are always another tensor, and the lists that get more of
        them, in words: they do not heal."""
        keys = {*self._rebound(for_peers=False), *(self._grown - self._changed - self._healed)}
        keys = {key for key in keys if key[0] != KEPT}
        return [f"{path} ({function.partition(':')[0]})" for function, path in keys]

    def _rebound(self, *, for_peers: bool) -> list[Key]:
        new = {key for key, known in self._known.items() if known.mark is _LATER}
        new |= self._late & self._known.keys() if for_peers else set()
        known = {
            key
            for key in self._others - self._healed
            if (key not in self._changed or key in new) and ("." in key[1] or "[" in key[1])
        }
        is_given = self.keeps_all and not for_peers
        return sorted(known if is_given else known | self._handed_on)

    def carried(self) -> set[Key]:
        """The units that have changed so far, and heal, by function and path."""
        self.state()
        return set(self._changed)

    def names(self) -> dict[int, str]:
        """Of tensors outside the trained models, by id: the variable, the attribute or the key that
        leads to it, or its place in a module. Not the place in a list, which may be of a set."""
        found: dict[int, str] = {}
        for key, known in self._known.items():
            whole = known.kept
            if whole is None and known.thin is not None:
                whole = known.thin.restored()
            items = whole.items() if type(whole) in DICTS else [("", whole)]
            for inner, x in items:
                if isinstance(x, torch.Tensor) and type(inner) in (str, int):
                    found.setdefault(id(x), f"{' '.join(key)} {inner}")
        for name, module in self._beside().items():
            found.update((id(x), f"{name} {at}") for at, x in enumerate(parameters_of(module)))
        return found

    # ------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """The units that have changed, and the names of tensors that do not heal."""
        beside, trained = self._beside(), _memory_of(self._modules())
        self._keys.lost = []
        own = trained | _memory_of(beside.values())
        found = self._units(own)
        states = {name: travelling(_state_of(x, trained)) for name, x in beside.items()}
        changed = self._changed_modules()
        kept = {key: x for key, x in self._known.items() if key[0] == KEPT and x.mark is None}
        lost = {key for key, x in kept.items() if x.value is None}
        others = self._rebound(for_peers=not self.gives_all)
        rebound = [" ".join(key) for key in sorted({*others, *lost})]
        if self.keeps_all:
            self._held = []
        attributes = self._attributes.state(own, for_peers=not self.gives_all)
        return {
            UNITS: found,
            REBOUND: [*rebound, *self._keys.lost],
            MODULES: states,
            ATTRIBUTES: attributes,
            BUFFERS: {name: buffers_of(x) for name, x in beside.items()},
            STILL: sorted(beside.keys() - changed.keys()),
            CHANGED: {name: self._changed_at(name, _every(x)) for name, x in changed.items()},
            APART: sorted(self.apart),
            STEP: self.step(),
            LACKS: {rank: names for rank, names in self.lacks.items() if names},
            DOUBTFUL: sorted(self._buffers().keys() & changed.keys() - self.shared - self.apart),
        }

    def own_state(self, shared: Set[str] = frozenset()) -> dict[str, Any]:
        """What has changed since the first step, and peers may lack or have otherwise: modules
        and units. Without those that all ranks have alike; with those that some have otherwise,
        which have perhaps changed there alone."""
        modules = {
            x: module for x, module in self._changed_modules(self.apart).items() if x not in shared
        }
        if not (modules or self.apart or any(self._has_changed(*x) for x in self._known.items())):
            return {MODULES: {}, UNITS: {}}
        trained = _memory_of(self._modules())
        self._keys.lost = []
        units = self._units(trained | _memory_of(self._beside().values()), self.apart)
        found = {
            name: {
                "value": travelling(_state_of(x, trained)),
                CHANGED: self._changed_at(name, _every(x)),
                APART: name in self.apart,
            }
            for name, x in modules.items()
        }
        own = {
            name: {**x, APART: name in self.apart}
            for name, x in units.items()
            if name not in shared
        }
        return {MODULES: found, UNITS: own}

    def digests(self) -> dict[str, str]:
        """Of what ``own_state`` has, by name: to compare ranks. Running averages of a module that
        has parameters are each rank's own, until they are broadcast."""
        changed = self._changed_modules()
        modules = {name: [*x.parameters()] or _every(x) for name, x in changed.items()}
        units = {
            " ".join(key): known.value
            for key, known in self._known.items()
            if self._has_changed(key, known)
        }
        return {name: sampled(leaves(x)) for name, x in {**modules, **units}.items()}

    def _all_beside(self) -> dict[str, _Beside]:
        return {**self._beside(), **self._buffers()}

    def _changed_modules(self, also: Set[str] = frozenset()) -> dict[str, _Beside]:
        firsts = self._firsts
        return {
            name: module
            for name, module in self._all_beside().items()
            if name in also
            or name not in firsts
            or name in self._loaded
            or not is_as(_every(module), firsts[name])
        }

    def _units(self, own: set[int], apart: Set[str] = frozenset()) -> dict[str, Any]:
        """The units that have changed, and those ``apart``. ``own``: the memory of modules, which
        heal by themselves."""
        stepped: set[int] | None = None
        found: dict[str, Any] = {}
        for key, known in list(self._known.items()):
            value = known.value
            if value is None or not (self.gives_all or self._is_for_peers(key)):
                continue
            whole = value if self.gives_all else _for_peers(value)
            rest = self._keys.named(_without(whole, own), " ".join(key))
            if rest is _OWN:
                self._healed.add(key)
            elif self._has_changed(key, known) or " ".join(key) in apart:
                stepped = _stepped_by(self.stepping()) if stepped is None else stepped
                rest = _without(rest, stepped)
                if rest is _OWN:
                    self._healed.add(key)
                    continue
                name = " ".join(key)
                if name not in apart:
                    self._changed.add(key)
                step = self._changed_at(name, value)
                found[name] = {"value": rest, "device": _device_of(rest), CHANGED: step}
        also = {" ".join(key): " ".join(first) for key, first in self._also.items()}
        return found | {key: {AS: first} for key, first in also.items() if first in found}

    def _has_changed(self, key: Key, known: _Known) -> bool:
        return known.value is not None and (key in self._changed or known.has_changed)

    def _changed_at(self, name: str, value: Any) -> int:
        before = self._steps.get(name)
        if before is None or not is_as(value, before[0]):
            self._steps[name] = before = mark_of(value), self.step()
        return before[1]

    def _is_for_peers(self, key: Key) -> bool:
        return not (key in self._late or key in self._handed_on or self._walk.is_far(*key))

    def own(self) -> dict[str, Any]:
        """What of a state is not for peers where it ``gives_all``: for one that takes it as one."""
        late = sorted(" ".join(key) for key in self._late | self._handed_on)
        return {LATE_ONES: late, FAR: self._walk.far}

    def without_own(self, tree: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """A state that another rank has left for its successor, without what was its ``own``."""
        late, far, units = {*own[LATE_ONES]}, own[FAR], tree.get(UNITS, {})
        parts = {key: key.split(" ", 1) for key in units.keys() - late}
        near = [key for key, (at, path) in parts.items() if not self._walk.is_far(at, path, far)]
        given = {key: units[key] for key in near}
        values = {key: x["value"] for key, x in given.items() if "value" in x}
        given |= {key: {**given[key], "value": _for_peers(x)} for key, x in values.items()}
        given = {key: unit for key, unit in given.items() if unit.get(AS, key) in given}
        attributes = {
            kind: {root: _not_of_rank(found) for root, found in roots.items()}
            for kind, roots in tree.get(ATTRIBUTES, {}).items()
        }
        rebound = [*tree.get(REBOUND, ()), *(units.keys() - given.keys())]
        return {**tree, UNITS: given, ATTRIBUTES: attributes, REBOUND: sorted(rebound)}

    def are_trained(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether these are parameters or buffers of the trained models, or lie in their memory."""
        buffers = {memory(x) for module in self._modules() for x in module.buffers()}
        return (_memory_of(self._modules()) | buffers).issuperset(map(memory, tensors))

    def load(self, tree: Mapping[str, Any], *, is_late: bool = False, is_own: bool = False) -> None:
        """Set the variables of the script's frames, on the thread that runs it.

        ``is_late``: the script has gone on since they were set. What it has made anew stays.
        ``is_own``: it is the predecessor's state, and no peer's.
        """
        rebound = [cast(Key, tuple(key.split(" ", 1))) for key in tree.get(REBOUND, ())]
        self._others.update(rebound)  # donors must not differ in what they name
        self.words = []
        self.lacking = sorted({f"{path} (rebound)" for _, path in rebound})
        beside, given, own = self._beside(), tree.get(MODULES, {}), _memory_of(self._modules())
        # What this rank never had, or left as it was, stays so.
        lacks = frozenset[str](() if is_own else tree.get(LACKS, {}).get(self.rank, ()))
        given = {name: x for name, x in given.items() if name not in lacks}
        buffers = self._buffers()
        apart = frozenset[str](() if is_own else tree.get(APART, ())) - lacks
        left = self._own_ones(beside, buffers, tree, apart)
        for name, forms in tree.get(BUFFERS, {}).items():
            if name in beside and name not in left:
                give_buffers(beside[name], forms)
        kept = self.unlike & self.again & {*tree.get(STILL, ())}
        taken = {name: x for name, x in given.items() if name not in kept}
        taken |= {name: x["value"] for name, x in left.items()}
        self.own_words = self._load_modules(beside, taken, own, left.keys())
        for name in sorted((beside.keys() ^ given.keys()) - left.keys() - lacks):
            if (name in given) is (LATE in name):
                why = "was made after the first step" if name in given else "its peers lack"
                self.lacking.append(f"the {_made(name)}, which {why}")
        own |= _memory_of(beside.values())
        self._keys.lost = []
        self._attributes.load(tree.get(ATTRIBUTES, {}), own)
        self.own_words += self._load_modules(buffers, taken, own, left.keys())
        of_left = (x for name in buffers.keys() & left.keys() for x in buffers[name].buffers())
        self.own_buffers = frozenset(local_of(x).data_ptr() for x in of_left)
        changed = tree.get(CHANGED, {}) | {name: x[CHANGED] for name, x in left.items()}
        for name, module in self._all_beside().items():
            if name in taken:
                self._steps[name] = mark_of(_every(module)), changed.get(name, NEVER)
        units = {name: x for name, x in tree.get(UNITS, {}).items() if name not in lacks}
        own_units = self._own_units(units, apart)
        units = {**units, **own_units}
        doubtful = frozenset[str](() if is_own else tree.get(DOUBTFUL, ()))
        lost = (apart | doubtful | self.unlike & taken.keys()) - left.keys() - own_units.keys()
        for name in sorted(lost & {*beside, *buffers, *units}):
            what = name.partition(" ")[2] if name in units else f"the {_made(name)}"
            was = "may have been" if name in doubtful else "were" if name in buffers else "was"
            self.lacking.append(f"{what} of this rank, which {was} its own")
        objects: dict[str, tuple[Any, Any]] = {}  # before, and now
        frames = innermost_of(self._walk.frames())
        for key, variables, holder, name in _found(units, frames, self.lacking, is_also=False):
            unit = " ".join(key)
            self._changed.add(key)
            if is_late and self._is_new(key, holder.get(name)):
                self.lacking.append(key[1])
                continue
            before = holder.get(name)
            value = self._keys.own(units[unit]["value"], key[1])
            now = set_to(before, value, units[unit]["device"], own)
            if now is not before:
                variables.put(holder, name, now)
            objects[unit] = before, now
            self._steps[unit] = mark_of(now), units[unit].get(CHANGED, NEVER)
            words = self.own_words if unit in own_units else self.words
            words.append(f"{key[1]} {_words(units[unit]['value'])}")
        for key, variables, holder, name in _found(units, frames, self.lacking, is_also=True):
            old, now = objects.get(units[" ".join(key)][AS], (None, None))
            own_one = holder.get(name)
            if now is not None and own_one is not now and not (is_late and own_one is not old):
                variables.put(holder, name, now)
        self.lacking += [f"a part of {where}" for where in self._keys.lost]
        reached = self._walk.walk(self._walk.frames())
        for _ in range(2):  # what was given is there, and is kept
            self.look(reached)

    def _own_ones(
        self,
        beside: Mapping[str, torch.nn.Module],
        buffers: Mapping[str, Buffers],
        tree: Mapping[str, Any],
        apart: Set[str],
    ) -> dict[str, Any]:
        """The predecessor's states of modules, where they count."""
        steps, given = tree.get(CHANGED, {}), tree.get(MODULES, {})
        left = {} if self.left is None else self.left.modules
        lacks = (beside.keys() - given.keys()) | self.unlike
        return {
            name: x
            for name, x in left.items()
            if (name in beside or name in buffers)
            and (name in lacks or _is_own(x, steps.get(name, NEVER), name in apart))
        }

    def _own_units(
        self, given: Mapping[str, Mapping[str, Any]], apart: Set[str]
    ) -> dict[str, Mapping[str, Any]]:
        """The predecessor's units, where they count."""
        left = {} if self.left is None else self.left.units
        theirs = {name: given.get(name, {}) for name in left}
        return {
            name: unit
            for name, unit in left.items()
            if not (AS in unit or AS in theirs[name])
            and _is_own(unit, theirs[name].get(CHANGED, NEVER), name in apart)
        }

    def _is_new(self, key: Key, value: Any) -> bool:
        known, tensors = self._known.get(key), filter(torch.is_tensor, leaves(value))
        is_other = known is None or identity_of(value) != known.identity
        return is_other or not self.busy().isdisjoint(map(memory, tensors))

    def _load_modules(
        self,
        modules: Mapping[str, _Beside],
        given: Mapping[str, dict[str, Any]],
        trained: set[int],
        own_ones: Set[str],
    ) -> list[str]:
        """Returns those of ``own_ones``, the predecessor's, in words."""
        words: list[str] = []
        for name in [name for name in given if name in modules]:
            own = _state_of(modules[name], trained)
            if not _are_alike(own, given[name]):
                self.lacking.append(f"the {_made(name)}, which has other shapes here")
                continue
            state = completed(given[name], own, name, _made(name), self.lacking)
            modules[name].load_state_dict(state, strict=False)  # without what is trained
            self._loaded.add(name)
            (words if name in own_ones else self.words).append(_made(name))
        return words


def _found(
    units: Mapping[str, Mapping[str, Any]],
    frames: Mapping[str, FrameType],
    lacking: list[str],
    *,
    is_also: bool,
) -> Iterator[tuple[Key, FrameVariables, dict[Any, Any], str]]:
    """The units, or their further names, in the script's frames: each with the dict that holds it,
    and its key there. ``lacking``: gets the paths of those that have no such place."""
    left = [name for name, unit in units.items() if (AS in unit) is is_also]
    for function, frame in frames.items():
        variables = FrameVariables(frame)
        here = [name for name in left if name.startswith(f"{function} ")]
        left = [name for name in left if name not in here]
        for name in here:
            path = name.removeprefix(f"{function} ")
            holder = variables.find(path)
            if holder is None:
                lacking.append(path)
            else:
                yield (function, path), variables, *holder
        variables.close()
    lacking += [name.partition(" ")[2] for name in left]


def _made(name: str) -> str:
    """Class and line of a module."""
    return name.rpartition(" ")[0].removesuffix(LATE)


def _state_of(module: _Beside, trained: set[int]) -> dict[str, Any]:
    """A module's state without what is trained, which heals by itself."""
    if isinstance(module, Buffers):
        return module.state_dict()
    return {
        key: value
        for key, value in module.state_dict().items()
        if not (isinstance(value, torch.Tensor) and memory(value) in trained)
    }


def _are_alike(own: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    shapes = [{k: getattr(x, "shape", None) for k, x in state.items()} for state in (own, given)]
    return shapes[0] == shapes[1]


def _for_peers(value: Any) -> Any:
    """A unit's value without what is of a rank."""
    if type(value) not in DICTS:
        return value
    items = list(value.items())
    return {k: _for_peers(x) for k, x in items if type(k) is not str or not is_of_rank(k)}


def _not_of_rank(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {k: x for k, x in attributes.items() if not is_of_rank(k.partition(" ")[2])}


def _without(value: Any, own: set[int]) -> Any:
    """A unit's value, as a tree that can travel, without what is a model's own; _OWN: all is."""
    if type(value) in DICTS:
        items = [(k, x) for k, x in list(value.items()) if type(k) is not str or not is_own(k)]
        found = {key: _without(item, own) for key, item in items}
        return {key: item for key, item in found.items() if item is not _OWN} or _OWN
    if type(value) in (list, tuple):
        items = [_without(item, own) for item in value]
        return _OWN if any(item is _OWN for item in items) else type(value)(items)
    if isinstance(value, torch.Tensor) and memory(value) in own:
        return _OWN
    return value


def _every(module: _Beside) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """All that its state has: buffers that are not persistent are among its attributes."""
    yield from parameters_of(module)
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set:
                yield buffer


def _memory_of(modules: Iterable[torch.nn.Module]) -> set[int]:
    return {memory(x) for module in modules for x in _tensors_of(module)} - {0}


def _stepped_by(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    """The memory of what optimizers keep for their parameters."""
    kept = (list(x.values()) for one in optimizers for x in list(one.state.values()) if x)
    return {memory(x) for of_one in kept for x in of_one if isinstance(x, torch.Tensor)} - {0}


def _is_own(left: Mapping[str, Any], donor_step: int, is_apart: bool) -> bool:
    """Whether what a predecessor has left counts. What is apart was so while all trained."""
    together = ((0, 1),) if left[APART] or is_apart else ()
    known = Known(NEVER, donor_step, left[CHANGED], together, donor_step)
    return origin(known) is Origin.PREDECESSOR


def _device_of(value: Any) -> str:
    found = (x.device.type for x in leaves(value) if isinstance(x, torch.Tensor))
    return next(found, "cpu")


def _words(value: Any) -> str:
    count = sum(1 for _ in leaves(value))
    if type(value) in (dict, list, tuple):
        return f"({count} tensors)"
    return f"({'x'.join(map(str, value.shape)) or 'one number'})"
