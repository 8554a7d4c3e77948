"""A state that has changed its form: what a load function makes of it is the script's to decide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ftrun.checkpoint.compare import ShapeMismatch
from ftrun.training.manager import Manager
from tests.unit.training.scripted_agent import Job, job

WIDTH = 4


class Script:
    """A model that an optimizer steps, so that it heals in place, and one more value."""

    def __init__(self, running: Job, slot: str, width: int = WIDTH, more: Any = None) -> None:
        self.model = torch.nn.Linear(width, 1)
        self.more = more
        self.manager: Manager = running.add(
            slot, load_state_dict=self._load, state_dict=self._state
        )
        self.manager.session.watch_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def _state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "more": self.more}

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.more = state["more"]

    def step(self) -> None:
        self.manager.start_quorum()
        self.manager.allreduce(torch.ones(1)).wait()
        self.manager.should_commit()


FORMS: dict[str, tuple[Any, Any]] = {
    "none": (None, torch.arange(4.0)),
    "dtype": (torch.ones(2), torch.ones(2, dtype=torch.float64)),
    "length": (torch.ones(2), torch.arange(5.0)),
    "kind": (torch.ones(2), [1, "two"]),
    "missing": ({"a": torch.ones(1)}, {"b": torch.arange(2.0)}),
}


def heal(running: Job, make: Callable[[str], Script]) -> dict[str, Script]:
    """Both begin a job; at its step 0 replica 1 heals from replica 0."""
    scripts = {slot: make(slot) for slot in "01"}

    def one(slot: str, _: Manager) -> None:
        scripts[slot].step()
        scripts[slot].manager.leave()

    running.run(one)
    return scripts


@pytest.mark.parametrize("form", FORMS)
def test_a_value_of_another_form_heals(tmp_path: Path, form: str) -> None:
    here, there = FORMS[form]
    with job(tmp_path, 2, min_replicas=1) as both:
        scripts = heal(both, lambda slot: Script(both, slot, more=there if slot == "0" else here))
    assert repr(scripts["1"].more) == repr(there)
    weights = [script.model.weight for script in scripts.values()]
    assert torch.equal(*weights)


def test_a_state_that_the_function_does_not_take_is_explained(tmp_path: Path) -> None:
    def make(slot: str) -> Script:
        return Script(both, slot, width=WIDTH + int(slot))

    with job(tmp_path, 2, min_replicas=1) as both:
        scripts = {slot: make(slot) for slot in "01"}
        errors: list[str] = []

        def one(slot: str, manager: Manager) -> None:
            if slot == "0":
                manager.start_quorum()
                return
            with pytest.raises(ShapeMismatch) as caught:
                scripts[slot].step()
            errors.append(str(caught.value))

        both.run(one)
    [text] = errors
    assert "the load function of key 'default' did not take the state of replica 0" in text
    assert "RuntimeError: Error(s) in loading state_dict for Linear: size mismatch" in text
    assert "default.model.weight: 1x5 here, 1x4 at its peers" in text
