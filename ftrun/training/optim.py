"""The optimizer that begins a step with a quorum and ends it with a commit.

Not here: what a commit is (core/step.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ftrun.training.manager import Manager


class OptimizerWrapper(torch.optim.Optimizer):
    """Wraps any optimizer: ``zero_grad`` starts the quorum, ``step`` steps if the commit stands.

    Everything else (``state_dict``, ``param_groups``, hooks …) is the wrapped optimizer's own, so
    that learning-rate schedulers and GradScaler take it for what it wraps.

    Args:
        manager: the Manager of this process.
        optim: the optimizer that does the work.
    """

    # GradScaler would hand its scale to this object, where a fused optimizer does not look for it.
    _step_supports_amp_scaling = False

    def __init__(self, manager: Manager, optim: torch.optim.Optimizer) -> None:
        # Optimizer.__init__ would make parameter groups and hooks of its own.
        self.optim = optim
        self.manager = manager

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begin a step: wait for a quorum if there is none, and clear the gradients."""
        self.manager.start_quorum()
        self.optim.zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step if the reduced gradients of this step stand; otherwise change nothing (C5).

        Raises:
            ValueError: a closure is given: it would run the model more than once in a step.
        """
        if closure is not None:
            raise ValueError("an optimizer that ftrun manages takes no closure; call step() alone")
        if self.manager.should_commit():
            self.optim.step()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the wrapped optimizer."""
        self.optim.add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the wrapped optimizer."""
        self.optim.load_state_dict(state_dict)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state."""
        return self.optim.state_dict()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's groups: the same list."""
        return self.optim.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The wrapped optimizer's state: the same mapping."""
        return self.optim.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped optimizer's defaults."""
        return self.optim.defaults

    def __getattr__(self, name: str) -> Any:
        if name == "optim":  # Copied or unpickled without __init__.
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optim!r})"


Optimizer = OptimizerWrapper
