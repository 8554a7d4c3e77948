"""The objects of a script that ftrun takes charge of at its first step, and those that it does not.

Not here: how state is carried (carried.py), other notices to the user (told.py).
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.digests import digests_of
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.loaders import OPEN
from ftrun.inject.zero_edit.marking import digest_of
from ftrun.inject.zero_edit.mates import store_of_all
from ftrun.inject.zero_edit.models import Models
from ftrun.inject.zero_edit.refusals import refuse
from ftrun.inject.zero_edit.stepping import Stepping
from ftrun.inject.zero_edit.values.tensors import UNITS
from ftrun.inject.zero_edit.values.units import is_leaf
from ftrun.training.manager import Manager

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script


UNLIKE = "unlike"
"""A key of the store: the names of modules that were not alike on two ranks before the first step,
one a line."""
STEPPED_LIMIT = timedelta(minutes=1)
"""Until all replicas have come to the first step, which waits for them anyway."""


class Charge:
    """The charge of one script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._batches_of = ""
        self._has_late = self._is_stale = self._has_more_models = False
        self._is_told = False

    def take(self, manager: Manager) -> None:
        """Before the first step: what ftrun carries from now on, and what it does not."""
        models, stepping, trial = self._script.models, self._script.stepping, self._script.trial
        are_several = len(models.wrapped) > 1 or len(stepping.optimizers.all()) > 1
        if are_several and self._script.memory is None:  # some may be dropped, as by a newcomer
            with models.loose(), manager.session.healing.passes.loose():
                gc.collect()
        for created in (stepping.optimizers, stepping.schedulers, stepping.scalers):
            created.keep()
        models.keep()
        managed = self._mark()
        self._script.marking.known = models.known
        for optimizer in managed:
            manager.session.watch_optimizer(optimizer)
        models.average_sharded(manager, managed)
        self._batches_of = self._script.exactly_once.words() or OPEN.words()
        if self._is_told:
            return
        self._is_told = True
        if self._script.memory is None and not self._script.is_in_place:  # else it has its own
            self._compare(managed, joins=bool(self._script.joins_at()))
        if trial is not None:
            trial.watch(models.wrapped)
        loose = parts(models, stepping)[1]
        is_told = self._script.memory is not None or self._script.mates.rank > 0  # by another one
        if not is_told and not self._script.joins_at():
            told.say(line(models, stepping, self._batches_of))
        if self._script.predecessor is not None:
            self._script.predecessor.lacks(loose)

    def _mark(self) -> list[Optimizer]:
        """Mark the optimizers that step the models."""
        models, known = self._script.models, self._script.stepping.optimizers.that_heal()
        managed = [x for x in known if models.has_parameter_of(x)]
        self._script.marking.optimizers = managed
        return managed

    def let_go(self, *, joins: bool = False) -> None:
        """A step begins, in a loop whose frames have all that it uses. What the script has dropped
        since it made another model or optimizer, as one for each round, is dropped here too: else
        it would take memory, and a newcomer, which has only those of one round, would lack it.

        ``joins``: this replica joins its peers, or gives them its state: what is left must not
        depend on when Python collects.
        """
        models, stepping = self._script.models, self._script.stepping
        is_due = self._is_stale or (joins and self._has_late)
        if not is_due or self._script.memory is not None or models.shards_within:
            return
        with ExitStack() as held:
            for created in (stepping.optimizers, stepping.schedulers, stepping.scalers):
                held.enter_context(created.loose())
            self._script.marking.optimizers = ()
            if joins or self._has_more_models:
                held.enter_context(models.loose())
                held.enter_context(self._script.manager().session.healing.passes.loose())
            if joins:
                self._script.counters.let_go()
                gc.collect()
        self._is_stale = self._has_more_models = False
        self._mark()

    def _compare(self, optimizers: Sequence[Optimizer], *, joins: bool) -> None:
        """Refuse optimizers that step some parameters here and others at the next rank of this
        node: nobody else has the state of a replica that dies. Note the modules beside the models
        that are not alike there: a newcomer, which ``joins``, names those."""
        store = store_of_all("ftrun/stepped", STEPPED_LIMIT)
        own, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        beside = {} if self._script.mates.are_several else self._script.models.beside()
        kept = {
            name: digest_of(filter(is_leaf, [*module.parameters(), *module.buffers()]))
            for name, module in beside.items()
        }
        if joins:
            names = store.get(UNLIKE).decode() if store.check([UNLIKE]) else ""
            first = json.loads(store.get(str(own)).decode())[1] if store.check([str(own)]) else {}
            tensors = self._script.tensors
            tensors.unlike = frozenset(names.splitlines())
            tensors.again = frozenset(x for x in kept.keys() & first.keys() if kept[x] == first[x])
            return
        stepped = {id(p) for x in optimizers for group in x.param_groups for p in group["params"]}
        trained = [p for x in self._script.models.wrapped for p in x.parameters()]
        known = [id(p) in stepped for p in trained if p.requires_grad]
        is_whole = all(known) or not optimizers
        digest = hashlib.blake2b(bytes(known), digest_size=8).hexdigest()
        store.set(str(own), json.dumps([digest, kept]))
        if is_whole and not kept:
            return
        other = digest, kept
        with contextlib.suppress(RuntimeError):  # it has not come: nobody can tell
            other = json.loads(store.get(str((own + 1) % ranks)).decode())
        for name in [name for name, found in kept.items() if other[1].get(name, found) != found]:
            store.append(UNLIKE, f"{name}\n")
        if other[0] != digest and not is_whole:
            names = _names("", [*optimizers], self._script.stepping.optimizers.site_of)
            refuse(
                f"{names.strip()} steps some parameters here, and others at other ranks: a part of "
                "the optimizers' state is lost with each rank"
            )

    def made_late(self, what: str, *, is_model: bool = False) -> None:
        """The script has made something after its first step."""
        self._has_late = self._is_stale = True
        self._has_more_models |= is_model
        is_known = self._script.course.now.has_stepped and not self._script.ending.has_followed
        if is_known and (memory := self._script.memory) is not None:
            memory.predecessor.lacks([f"what {call_site()} makes after the first step"])
        elif is_known and not self._script.mates.rank:
            told.made_late(call_site(), what, self._script.steps)

    def facts(self) -> dict[str, Any]:
        """For the report of a trial."""
        models, tensors = self._script.models, self._script.tensors
        carried, loose = parts(models, self._script.stepping)
        carried.append(f"batches of {self._batches_of}")
        found = tensors.carried()
        if found:
            carried.append(f"tensors {', '.join(sorted({path for _, path in found}))}")
        return {
            "parameters": self._script.marking.digest(),
            "kept": digests_of(
                models.wrapped,
                models.known(),
                models.beside(),
                self._script.marking.optimizers,
                tensors.own_state()[UNITS],
            ),
            "lost": self._script.lost,
            "carried": carried,
            "loose": loose,
            "changes": sorted({*tensors.changing(), *self._script.counters.changing()}),
            "lacking": self._script.lacking,
        }


def line(models: Models, stepping: Stepping, loop: str) -> str:
    """Describe in one line what ftrun has taken charge of. ``loop``: where batches come from."""
    carried, loose = parts(models, stepping)
    text = f"a replica that restarts will restore: {'; '.join(carried)}; its place in {loop}"
    return text + (f". It will not restore: {'; '.join(loose)}" if loose else "")


def parts(models: Models, stepping: Stepping) -> tuple[list[str], list[str]]:
    """Describe the objects that are carried, and those that are not.

    Each comes with the line of the script that made it, except for modules that nothing wraps.
    """
    optimizers = stepping.optimizers.all()
    sites = dict(zip(map(id, models.wrapped), models.sites, strict=True))
    sharded = [x for x in models.wrapped if models.is_sharded(x)]
    in_whole = [x for x in models.wrapped if not models.is_sharded(x)]
    managed = [x for x in optimizers if models.has_parameter_of(x)]
    loose = [x for x in optimizers if not models.has_parameter_of(x)]
    scalers = [x for x in stepping.scalers.all() if x.is_enabled()]
    carried = [
        _names("DistributedDataParallel of", in_whole, lambda x: sites[id(x)]),
        _names("sharded", sharded, lambda x: sites[id(x)]),
        _names("other modules", [*models.beside().values()]),
        _names("optimizers", managed, stepping.optimizers.site_of),
        _names("schedulers", stepping.schedulers.all(), stepping.schedulers.site_of),
        _names("scalers", scalers, stepping.scalers.site_of),
    ]
    left = [_names("parameters of no model, stepped by", loose, stepping.optimizers.site_of)]
    return [part for part in carried if part], [part for part in left if part]


def _names(what: str, found: list[Any], site_of: Callable[[Any], str] | None = None) -> str:
    if not found:
        return ""
    each = [type(x).__name__ + (f" ({site_of(x)})" if site_of is not None else "") for x in found]
    return f"{what} {', '.join(each)}"
