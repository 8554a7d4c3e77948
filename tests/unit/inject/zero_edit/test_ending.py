"""What heals to a replica that dies at the end of the script."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftrun.inject.zero_edit import ending as module
from ftrun.inject.zero_edit.ending import OF_COMMIT, Ending
from ftrun.inject.zero_edit.states import BETWEEN


class Part:
    """Objects of a script: one weight."""

    def __init__(self) -> None:
        self.weight = torch.zeros(1)
        self.has_ended = self.is_put_off = False
        self.applied: list[float] = []
        self.rate = 1.0
        self.caught_up = 0
        self.parameters = [torch.nn.Parameter(torch.zeros(1))]

    def catches_up(self) -> bool:
        self.caught_up += 1
        return True

    def trained(self) -> list[tuple[torch.nn.Parameter, bool]]:
        return [(x, x.requires_grad) for x in self.parameters]

    def versions_kept(self) -> AbstractContextManager[None]:
        return nullcontext()

    def state(self) -> dict[str, Any]:
        is_trained = self.parameters[0].requires_grad
        return {"weight": self.weight, "rate": self.rate, "is_trained": is_trained}

    def load(self, state: dict[str, Any]) -> None:
        self.apply(state)

    def apply(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            self.weight.copy_(state["weight"])
        self.parameters[0].requires_grad_(state.get("is_trained", True))
        self.rate = state.get("rate", 1.0)
        self.applied.append(self.weight.item())


def _load(_state: dict[str, Any], *, is_late: bool = False, is_own: bool = False) -> None:
    """Of tensors that nobody has."""


def made() -> tuple[Ending, Part]:
    part, tensors = Part(), SimpleNamespace(state=dict, load=_load, lacking=[])
    return ending_of(part, tensors), part


def ending_of(part: Part, tensors: Any, step: int = 1) -> Ending:
    session = SimpleNamespace(keep_state=lambda: None, catch_up=lambda joins: part.catches_up())
    script: Any = SimpleNamespace(
        own=SimpleNamespace(find=lambda until: None),
        counters=SimpleNamespace(take_within=lambda: None, has_all=False),
        is_in_place=False,
        carried=part,
        tensors=tensors,
        manager=lambda: SimpleNamespace(current_step=lambda: step, session=session),
        marking=SimpleNamespace(loop_ended=lambda: None),
        mates=SimpleNamespace(any=lambda flag: flag),
        here=SimpleNamespace(replica_id="1"),
        course=SimpleNamespace(now=BETWEEN),
        inside=SimpleNamespace(joins_others=lambda: False),
    )
    return Ending(script)


def change(part: Part, value: float) -> None:
    part.weight.fill_(value)


def test_peers_heal_to_the_last_commit_although_the_script_has_loaded_another_state() -> None:
    ending, part = made()
    change(part, 1.0)
    assert ending.loop_ended(1, has_lost=False)
    change(part, 7.0)  # its best weights
    assert ending.state()["weight"].item() == 1.0  # who has lost the last step needs it at once
    ending.is_offered = False
    assert ending.state()["weight"].item() == 7.0
    ending.finish()
    assert ending.state()["weight"].item() == 1.0 and ending.state()[OF_COMMIT]


def test_who_has_followed_gives_on_what_is_beside_the_objects() -> None:
    """Seen: an average in a variable was lost when all others died after one had followed them."""
    ending, part = made()
    ending.load({"weight": torch.ones(1)})
    ending.load_tensors({"units": {"shadow": torch.ones(2)}})
    ending.replay(1, is_over=True)
    ending.step_again()
    change(part, 9.0)
    ending.finish()
    assert ending.tensors()["units"]["shadow"].tolist() == [1.0, 1.0]
    assert ending.state()["weight"].item() == part.weight.item() == 1.0
    assert OF_COMMIT not in ending.state()


def test_a_commit_after_the_copy_makes_it_void() -> None:
    ending, part = made()
    ending.loop_ended(1, has_lost=False)
    ending.step_ended()
    change(part, 2.0)
    ending.finish()
    assert ending.state()["weight"].item() == 2.0 and OF_COMMIT not in ending.state()


def test_a_large_state_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COPY_BYTES_MAX", 3)
    ending, part = made()
    ending.loop_ended(1, has_lost=False)
    change(part, 2.0)
    ending.finish()
    assert ending.state()["weight"].item() == 2.0


def test_who_has_lost_the_last_step_takes_it_once_before_what_follows_the_loop() -> None:
    ending, part = made()
    assert ending.loop_ended(1, has_lost=True) and part.caught_up == 1
    assert ending.loop_ended(9, has_lost=True) and part.caught_up == 1, "a loop around it ends too"


def test_ends_of_short_loops_are_skipped_once_there_were_many_copies(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The loop around them ends with a copy, but what it has is perhaps no result of a step."""
    monkeypatch.setattr(module, "STEPS_AHEAD", 2 * module.STEPS_A_COPY)
    ending, part = made()
    for short in range(45):
        is_kept = ending.loop_ended(1, has_lost=short > 40)
        assert is_kept == (short in (0, 1, 16, 32)), short
        assert not is_kept or ending.state()[OF_COMMIT]
        ending.step_ended()
    assert (
        part.caught_up == 0 and "no copy at the end of each loop so short" in capfd.readouterr()[1]
    )
    assert not ending.loop_ended(1, has_lost=True)
    change(part, 3.0)  # after the short loop
    assert ending.loop_ended(module.STEPS_A_COPY, has_lost=True) and part.caught_up == 1
    assert ending.state()["weight"].item() == 3.0 and OF_COMMIT not in ending.state()
    change(part, 4.0)
    ending.finish()
    assert ending.state()["weight"].item() == 4.0


def test_what_a_replay_changes_is_as_at_the_commit_and_the_end_stays() -> None:
    ending, part = made()
    ending.load({"weight": torch.ones(1), OF_COMMIT: True})
    ending.load_tensors({})
    ending.replay(1, is_over=True)
    assert ending.stands_still
    change(part, 5.0)  # an average, once more
    ending.step_again()
    assert ending.stands_still  # a scheduler that steps after the optimizer
    assert not ending.goes_on()
    assert part.weight.item() == 1.0 and not ending.stands_still
    change(part, 9.0)  # its best weights
    ending.finish()
    assert part.weight.item() == 9.0
    assert ending.state()["weight"].item() == 1.0


def test_a_state_of_the_end_is_taken_once_more_at_the_end() -> None:
    ending, part = made()
    ending.load({"weight": torch.ones(1)})
    ending.load_tensors({})
    ending.replay(0, is_over=True)
    change(part, 5.0)
    ending.step_again()
    assert not ending.goes_on()
    assert part.weight.item() == 1.0 and ending.stands_still
    change(part, 9.0)
    ending.finish()
    assert part.weight.item() == 1.0


def test_a_step_that_the_peers_have_taken_is_gone_through_alone() -> None:
    ending, part = made()
    ending.load({"weight": torch.ones(1), "is_trained": False})  # frozen in a later step
    ending.replay(2, is_over=False)
    for _ in range(2):
        assert part.parameters[0].requires_grad
        assert ending.goes_again and not ending.goes_on() and ending.stands_still
        change(part, 9.0)  # such as buffers, by the pass itself
        ending.step_again()
        assert ending.is_behind and ending.stands_still, "a scheduler that steps after it"
    assert part.weight.item() == 1.0
    assert not ending.goes_again and ending.goes_on() and not ending.stands_still
    assert not ending.is_behind and not part.parameters[0].requires_grad


def test_what_a_newcomer_changes_between_its_draw_and_its_pass_is_in_its_peers_state() -> None:
    ending, part = made()
    ending.load({"weight": torch.ones(1)})
    ending.joined_at_draw()
    change(part, 2.0)
    ending.pass_begins()
    assert part.weight.item() == 1.0
    change(part, 2.0)
    ending.pass_begins()
    assert part.weight.item() == 2.0, "a later pass"


def test_values_without_a_version_are_as_at_the_pass_too() -> None:
    ending, part = made()
    part.rate = 0.1  # as of a scheduler
    ending.joined_at_draw()
    part.rate, applied = 0.05, len(part.applied)
    ending.pass_begins()
    assert part.rate == 0.1 and len(part.applied) == applied + 1
    ending.joined_at_draw()
    part.weight.data.fill_(5.0)
    ending.pass_begins()
    assert part.weight.item() == 0.0


def test_a_call_that_meets_the_peers_ends_the_way_to_them() -> None:
    """They have begun their step in that call: what follows the last step has healed with it."""
    ending, part = made()
    ending.load({"weight": torch.ones(1)})
    ending.replay(1, is_over=False)
    ending.meets_peers()
    assert ending.goes_again and ending.is_behind, "a call within the step"
    ending.step_again()
    change(part, 9.0)  # an average that follows the step
    ending.meets_peers()
    assert part.weight.item() == 1.0 and not (ending.is_behind or ending.stands_still)


def test_before_the_first_commit_there_is_no_state_to_give() -> None:
    part, tensors = Part(), SimpleNamespace(state=lambda: {"units": {}}, load=_load)
    part.first_state = lambda: {"life": "a"}  # type: ignore[attr-defined]
    ending = ending_of(part, tensors, step=0)
    assert (ending.state(), ending.tensors()) == ({"life": "a"}, {})
