"""The optimizer that begins a step with a quorum and ends it with a commit; and its GradScaler.

**A step that a GradScaler skips** because gradients are infinite is an ordinary step: it is
committed, with weights unchanged. The scaler decides from averaged gradients, which are equal on
all replicas, so all of them skip the same steps. It informs the wrapper by torch's protocol for
optimizers that unscale by themselves (``_step_supports_amp_scaling``): ``step`` is called in any
case and finds ``grad_scale`` and ``found_inf``. The scale is state like the weights and must heal
with them: the ``GradScaler`` here registers it.

Not here: what a commit is (core/worker/machine.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ftrun.training.manager import Manager


class OptimizerWrapper(torch.optim.Optimizer):
    """Wraps an optimizer: ``zero_grad`` begins a step, ``step`` steps if the step is committed.

    Everything else (``state_dict``, ``param_groups``, hooks …) is the wrapped optimizer's own, so
    that learning-rate schedulers and GradScaler treat the wrapper like the wrapped optimizer.

    ``committed``: whether the last ``step()`` was committed.

    Args:
        manager: the Manager of this process.
        optim: the optimizer that does the work.
    """

    # GradScaler then calls ``step`` even if gradients are infinite, and ``step`` skips.
    _step_supports_amp_scaling = True

    def __init__(self, manager: Manager, optim: torch.optim.Optimizer) -> None:
        # Optimizer.__init__ would make separate parameter groups and hooks.
        self.optim = optim
        self.manager = manager
        self.committed = True
        self._set_to_none = True
        manager.session.watch_optimizer(optim, self)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begin a step: wait for a quorum if none is in force, and clear the gradients."""
        self._set_to_none = set_to_none
        self.manager.start_quorum()
        self.optim.zero_grad(set_to_none)

    def zero_grad_again(self) -> None:
        """Call ``zero_grad`` as the script last called it, for a replica without data (join.py)."""
        self.zero_grad(self._set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step if this step is committed; otherwise change nothing (C5).

        Raises:
            ValueError: a closure is given, which would run the model more than once in a step.
        """
        if closure is not None:
            raise ValueError("an optimizer that ftrun manages takes no closure; call step() alone")
        joining = self.manager.session.joining
        if joining is None:
            self.committed = self.manager.should_commit()
            if self.committed:
                self._step()
            return
        forgoes = joining.forgoes(scales="found_inf" in vars(self))
        all_forgo = joining.all_forgo
        self.committed = self.manager.should_commit(forgoes=forgoes, all_forgo=all_forgo)
        if all_forgo:
            joining.throw()
        if joining.decided(self.committed):
            self._step()

    def _step(self) -> None:
        attributes = vars(self)  # a GradScaler has set two of these for this call of ``step``
        if "found_inf" not in attributes:
            self.optim.step()
        elif getattr(self.optim, "_step_supports_amp_scaling", False):
            self._step_by_itself(self.optim, attributes["grad_scale"], attributes["found_inf"])
        elif not self.manager.session.any_in_group(bool(attributes["found_inf"])):
            self._unscale(attributes["grad_scale"])
            self.optim.step()

    def _step_by_itself(self, optim: Any, scale: Any, found_inf: Any) -> None:
        """Step a fused optimizer, which unscales and skips in its own kernel."""
        optim.grad_scale, optim.found_inf = scale, found_inf
        try:
            optim.step()
        finally:
            del optim.grad_scale, optim.found_inf

    def _unscale(self, scale: torch.Tensor | None) -> None:
        """Unscale the gradients, unless the script has called ``unscale_`` (``scale`` is None)."""
        if scale is None:
            return
        factor = scale.double().reciprocal().float()
        groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for gradient in self._gradients():
            groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
        for (device, dtype), gradients in groups.items():
            if dtype == torch.float16:
                raise ValueError("Attempting to unscale FP16 gradients.")
            torch._foreach_mul_(gradients, factor.to(device))

    def _gradients(self) -> Iterator[torch.Tensor]:
        for group in self.optim.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    yield parameter.grad

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optim.add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optim.load_state_dict(state_dict)

    def state_dict(self) -> dict[str, Any]:
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
        return self.optim.defaults

    def __getattr__(self, name: str) -> Any:
        if name == "optim":  # copied or unpickled without __init__
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optim!r})"


Optimizer = OptimizerWrapper


class GradScaler(torch.amp.GradScaler):
    """torch's GradScaler as part of a replica's state: it heals, and counts committed steps only.

    torch's own works as well, if the script's state functions include its ``state_dict()``. But it
    also adapts its scale to the gradients of steps that are not committed.

    Args:
        manager: the Manager of this process.
        device, kwargs: torch's own arguments.
    """

    def __init__(self, manager: Manager, device: str = "cuda", **kwargs: Any) -> None:
        super().__init__(device, **kwargs)
        self._counts = True
        manager.register_state_dict_fn("grad_scaler", self.load_state_dict, self.state_dict)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """As torch's; ``optimizer`` is an OptimizerWrapper."""
        result = super().step(optimizer, *args, **kwargs)
        self._counts = getattr(optimizer, "committed", True)
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """As torch's, but the scale does not change after a step that was not committed."""
        if new_scale is None and not self._counts:
            new_scale = self.get_scale()
        super().update(new_scale)
