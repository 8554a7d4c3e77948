"""State that a forward pass itself changes: buffers, and parameters without a gradient.

A donor serves its live state, and a newcomer may ask for it in the middle of a step. By then the
donor's pass has changed this state already, and the newcomer's pass would change it again. There
are two remedies. In jobs that need all replicas, newcomers come in the middle of a step, so donors
copy this state before each pass and serve the copies. In other jobs the donor reports that its pass
has changed the state, and the newcomer restores what it received after its own pass.

Whether a pass updates a parameter, as a momentum encoder does, is detected by the parameter's
version: in the first steps and then now and then. So are modules that register a first buffer.

Not here: when state is served (healing.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ftrun.checkpoint.leaves import Leaf, local_of

LEARNS, LEARNS_EVERY = 4, 64
"""All parameters and modules are checked in the first LEARNS steps, then in one of LEARNS_EVERY."""


class Passes:
    """The tensors of one worker that its forward passes may change.

    For the training thread, except the methods by which a donor serves them: from any thread.

    Args:
        keeps: copies are made before each pass.

    Attributes:
        own: gives the ``data_ptr`` of tensors that were loaded, but not as the donor has them.
    """

    def __init__(self, *, keeps: bool = False) -> None:
        self._keeps = keeps
        self.own: Callable[[], frozenset[int]] = frozenset
        self._before: list[Tensor] = []  # copies of the changing ones
        self._changing: list[Tensor] = []
        self._modules: list[nn.Module] = []
        self._holders: list[nn.Module] = []  # of buffers
        self._buffers: list[tuple[nn.Module, str, Tensor]] = []
        self._learned: list[Tensor] = []  # parameters that a pass has changed
        self._others: list[Tensor] = []  # parameters that no pass has changed yet
        self._versions: list[int] = []
        self._versions_of_others: list[int] = []
        self._steps = 0
        self._is_in_step = False
        self._given: dict[str, Tensor] | None = None

    def watch(self, module: nn.Module) -> None:
        """Watch the module's buffers, and its parameters without a gradient."""
        self._modules.append(module)
        self._look(is_whole=True)
        frozen = (x for x in module.parameters() if not (x.requires_grad or x.is_inference()))
        self._others += frozen

    @contextmanager
    def loose(self) -> Iterator[None]:
        """Hold no module meanwhile: what nobody else holds is watched no longer."""
        refs = [*map(weakref.ref, self._modules)]
        self._modules, self._holders, self._buffers = [], [], []
        yield
        self._modules = [module for ref in refs if (module := ref()) is not None]
        left = {id(x) for module in self._modules for x in module.parameters()}
        self._learned = [x for x in self._learned if id(x) in left]
        self._others = [x for x in self._others if id(x) in left]
        self._versions_of_others, self._before = [], []
        self._look(is_whole=True)
        self._changing = [*(x for *_, x in self._buffers), *self._learned]

    def _look(self, *, is_whole: bool) -> None:
        """Find the buffers. A pass may register or replace some."""
        if is_whole:
            parts = (part for module in self._modules for part in module.modules())
            self._holders = [part for part in parts if part._buffers]
        found = self._now()
        if self._are_others(found):
            self._buffers, self._before = found, []
            self._changing = [*(x for *_, x in found), *self._learned]

    def _now(self) -> list[tuple[nn.Module, str, Tensor]]:
        return [
            (part, name, x)
            for part in self._holders
            for name, x in part._buffers.items()
            if x is not None
        ]

    def _are_others(self, found: Sequence[tuple[nn.Module, str, Tensor]]) -> bool:
        return [id(x) for *_, x in found] != [id(x) for *_, x in self._buffers]

    def begins(self) -> None:
        """A step begins, before any pass of it."""
        self._is_in_step = True
        is_looked_at = self._steps < LEARNS or self._steps % LEARNS_EVERY == 0
        is_looked_at |= self._given is not None
        self._look(is_whole=is_looked_at)
        if self._keeps:
            self._copy()
        self._versions = _versions_of(self._changing)
        self._versions_of_others = _versions_of(self._others) if is_looked_at else []

    def has_passed(self) -> bool:
        """Whether a pass of this step has changed what is served."""
        if self._keeps or not self._is_in_step:
            return False
        is_moved = _versions_of(self._changing) != self._versions
        return is_moved or self._are_others(self._now())

    def stills(self) -> dict[int, Tensor]:
        """By ``data_ptr``: each tensor that passes change, or its copy. In any thread."""
        is_copied = self._keeps and self._is_in_step
        stills = self._before if is_copied else self._changing
        known = [*zip(self._changing, stills, strict=False)]  # one that was found later has no copy
        if is_copied:  # a pass may have put another tensor in a buffer's place
            slots = [(part._buffers.get(name), x) for part, name, x in self._buffers]
            others = [(x, y) for (x, old), y in zip(slots, stills, strict=False) if x is not old]
            known += [(x, y) for x, y in others if x is not None and x.shape == y.shape]
        found = {local_of(x).data_ptr(): local_of(still) for x, still in known}
        found.pop(0, None)  # tensors without elements
        return found

    def _copy(self) -> None:
        with torch.no_grad():
            for x, before in zip(self._changing, self._before, strict=False):
                before.copy_(x)
            more = self._changing[len(self._before) :]
            self._before += [x.detach().clone() for x in more]

    def heal_after(self, given: Iterable[Leaf]) -> None:
        """This worker has loaded state that a donor's pass of this step had already changed."""
        self._given = {x.spec.path: x.data for x in given if isinstance(x.data, Tensor)}
        self.begins()

    def over(self, own: Callable[[], Sequence[Leaf]]) -> None:
        """The passes of the step are over. ``own``: returns the leaves of this worker's state."""
        self._learn()
        given, self._given = self._given, None
        if given is not None:
            self._put_back(given, own())
        self._is_in_step = False
        self._steps += 1

    def _learn(self) -> None:
        if not self._versions_of_others:
            return
        before = zip(self._others, self._versions_of_others, strict=True)
        changed = {id(x) for x, version in before if x._version != version}
        if changed:
            self._learned += [x for x in self._others if id(x) in changed]
            self._changing = [*(x for *_, x in self._buffers), *self._learned]
            self._others = [x for x in self._others if id(x) not in changed]

    def _put_back(self, given: Mapping[str, Tensor], own: Sequence[Leaf]) -> None:
        addresses = self.stills().keys() - self.own()
        with torch.no_grad():
            for leaf in own:
                known = given.get(leaf.spec.path)
                data = leaf.data
                if known is not None and isinstance(data, Tensor) and data.data_ptr() in addresses:
                    data.copy_(known)


def _versions_of(tensors: Iterable[Tensor]) -> list[int]:
    return [x._version for x in tensors]
