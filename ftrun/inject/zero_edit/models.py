"""The script's modules: the models that all replicas train, and the modules beside them.

A model is a module that a DistributedDataParallel wraps (wrapping.py), or that ``fully_shard``
shards (sharding.py).

Not here: how gradients are reduced (training/), steps (loop.py).
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.refusals import refuse
from ftrun.inject.zero_edit.values.attributes import Buffers
from ftrun.inject.zero_edit.values.tensors import LATE
from ftrun.training import compiling
from ftrun.training.manager import Manager
from ftrun.training.sharded import forget_passes, parameters_of, replicate

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

MODULES_MAX, LATE_MAX = 200_000, 4_096
_SYNCS = "require_forward_param_sync"


class Models:
    """The models of this process.

    Attributes:
        mates: the workers of this replica; ``world``: the script's process groups.
        wrapped: the models; ``sites``: the line that wrapped or sharded each.
        makes_ddp: called before the script wraps or shards a model; False: leave it to torch,
            because the script is explicit.
        have_buffers: a DistributedDataParallel has buffers.
        syncs: for each model, whether its next pass broadcasts its buffers, as of the step's start;
            None: it has none. An evaluation, or a pass that only accumulates, can change this; all
            ranks must do the same.
        is_averaged: averaging of FSDP2's shards across the replicas is set up.
    """

    def __init__(self, script: Script) -> None:
        self.makes_ddp: Callable[[], bool] = lambda: True
        self.script, self.mates, self.world = script, script.mates, script.world
        self._mesh: Any = None
        self._sharded: dict[int, Any] = {}  # by id: the hook before its forward pass
        self.is_averaged = self.have_buffers = self._is_alone = self._has_first = False
        self._has_evaluated = False
        self.wrapped: list[nn.Module] = []
        self.sites: list[str] = []
        self.syncs: list[bool | None] = []
        self._parameters: set[int] | None = None
        self._made: list[tuple[weakref.ref[nn.Module], str]] = []  # new modules, and their lines
        self._roots: list[tuple[nn.Module, str]] | None = None  # as of the first step
        self._bare: list[tuple[nn.Module, str]] = []
        self._around: list[Callable[[], nn.Module | None]] = []  # the DDP of each model

    def step_begins(self) -> None:
        """Set ``syncs`` for a newcomer of this step, before a pass of the step changes it."""
        self.syncs = [getattr(around(), _SYNCS, None) for around in self._around]

    def set_syncs(self, syncs: Sequence[bool | None]) -> None:
        """Set a newcomer's models to broadcast their buffers in the same passes as the peers'."""
        for around, is_due in zip(self._around, syncs, strict=False):
            model = around()
            if is_due is not None and model is not None:
                setattr(model, _SYNCS, is_due)
        self.syncs = list(syncs)

    def keep(self) -> None:
        """Hold the modules that are alive at the first step, so that they heal even after main()
        has returned."""
        if self._roots is None:
            self._bare, self._roots = self._outermost(is_bare=True), self._outermost()
            self._made = []

    def add(self, module: nn.Module, around: nn.Module | None = None) -> None:
        """A DistributedDataParallel, ``around``, wraps ``module``, or FSDP2 shards it."""
        self.wrapped.append(module)
        has_buffers = bool(getattr(around, "modules_buffers", ()))
        self.have_buffers |= has_buffers
        self._around.append(weakref.ref(around) if has_buffers else lambda: None)
        self.sites.append(call_site())
        self._parameters = None
        if self._roots is not None:
            self.script.charge.made_late("makes another DistributedDataParallel", is_model=True)
        is_first, self._has_first = not self._has_first, True
        if is_first:
            self.script.has_model()

    @contextmanager
    def loose(self) -> Iterator[None]:
        """Hold no module meanwhile. Those that nobody else holds are no longer this script's."""
        roots, bare = self._roots or [], self._bare
        known = [*zip(map(weakref.ref, self.wrapped), self.sites, self._around, strict=True)]
        left = [[(weakref.ref(x), site) for x, site in one] for one in (roots, bare)]
        for one in (self.wrapped, roots, bare):
            one.clear()
        yield
        alive = [(x, site, around) for ref, site, around in known if (x := ref()) is not None]
        self.wrapped[:] = [x for x, *_ in alive]
        self.sites, self._around = [x for _, x, _ in alive], [x for *_, x in alive]
        for one, refs in zip((roots, bare), left, strict=True):
            one[:] = [(x, site) for ref, site in refs if (x := ref()) is not None]
        self._parameters = None

    def has_parameter_of(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer steps a parameter of a model."""
        known = self.known()
        for group in optimizer.param_groups:  # no any(), whose generator costs more: mostly the
            for parameter in group["params"]:  # first parameter is one
                if id(parameter) in known:
                    return True
        return False

    def known(self) -> set[int]:
        """The ids of the models' parameters."""
        if self._parameters is None:
            self._parameters = {id(p) for module in self.wrapped for p in parameters_of(module)}
        return self._parameters

    # ------------------------------------------------------------ FSDP2

    def mesh(self, wished: Any) -> Any:
        """The mesh of this replica's workers, in place of the requested mesh over all ranks."""
        if self._mesh is None:
            self._mesh = self.mates.make_mesh(None if wished is None else wished.device_type)
        return self._mesh

    @property
    def shards_within(self) -> bool:
        """Whether models are sharded over this replica's workers."""
        return self._mesh is not None

    def add_sharded(self, module: nn.Module) -> None:
        """FSDP2 or tensor parallel shards a module. Only outermost sharded modules are models."""
        inner = {id(part) for part in module.modules()}
        for at in reversed(range(len(self.wrapped))):
            if id(self.wrapped[at]) in inner:
                del self.wrapped[at], self.sites[at], self._around[at]
        for part in inner & self._sharded.keys():
            self._sharded.pop(part).remove()
        before: Any = self._before_sharded
        hook = module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        self._sharded[id(module)] = hook
        self.add(module)

    def average_sharded(self, manager: Manager, optimizers: Sequence[Optimizer]) -> None:
        """Before the first step: set up averaging across the replicas for all sharded models."""
        if self.is_averaged or not self._sharded:
            return
        self.is_averaged = True
        self._parameters, known = None, self.known()
        for optimizer in optimizers:
            if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
                refuse(
                    f"{self.sites[0]}: {type(optimizer).__name__} steps parameters that no "
                    "fully_shard has, so nothing would average their gradients. Call fully_shard "
                    "on the whole model, after its parts"
                )
        for module in self.wrapped:
            if id(module) in self._sharded:
                replicate(manager, module)

    def trains(self, *modules: nn.Module) -> bool:
        """Whether a call of these modules, the innermost one last, is a pass in training. A call in
        evaluation mode is reported to the loop: a wrapper may not know of it."""
        inner = modules[-1].training
        is_in_training, has_gradients = inner or modules[0].training, torch.is_grad_enabled()
        if not is_in_training or not (has_gradients or inner):
            self.script.loop.before_evaluation()
        return is_in_training and has_gradients

    def begins_pass(self, inputs: tuple[Any, ...]) -> bool:
        """A pass in training begins; returns False if it does not count (``before_forward``)."""
        kept = self.script.predecessor
        if kept is None:
            return self.script.loop.before_forward()
        kept.passes(inputs)
        try:
            return self.script.loop.before_forward()
        finally:
            kept.passes(None)

    def is_sharded(self, module: nn.Module) -> bool:
        return id(module) in self._sharded

    @compiling.never
    def _before_sharded(self, module: Any, args: Any, kwargs: Any) -> None:
        is_in_training = self.trains(module)
        if is_in_training and self._has_evaluated:
            forget_passes(module)
        self._has_evaluated = not is_in_training
        if is_in_training:
            is_alone = not self.begins_pass((args, kwargs))
            set_all = getattr(module, "set_requires_all_reduce", None)  # None: tensor parallel
            if set_all is not None and (is_alone or self._is_alone):
                self._is_alone = is_alone
                set_all(not is_alone)  # False: FSDP2 reduces within the replica only

    def beside(self) -> dict[str, nn.Module]:
        """The outermost modules with tensors of their own that are no models: an average of the
        weights, a teacher, a copy of the best model.

        By class, line and number. One may contain a model. The modules of the first step come
        first, then those made later, with ``LATE`` in their names.
        """
        if self._roots is None:
            return _named(self._outermost())
        return {**_named(self._roots), **_named(self._outermost(), LATE)}

    def bare(self) -> dict[str, nn.Module]:
        """As ``beside``, the modules without any parameter or buffer: a metric, a loss."""
        now = self._outermost(is_bare=True)
        return _named(now) if self._roots is None else {**_named(self._bare), **_named(now, LATE)}

    def buffers_apart(self) -> dict[str, Buffers]:
        """Of each model the buffers that nobody broadcasts, so that each rank has its own. Those of
        a DistributedDataParallel with ``broadcast_buffers`` are its rank 0's."""
        found = {}
        named = _named(zip(self.wrapped, self.sites, strict=True))
        for (name, module), around in zip(named.items(), self._around, strict=True):
            ddp: Any = around()
            left = dict(module.named_buffers())
            if ddp is not None and ddp.broadcast_buffers:
                left = {key: left[key] for key in left.keys() & ddp.parameters_to_ignore}
            if left:
                found[f"buffers of {name}"] = Buffers(left)
        return found

    def _outermost(self, *, is_bare: bool = False) -> list[tuple[nn.Module, str]]:
        """The noted modules with tensors of their own (``is_bare``: without any) that are in no
        other module. A module made after the first step is left out if it contains a model."""
        is_late = self._roots is not None
        alive = [(module, site) for ref, site in self._made if (module := ref()) is not None]
        wholes = [module for module, _ in (*alive, *(self._roots or ()))]
        inner = {id(part) for module in wholes for part in module.children()}
        covered = {id(part) for module in self.wrapped for part in module.modules()}
        trained = {id(x) for module in self.wrapped for x in _tensors_of(module)}
        found: dict[int, tuple[nn.Module, str]] = {}
        for module, site in alive:
            parts = module.modules() if is_late else (module,)
            if isinstance(module, DistributedDataParallel) and "reducer" not in vars(module):
                continue  # it is being made
            if id(module) in inner or any(id(part) in covered for part in parts):
                continue
            tensors = [*_tensors_of(module)]
            if (not tensors) if is_bare else any(id(x) not in trained for x in tensors):
                found.setdefault(id(module), (module, site))
        return list(found.values())

    def leave(self) -> None:
        """Leave models to torch from now on: this process is a child of the worker."""
        self.makes_ddp = lambda: False
        self.wrapped.clear()

    def install(self, patches: Patches) -> None:
        """Note all modules that the script makes."""
        patches.after(nn.Module, "__init__", self._note)
        patches.after(nn.Module, "__setstate__", self._note)  # deep copies

    def _note(self, made: nn.Module) -> None:
        limit = MODULES_MAX if self._roots is None else LATE_MAX
        if len(self._made) >= limit:
            self._made = [(ref, site) for ref, site in self._made if ref() is not None]
        if len(self._made) < limit:
            self._made.append((weakref.ref(made), call_site()))


def _tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _named(made: Iterable[tuple[nn.Module, str]], suffix: str = "") -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {}
    numbers = Counter[str]()
    for module, site in made:
        name = f"{type(module).__name__} ({site}){suffix}"
        numbers[name] += 1
        found[f"{name} {numbers[name]}"] = module
    return found
