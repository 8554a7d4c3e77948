"""Optimizers, schedulers and scalers of the script: they step committed steps only, and heal.

Not here: whether a step is committed (loop.py), how state heals (carried.py).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.refusals import refuse
from ftrun.inject.zero_edit.states import State
from ftrun.training import compiling

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script


class Created:
    """Objects of one kind in the order in which the script made them.

    ``is_used``: whether the training uses one that was made after the first step.
    """

    def __init__(self, script: Script, is_used: Callable[[Any], bool]) -> None:
        self._script, self._is_used = script, is_used
        self._found: list[weakref.ref[Any]] = []
        self._sites: dict[int, str] = {}
        self._kept: list[Any] | None = None

    def add(self, made: Any) -> None:
        """The script has made one more; its own references decide whether it lives."""
        if not any(ref() is made for ref in self._found):
            self._found.append(weakref.ref(made))
            self._sites[id(made)] = call_site()
            if self.has_begun and self._is_used(made):
                self._script.charge.made_late(f"makes another {type(made).__name__}")

    def site_of(self, made: Any) -> str:
        """``file:line`` where the script made it."""
        return self._sites.get(id(made), "the script")

    def all(self) -> list[Any]:
        return [made for ref in self._found if (made := ref()) is not None]

    def keep(self) -> None:
        """Keep those that live: peers may heal from them when the script's main() has returned."""
        self._kept = self.all()

    @contextmanager
    def loose(self) -> Iterator[None]:
        """Keep none meanwhile: those that nobody else holds are no longer the script's. Later ones
        that the training uses are kept from then on."""
        refs = [weakref.ref(made) for made in self.that_heal()]
        self._kept = []
        yield
        self._kept = [made for ref in refs if (made := ref()) is not None]

    @property
    def has_begun(self) -> bool:
        return self._kept is not None

    def late(self) -> list[Any]:
        """The objects that live and were made after the first step."""
        kept = {id(made) for made in self._kept or ()}
        return [] if self._kept is None else [x for x in self.all() if id(x) not in kept]

    def that_heal(self) -> list[Any]:
        """Those of the first step, and of the later ones those that the training uses."""
        late = {id(made) for made in self.late() if not self._is_used(made)}
        return [made for made in self.all() if id(made) not in late]


class Stepping:
    """The optimizers, schedulers and scalers of this process.

    ``on_unfit``: called with why an optimizer cannot be carried.
    """

    def __init__(self, script: Script) -> None:
        self._script, self._is_managed = script, script.models.has_parameter_of
        # Of each scheduler the steps and the commits at its last step; whether it has taken it.
        self._stepped: weakref.WeakKeyDictionary[Any, tuple[int, int, bool]]
        self._stepped = weakref.WeakKeyDictionary()
        self.optimizers = Created(script, self._is_managed)
        self.schedulers = Created(script, self._schedules_training)
        self.scalers = Created(script, lambda made: False)
        self._guarded: set[type] = set()
        self._commit = compiling.never(script.loop.commit)
        self._depth = 0
        self._alone: weakref.WeakSet[Any] = weakref.WeakSet()
        self.on_unfit: Callable[[str], None] = refuse

    def install(self, patches: Patches) -> None:
        self._patches = patches
        patches.after(Optimizer, "__init__", self._note_optimizer)
        for kind in (LRScheduler, *_schedulers_without_super()):
            patches.after(kind, "__init__", self._note_scheduler)
        self._patch_steps()
        patches.after(Optimizer, "add_param_group", self._note_group)
        self._patch_scaler()

    def _note_optimizer(self, made: Any) -> None:
        is_shared_out = any(x.__name__ == "ZeroRedundancyOptimizer" for x in type(made).__mro__)
        if is_shared_out and self._script.memory is None:  # else each rank has its own part back
            self.on_unfit(
                f"{call_site()}: ZeroRedundancyOptimizer splits its state over the replicas, so "
                "that a part of it is lost with each one. Use a whole optimizer, or FSDP2 within "
                "replicas of several workers"
            )
        self.optimizers.add(made)

    @property
    def has_late(self) -> bool:
        """Whether the script has made optimizers or schedulers after the first step."""
        return bool(self.optimizers.late() or self.schedulers.late())

    def _schedules_training(self, made: Any) -> bool:
        optimizer = getattr(made, "optimizer", None)
        return isinstance(optimizer, Optimizer) and self._is_managed(optimizer)

    def _note_scheduler(self, made: Any) -> None:
        self.schedulers.add(made)
        for kind in type(made).__mro__:
            if "step" in vars(kind) and issubclass(kind, LRScheduler) and kind not in self._guarded:
                self._guarded.add(kind)
                self._guard(kind)

    def _guard(self, kind: Any) -> None:
        """Let schedulers stand still in a replay: what they hold is of its end."""

        def step(plain: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            is_first = getattr(scheduler, "_is_initial", False)  # it steps once as it is made
            is_first = is_first or all(scheduler is not x for x in self.schedulers.all())
            if not is_first and (self._is_replay() or not self._counts(scheduler)):
                return None
            return plain(scheduler, *args, **kwargs)

        self._patches.around(kind, "step", step)

    def _is_replay(self) -> bool:
        """Whether the script goes through its peers' last steps, and the code after them, with the
        state of their end, or passes over a loop."""
        return self._script.ending.stands_still or self._script.passing.is_on

    def _counts(self, scheduler: Any) -> bool:
        """False: no step was committed since this scheduler has stepped, and its samples come
        again. (accelerate steps a scheduler several times after a step: it is asked once.)"""
        script = self._script
        if not script.exactly_once.is_on:  # else the samples are lost, and the loop counts it too
            return True
        ended, committed = script.steps, script.steps - script.lost
        ended_last, committed_last, counts = self._stepped.get(scheduler, (0, 0, True))
        if ended != ended_last:
            counts = committed > committed_last
        self._stepped[scheduler] = ended, committed, counts
        return counts

    def _note_group(self, optimizer: Any) -> None:
        known = self.optimizers
        is_old = any(optimizer is x for x in known.all() if x not in known.late())
        if known.has_begun and is_old and self._is_managed(optimizer):
            self._script.charge.made_late(f"adds parameters to its {type(optimizer).__name__}")

    def _patch_steps(self) -> None:
        """Wrap ``step`` of each optimizer class, where torch itself wraps it for its hooks."""
        plain = Optimizer._patch_step_function

        def _patch_step_function(optimizer: Any) -> None:
            plain(optimizer)
            kind = type(optimizer)
            if getattr(kind.step, "ftrun_of", None) is not kind:
                self._patches.put(kind, "step", self._wrapped(kind.step, kind))

        self._patches.put(Optimizer, "_patch_step_function", _patch_step_function)

    def _wrapped(self, plain: Callable[..., Any], kind: type) -> Callable[..., Any]:
        is_fit = not issubclass(kind, torch.optim.LBFGS)

        @compiling.only_inside
        @functools.wraps(plain)
        def step(optimizer: Any, closure: Any = None, **kwargs: Any) -> Any:
            is_managed = not self._depth and self._is_managed(optimizer)
            if is_managed and not is_fit:
                self.on_unfit(
                    f"{call_site()}: LBFGS runs the model several times in one step, which ftrun "
                    "cannot heal. Use another optimizer"
                )
                is_managed = False
            if not is_managed:
                return (
                    plain(optimizer, closure, **kwargs) if closure else plain(optimizer, **kwargs)
                )
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            if self._script.course.now is State.SET_UP:
                self._steps_alone(optimizer)
            if self._commit():
                self._depth += 1
                self._script.world.optimizer = kind.__name__
                try:
                    plain(optimizer, **kwargs)
                finally:
                    self._depth -= 1
                    self._script.world.optimizer = ""
            return loss

        step.ftrun_of = kind  # type: ignore[attr-defined]
        return step

    def _steps_alone(self, optimizer: Any) -> None:
        """No pass of a model has begun a step. Once it may be so: optimizers get their state by a
        step without one."""
        if optimizer in self._alone:
            self.on_unfit(
                f"{call_site()}: {type(optimizer).__name__} steps parameters of a "
                "DistributedDataParallel (or FSDP2) by gradients of passes that do not go through "
                "it, or not in training mode, so that ftrun sees no step"
            )
        self._alone.add(optimizer)

    def _patch_scaler(self) -> None:
        scaler: Any = torch.amp.GradScaler
        self._patches.after(scaler, "__init__", self.scalers.add)

        def step(plain: Any, own: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = plain(own, optimizer, *args, **kwargs)
            if self._script.course.now.is_in_step and self._is_managed(optimizer):
                self._commit()  # infinite gradients, on all replicas alike: nothing is changed
            return result

        def update(plain: Any, own: Any, *args: Any, **kwargs: Any) -> None:
            if not self._is_replay():
                plain(own, *args, **kwargs)
            else:  # as an update leaves it
                getattr(own, "_per_optimizer_states", {}).clear()

        self._patches.around(scaler, "step", step)
        self._patches.around(scaler, "update", update)


def _schedulers_without_super() -> list[type]:
    """The schedulers of torch whose ``__init__`` does not call that of their base."""
    from torch.optim import lr_scheduler

    names = ("ReduceLROnPlateau", "SequentialLR", "ChainedScheduler")
    return [getattr(lr_scheduler, name) for name in names]
