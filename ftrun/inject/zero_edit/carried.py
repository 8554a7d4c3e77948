"""All state of the script that heals, in one tree.

Objects are matched by the order in which the script made them. Not here: the place in the script
(place.py), transfer (checkpoint/).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from ftrun.inject.zero_edit.frameworks import Frameworks
from ftrun.inject.zero_edit.models import Models
from ftrun.inject.zero_edit.refusals import refuse
from ftrun.inject.zero_edit.stepping import Stepping

KEY = "script"
CALLBACKS = "callbacks"
"""Unlike all else their state is that of the place, not of the step: a replica that goes through
its peers' last steps again goes through theirs too."""
_PLAIN = (int, float, bool, str, bytes, type(None), torch.Tensor)
DEPTH_MAX = 32
LIFE = "life"
REMEDY = (
    "it cannot be given what they have made in the middle of their training. Make all models, "
    "optimizers and schedulers before the first step"
)


class Carried:
    """The script's state functions for the Manager.

    Args:
        models, stepping: the objects that the script has made.
        frameworks: the trainer that runs its loop, if a framework does.
        loads: called before the peers' state is loaded; ``loaded``: afterwards.
        name: this replica's incarnation.

    Attributes:
        life: names the life of the job: the incarnation from which all took their first state.
        has_ended: the script has ended, and the objects that it made may be gone.
    """

    def __init__(
        self,
        models: Models,
        stepping: Stepping,
        frameworks: Frameworks,
        loads: Callable[[], None],
        loaded: Callable[[], None],
        name: str = "",
    ) -> None:
        self.life = name
        self._models = models
        self._stepping = stepping
        self._frameworks = frameworks
        self._loads, self._loaded = loads, loaded
        self.has_ended = False

    def _parts(self) -> dict[str, list[Any]]:
        return {
            "models": self._models.wrapped,
            "modules": self._models.loose_roots(),
            "optimizers": self._stepping.optimizers_that_heal(),
            "schedulers": self._stepping.schedulers_that_heal(),
            "scalers": [x for x in self._stepping.scalers.all() if x.is_enabled()],
            CALLBACKS: self._frameworks.parts(),
        }

    def state(self) -> dict[str, Any]:
        """The state to give to peers."""
        self._let_go()
        parts = {
            name: [_carriable(part.state_dict()) for part in parts]
            for name, parts in self._parts().items()
        }
        return {**parts, LIFE: self.life}

    def _let_go(self) -> None:
        """Collect what the script has dropped: which late objects are left must not depend on when
        Python does so."""
        if self._stepping.has_late:
            gc.collect()

    def is_over(self) -> None:
        """The script has ended, and its objects may be gone: no state is loaded into them."""
        self.has_ended = True

    def load(self, tree: dict[str, Any]) -> None:
        """Take the peers' state.

        Raises:
            Refused: this replica has made other objects than its peers.
        """
        self._loads()
        if not self.has_ended:
            self.apply(tree)
        self._loaded()

    def apply(self, tree: dict[str, Any]) -> None:
        """Take a state; without callbacks those stay as they are.

        Raises:
            Refused: this replica has made other objects.
        """
        self._let_go()
        self.life = tree.get(LIFE, "")
        for name, parts in self._parts().items():
            given = tree[name]
            if name == CALLBACKS and not given:
                continue
            if len(given) != len(parts):
                refuse(
                    f"the script has made {len(given)} {name} in the replicas that train, and "
                    f"{len(parts)} in this one, which was started again: {REMEDY}"
                )
            for part, state in zip(parts, given, strict=True):
                _check_groups(part, state)
                part.load_state_dict({**_left_out(part.state_dict()), **state})


def _check_groups(part: Any, state: dict[str, Any]) -> None:
    if not isinstance(part, torch.optim.Optimizer):
        return
    here = [len(group["params"]) for group in part.param_groups]
    there = [len(group["params"]) for group in state["param_groups"]]
    if here != there:
        refuse(
            f"the {type(part).__name__} of the replicas that train has groups of {there} "
            f"parameters, and that of this one, which was started again, of {here}: {REMEDY}"
        )


def _is_carriable(value: Any, depth: int = 0) -> bool:
    if depth > DEPTH_MAX:
        return False
    if isinstance(value, dict):
        return all(_is_carriable(x, depth + 1) for x in value.values()) and type(value) is dict
    if type(value) in (list, tuple):
        return all(_is_carriable(x, depth + 1) for x in value)
    return isinstance(value, torch.Tensor) or type(value) in _PLAIN


def _carriable(state: dict[str, Any]) -> dict[str, Any]:
    """The entries of a state that can travel; functions and the like are alike on all replicas."""
    return {key: value for key, value in state.items() if _is_carriable(value)}


def _left_out(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not _is_carriable(value)}
