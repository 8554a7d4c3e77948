"""All state of the script that is alike on all replicas, in one tree.

Objects are matched by the order in which the script made them. Not here: the place in the script
(place.py), transfer (checkpoint/), modules beside the trained ones (tensors.py).
"""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from ftrun.checkpoint import script_classes
from ftrun.inject.zero_edit.refusals import refuse
from ftrun.inject.zero_edit.values.attributes import buffers_of, give_buffers
from ftrun.inject.zero_edit.values.kinds import is_of_rank
from ftrun.inject.zero_edit.values.tensors import BUFFERS
from ftrun.inject.zero_edit.values.travelling import completed, travelling
from ftrun.inject.zero_edit.values.units import mapped
from ftrun.training.sharded import parameters_of

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

KEY = "script"
CALLBACKS = "callbacks"
"""Unlike all else their state is that of the place, not of the step: a replica that goes through
its peers' last steps again goes through theirs too."""
LIFE, SYNCS, APART, ORDERS, COUNTS = "life", "syncs", "apart", "orders", "counts"
Named = int | list[str]
"""A parameter in a group: its place in the models; of one that is of none, the name by which the
script reaches it ("": none), and its type and shape."""
_FORMS: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
"""By class, whether an optimizer with a ``state_dict()`` of its own gives torch's form."""
_versions_kept: Any = torch.autograd._unsafe_preserve_version_counter
REMEDY = (
    "it cannot restore what they made in the middle of their training. Make all models, "
    "optimizers and schedulers before the first step"
)


class Carried:
    """The script's state functions for the Manager.

    Attributes:
        life: names the life of the job: the incarnation from which all took their first state.
        has_ended: the script has ended, and the objects that it made may be gone: no state is
            loaded into them.
        lacking: what the last state could not give, in words.
    """

    def __init__(self, script: Script) -> None:
        self.life = script.here.key.incarnation
        self.lacking: list[str] = []
        self._script = script
        self.has_ended = self.is_put_off = False

    def _parts(self) -> dict[str, list[Any]]:
        stepping = self._script.stepping
        return {
            "models": self._script.models.wrapped,
            "optimizers": stepping.optimizers.that_heal(),
            "schedulers": stepping.schedulers.that_heal(),
            "scalers": [x for x in stepping.scalers.all() if x.is_enabled()],
            CALLBACKS: self._script.frameworks.parts(),
        }

    def state(self) -> dict[str, Any]:
        """The state to give to peers."""
        self._let_go()
        parts = {
            name: [travelling(_state_of(part)) for part in parts]
            for name, parts in self._parts().items()
        }
        apart, orders = self._script.marking.apart, self._orders()
        buffers = [buffers_of(x) for x in self._script.models.wrapped]
        counts = [_counts_of(x) for x in self._script.stepping.optimizers.that_heal()]
        more = {SYNCS: self._script.models.syncs, APART: apart, ORDERS: orders, BUFFERS: buffers}
        return {**parts, **more, COUNTS: counts, LIFE: self.life}

    def _orders(self) -> list[list[list[Named]]]:
        """Of each group of each optimizer, which parameters it has. A script that makes it of a set
        has another order in each process."""
        models = self._script.models.wrapped
        known = {id(x): at for at, x in enumerate(x for one in models for x in parameters_of(one))}
        optimizers = self._script.stepping.optimizers.that_heal()
        every = [x for one in optimizers for group in one.param_groups for x in group["params"]]
        names = {} if all(id(x) in known for x in every) else self._script.tensors.names()

        def named(x: torch.Tensor) -> Named:
            at = known.get(id(x))
            return [names.get(id(x), ""), f"{x.dtype} {[*x.shape]}"] if at is None else at

        return [[[*map(named, group["params"])] for group in x.param_groups] for x in optimizers]

    def _put_in_order(self, theirs: list[list[list[Named]]]) -> None:
        """Let each group have its parameters as the peers' has, whose state is by their order.

        Raises:
            Refused: it cannot be told which is which.
        """
        optimizers = self._script.stepping.optimizers.that_heal()
        for one, own, there in zip(optimizers, self._orders(), theirs, strict=False):
            for group, have, want in zip(one.param_groups, own, there, strict=False):
                if len(have) != len(want):
                    continue  # that is refused with all groups
                order, doubt = in_order(have, want)
                what = f"the {doubt} parameters of {type(one).__name__} that no model has"
                if order is None:
                    why = (
                        f"{what} come in another order in each process, and nothing tells which "
                        "is which. Give the optimizer its parameters as a list"
                        if doubt
                        else f"its {type(one).__name__} has other parameters in the replicas that "
                        f"train than in this restarted one: {REMEDY}"
                    )
                    refuse(f"{self._script.stepping.optimizers.site_of(one)}: {why}")
                if doubt:
                    self.lacking.append(f"the order of {what}, which cannot be verified")
                group["params"][:] = [group["params"][at] for at in order]

    def first_state(self) -> dict[str, Any]:
        """The state before the first commit: each rank has its own, as torch and the script have
        made it. Only what FSDP2 shards gets equal values here, which a replica draws alone."""
        models = self._script.models
        states = [{**model.state_dict()} for model in models.wrapped]
        given = {"models": states} if any(map(models.is_sharded, models.wrapped)) else {}
        return {**given, SYNCS: models.syncs, LIFE: self.life}

    def trained(self) -> list[tuple[torch.nn.Parameter, bool]]:
        """All parameters of the models, and whether each needs a gradient now."""
        every = (x for model in self._script.models.wrapped for x in model.parameters())
        return [(x, x.requires_grad) for x in every]

    @contextmanager
    def versions_kept(self) -> Iterator[None]:
        """A backward pass may still need what is loaded: parameters get the values that they have,
        and one reads no running averages that its forward pass has moved."""
        models = self._script.models
        roots = [*models.wrapped, *models.beside().values()]
        parts = [part for module in roots for part in (module.parameters(), module.buffers())]
        known = {id(x): x for part in parts for x in part}
        plain = tuple(x for x in known.values() if type(x) in (torch.nn.Parameter, torch.Tensor))
        with _versions_kept(plain):
            yield

    def _let_go(self) -> None:
        """Collect what the script has dropped: which late objects are left must not depend on when
        Python does so."""
        if self._script.is_starting:
            self._script.charge.let_go(joins=True)
        if self._script.stepping.has_late:
            gc.collect()

    def load(self, tree: dict[str, Any]) -> None:
        """Take the peers' state.

        Raises:
            Refused: this replica has made other objects than its peers.
        """
        self.is_put_off = not self._script.may_load()
        if not (self.has_ended or self.is_put_off):
            self.apply(tree)
            self._script.marking.ended = None  # it may be of the parameters before
        self._script.has_loaded = True

    def apply(self, tree: dict[str, Any]) -> None:
        """Take a state; what it does not have stays as it is.

        Raises:
            Refused: this replica has made other objects, or the state is not all that it needs.
        """
        if tree.get(APART) and not self._script.is_in_place:  # else it is this rank's own state
            refuse(
                f"{tree[APART]}: the optimizers step by gradients that nothing has averaged over "
                "the ranks, as in no_sync() for local SGD, so each rank has parameters that no "
                "other rank has, and they are lost with it"
            )
        self._let_go()
        self.is_put_off = False
        self.life, self.lacking = tree.get(LIFE, ""), []
        self._put_in_order(tree.get(ORDERS, []))
        for name, parts in self._parts().items():
            given = tree.get(name)
            if given is None or (name == CALLBACKS and not given):
                continue
            if len(given) != len(parts):
                refuse(
                    f"the script has made {len(given)} {name} in the replicas that train, and "
                    f"{len(parts)} in this restarted one: {REMEDY}"
                )
            if name == "models":
                for part, buffers in zip(parts, tree.get(BUFFERS, ()), strict=False):
                    give_buffers(part, buffers)
            for part, state in zip(parts, given, strict=True):
                _check_groups(part, state)
                kind, own = type(part).__name__, _state_of(part)
                if isinstance(part, torch.optim.Optimizer):
                    self._check_state(part, state, own)
                with _same_groups(part):
                    _load(part, completed(state, own, kind, kind, self.lacking))
        optimizers = self._script.stepping.optimizers.that_heal()
        for optimizer, counts in zip(optimizers, tree.get(COUNTS, ()), strict=False):
            vars(optimizer).update({k: v for k, v in counts.items() if k in vars(optimizer)})
        self._script.models.set_syncs(tree.get(SYNCS, ()))

    def _check_state(self, optimizer: Any, given: dict[str, Any], own: dict[str, Any]) -> None:
        """Refuse a state that lacks a value for a parameter: this replica would step unlike its
        peers. What the groups lack is the script's own, which has made them here as there."""
        lost: list[str] = []
        kind, values = type(optimizer).__name__, given.get("state", {})
        completed(values, own.get("state", {}), kind, kind, lost)
        if lost:
            site = self._script.stepping.optimizers.site_of(optimizer)
            refuse(
                f"{site}: a restarted replica cannot restore {', '.join(sorted({*lost}))}, and "
                "would step unlike its peers without it. It can restore tensors, plain values and "
                "plain objects of these"
            )
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        for index, parameter in enumerate(parameters):
            for value in values.get(index, {}).values():
                _put_on(value, parameter.device)


def _state_of(part: Any) -> dict[str, Any]:
    """What ``part`` gives to carry. Of an optimizer that has a form of its own, or refuses to give
    any, that of torch's: its groups and ``state``. What else it holds is walked as attributes, and
    optimizers that it wraps are parts themselves."""
    of_torch = torch.optim.Optimizer
    if isinstance(part, of_torch) and not _has_form(part):
        return of_torch.state_dict(part)
    return {**part.state_dict()}


def _counts_of(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """What an optimizer counts in attributes of its own. It goes with the state: a newcomer that
    goes through its peers' steps again steps nothing."""
    return {k: v for k, v in vars(optimizer).items() if type(v) is int and not is_of_rank(k)}


def _has_form(optimizer: Any) -> bool:
    """Whether it gives and takes its state in torch's own form. A class is asked once, and only if
    its function asks another one: torch's own for shards steps an optimizer that has no state."""
    kind = type(optimizer)
    if kind.state_dict is torch.optim.Optimizer.state_dict:
        return True  # mostly so
    if kind not in _FORMS:
        code = getattr(inspect.unwrap(kind.state_dict), "__code__", None)
        form = None
        if code and "state_dict" in code.co_names:
            with contextlib.suppress(RuntimeError):  # of what the ranks share out
                form = optimizer.state_dict()
        _FORMS[kind] = isinstance(form, dict) and {"state", "param_groups"} <= form.keys()
    return _FORMS[kind]


def _load(part: Any, state: dict[str, Any]) -> None:
    if isinstance(part, torch.optim.Optimizer) and not _has_form(part):
        torch.optim.Optimizer.load_state_dict(part, state)
    else:
        part.load_state_dict(state)


def in_order(have: Sequence[Named], want: Sequence[Named]) -> tuple[list[int] | None, int]:
    """Where in ``have`` each parameter of ``want`` is, and of how many that is not certain: those
    alike, of which neither place nor name is known. They are taken as they come.

    None: that may be wrong, because others come in another order; with 0, because it has others.
    """
    left = dict(enumerate(have))
    found: dict[int, int] = {}
    for label in (_name, _kind):
        here = {label(one): at for at, one in left.items()}
        often = Counter(map(label, left.values()))
        there = Counter(label(one) for at, one in enumerate(want) if at not in found)
        for at, one in enumerate(want):
            key = label(one)
            if at not in found and key != "" and often[key] == there[key] == 1:
                found[at] = here[key]
                del left[here[key]]
    is_moved, doubt = any(at != now for at, now in found.items()), len(left)
    for at, one in enumerate(want):
        if at not in found:
            alike = [now for now, x in left.items() if _kind(x) == _kind(one)]
            if not alike:
                return None, 0
            found[at] = alike[0]
            del left[alike[0]]
    is_certain = not (is_moved and doubt)
    return [found[at] for at in range(len(want))] if is_certain else None, doubt


def _name(one: Named) -> str:
    return "" if isinstance(one, int) else one[0]


def _kind(one: Named) -> int | str:
    return one if isinstance(one, int) else one[1]


def _put_on(value: Any, device: torch.device) -> None:
    """Put what an object holds on the device of its parameter, as torch does with tensors."""
    if script_classes.kind_of(type(value)) == script_classes.OBJECT:
        held = vars(value)
        held.update(mapped({**held}, lambda x: x.to(device) if torch.is_tensor(x) else x))


@contextmanager
def _same_groups(part: Any) -> Iterator[None]:
    """An optimizer's groups stay the dicts that the script may hold, with what is loaded."""
    if not isinstance(part, torch.optim.Optimizer):
        yield
        return
    listed = part.param_groups
    groups = [*listed]
    yield
    for group, loaded in zip(groups, part.param_groups, strict=True):
        group.clear()
        group.update(loaded)
    listed[:], part.param_groups = groups, listed


def _check_groups(part: Any, state: dict[str, Any]) -> None:
    if not isinstance(part, torch.optim.Optimizer):
        return
    here = [len(group["params"]) for group in part.param_groups]
    there = [len(group["params"]) for group in state["param_groups"]]
    if here != there:
        refuse(
            f"the {type(part).__name__} of the replicas that train has groups of {there} "
            f"parameters, and that of this restarted one of {here}: {REMEDY}"
        )
