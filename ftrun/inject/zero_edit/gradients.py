"""Gradients that a script keeps from one step to the next: a replacement needs them too.

Most scripts drop all gradients in each step, so a generation needs none. Some scripts keep them:
they accumulate over steps, or train one of several models while the others keep their gradients,
which ``find_unused_parameters`` then also reduces. Each optimizer is checked by itself.

Not here: the contents of a generation (memory.py, predecessor.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ftrun.checkpoint.leaves import local_of
from ftrun.inject.zero_edit.patches import Patches
from ftrun.training import compiling

WORDS = "the gradients that it keeps from step to step"


class Gradients:
    """The gradients of all parameters that the optimizers step.

    Args:
        optimizers: returns the optimizers.
        lacks: called before an optimizer steps with gradients that the newest generation lacks.

    Attributes:
        are_kept: some optimizer's gradients were not dropped in the last step.
    """

    def __init__(
        self, optimizers: Callable[[], Sequence[Any]], lacks: Callable[[Sequence[str]], None]
    ) -> None:
        self._optimizers, self._lacks = optimizers, lacks
        self.are_kept = False
        self._dropped: set[int] = set()  # ids of optimizers whose gradients this step dropped
        self._lacking: set[int] = set()  # ids of those whose gradients the generation lacks

    def install(self, patches: Patches) -> None:
        """Observe ``zero_grad`` and the optimizers' steps."""
        for owner in (torch.nn.Module, torch.optim.Optimizer):
            patches.around(owner, "zero_grad", self._zero)
        register_optimizer_step_pre_hook(compiling.never(self._steps))

    def all(self) -> list[Any]:
        """All parameters that the optimizers step."""
        return [parameter for one in self._optimizers() for parameter in _parameters(one)]

    def step_begins(self) -> None:
        """A step begins: update ``are_kept``. A generation may be made now."""
        own = self._optimizers()
        self.are_kept = any(id(x) not in self._dropped and _has_any(x) for x in own)
        self._dropped.clear()

    def are_left_out(self) -> None:
        """A generation is made without the gradients."""
        self._lacking = {id(x) for x in self._optimizers() if _has_any(x, is_set=True)}

    def are_given(self) -> None:
        """A generation is made with the gradients."""
        self._lacking.clear()

    def _zero(self, plain: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> Any:
        dropped = {id(owner)}
        if isinstance(owner, torch.nn.Module):
            known = {id(x) for x in owner.parameters()}
            every = self._optimizers()
            dropped = {id(x) for x in every if all(id(p) in known for p in _parameters(x))}
        self._dropped |= dropped
        self._lacking -= dropped
        return plain(owner, *args, **kwargs)

    def _steps(self, optimizer: Any, *_: Any) -> None:
        if id(optimizer) in self._lacking:
            self._lacking.clear()
            self._lacks([WORDS])


def _parameters(optimizer: Any) -> Iterator[Any]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _has_any(optimizer: Any, *, is_set: bool = False) -> bool:
    """Whether any gradient exists. ``is_set``: and is not all 0."""
    given = (x.grad for x in _parameters(optimizer) if x.grad is not None)
    return any(not is_set or bool(local_of(x).any()) for x in given)
