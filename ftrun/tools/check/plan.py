"""The times of a trial's deaths: in training, while a file is written, in an evaluation. Pure.

An undisturbed run has shown at which steps the script does each. Not here: the runs (command.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STARTING, TRAINING, WRITING, EVALUATION = "starting", "training", "writing", "evaluation"
WORDS = {
    STARTING: "at its start, before the first step",
    TRAINING: "in training",
    WRITING: "while it wrote a file",
    EVALUATION: "in an evaluation",
}
APART = 3
"""Steps between two deaths: the first one's newcomer has joined and trained by then."""
LOSS_AT, LOSS_AFTER = 8, 2
"""A node is lost after LOSS_AT steps at the earliest, because each step takes a second until then,
and LOSS_AFTER steps after the last copy of its states, so that there are steps to lose."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One death: replica ``victim`` dies in a ``phase`` after ``step`` committed steps."""

    victim: int
    phase: str
    step: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The deaths of the runs to come.

    Attributes:
        training: deaths in training and while a file is written; ``evaluations``: in evaluations,
            in a run of their own, because a newcomer needs steps between two deaths. The peers wait
            for the newcomer, so that each run must end like the undisturbed one.
        untried: phases that have not occurred, in words.
        loss: the steps after which a node may be lost, without the first one; empty: not tried.
    """

    training: tuple[Kill, ...]
    evaluations: tuple[Kill, ...]
    untried: tuple[str, ...]
    loss: range = range(0)

    @property
    def writes(self) -> bool:
        """Whether a replica dies while it writes."""
        return any(kill.phase == WRITING for kill in self.training)


def plan_of(
    reports: Mapping[int, Mapping[str, Any]],
    *,
    once: bool = False,
    is_group: bool = False,
    loses: bool = False,
) -> Plan:
    """Plan the deaths by what each replica did in the undisturbed run. ``once``: only one death.

    ``is_group``: these are the workers of one replica, whose state is in memory: after any death
    the run must end like the undisturbed one. ``loses``: one of their nodes is lost, too.
    """
    steps = min(report["step"] for report in reports.values())
    last, first = max(reports), min(reports)
    until = steps - 2  # a newcomer has a step to train in
    kills, untried = list[Kill](), list[str]()
    start = max(1, steps // 4)
    if start <= until:
        kills.append(Kill(last, TRAINING, start))
    if once:
        return Plan(
            tuple(kills), (), ("of replica 0, in an evaluation or while a file is written",)
        )
    saves = [x for x in reports[first]["saves"] if start + APART <= x <= until]
    # Who joins within a turn computes what came before once more, so a whole turn has to follow.
    late = min([3 * steps // 4, *(x - 1 for x in reports[first]["turns"][-2:-1])])
    late = max(start + APART, late)
    if saves:
        kills.append(Kill(first, WRITING, saves[0]))
    else:
        untried.append(f"while a file is written: none was between the steps {start} and {until}")
    if not saves or late >= saves[0] + APART:
        kills += [Kill(first, TRAINING, late)] if late <= until else []
    taken = [kill.step for kill in kills] if is_group else []
    evaluated = [x for x in reports[last]["evaluations"] if 1 <= x <= until]
    free = _apart([x for x in evaluated if all(abs(x - step) >= APART for step in taken)])
    if not free:
        untried.append(f"in an evaluation: there was none between the steps 1 and {until}")
    victims = (last, first)
    evaluations = [Kill(who, EVALUATION, x) for who, x in zip(victims, free, strict=False)]
    if is_group:
        kills = [Kill(last, STARTING, 0), *kills, *evaluations]
        loss = range(min(start, LOSS_AT), until + 1) if loses else range(0)
        return Plan(tuple(kills), (), tuple(untried), loss)
    return Plan(tuple(kills), tuple(evaluations), tuple(untried))


def _apart(steps: Sequence[int]) -> list[int]:
    found: list[int] = []
    for step in steps:
        if not found or step >= found[-1] + APART:
            found.append(step)
    return found
