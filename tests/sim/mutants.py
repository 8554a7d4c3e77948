"""Planted bugs: the simulation is worth what it finds.

Each replaces one attribute of a core by a broken one. ``planted`` puts one in for a while.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ftrun.core import forming, ids, takeover
from ftrun.core import messages as m
from ftrun.core.choice import Choice
from ftrun.core.fence import Fence
from ftrun.core.numbering import Numbering
from ftrun.core.operations import OperationLedger
from ftrun.core.stage import Stage
from ftrun.core.step import Fate, StepMachine
from ftrun.core.switching import Switching


@dataclass(frozen=True)
class Mutant:
    """``owner.attribute`` becomes ``broken``; ``breaks``: what of INVARIANTS.md is at stake."""

    owner: Any
    attribute: str
    broken: Any
    breaks: str


@contextmanager
def planted(name: str) -> Iterator[None]:
    """With this bug inside; "" is none."""
    if not name:
        yield
        return
    mutant = MUTANTS[name]
    sound = mutant.owner.__dict__[mutant.attribute]
    setattr(mutant.owner, mutant.attribute, mutant.broken)
    try:
        yield
    finally:
        setattr(mutant.owner, mutant.attribute, sound)


# ---------------------------------------------------------------- the worker's bugs

_at_promise = StepMachine._at_promise


def _counts_any_attempt(self: StepMachine, attempt: ids.Attempt) -> bool:
    return self.may_issue


def _forgets_its_promise(self: StepMachine, pending: Any) -> bool:
    return pending.confirmed and _at_promise(self, pending)


def _counts_everybody(self: StepMachine) -> tuple[int, ...]:
    return tuple(range(len(self.in_force.members))) if self.in_force is not None else ()


def _accepts_late_interrupts(self: StepMachine, event: m.Interrupt) -> None:
    self._abort(event.attempt)
    self._on_ask_report(m.AskReport())


def _promises_anything(self: StepMachine, step: int, quorum: m.Quorum) -> bool:
    return True


def _ignores_isolation(self: StepMachine, event: m.Isolation) -> None:
    pass


def _commits_without_the_vote(self: StepMachine, event: Any) -> None:
    if self.in_step:
        self._end_step(self.fate is not Fate.VOID and not self.healing, False, event.reason)


def _repairs_half(self: OperationLedger) -> None:
    pass


# ---------------------------------------------------------------- the lighthouse's bugs

_stage_journal = Stage.journal
_rejoin = forming.Forming.rejoin


def _ignores_lineage(standings: Any) -> Choice | None:
    known = {name: state for name, state in standings.items() if state is not None}
    if not known:
        return None
    top = max(state.step for state in known.values())
    donors = [name for name in sorted(standings) if name in known and known[name].step == top]
    newcomers = [name for name in sorted(standings) if name not in donors]
    return Choice(known[donors[0]], tuple(donors), tuple(newcomers))


def _prefers_the_majority(standings: Any) -> Choice | None:
    known = Counter(state for state in standings.values() if state is not None)
    if not known:
        return None
    state = max(known, key=lambda s: (known[s], s.step, s.lineage))
    donors = tuple(name for name in sorted(standings) if standings[name] == state)
    newcomers = tuple(name for name in sorted(standings) if standings[name] != state)
    return Choice(state, donors, newcomers)


def _forgets_results_that_stand(reports: Any) -> ids.StateId | None:
    states = {report.state for report in reports}
    return states.pop() if len(states) == 1 else None


def _journals_no_epoch(self: Stage) -> None:
    epoch, self.numbering.epoch = self.numbering.epoch, 0
    _stage_journal(self)
    self.numbering.epoch = epoch


def _journals_nothing(self: Stage) -> None:
    pass


def _numbers_by_attempt_only(self: Numbering, members: Any) -> ids.Attempt:
    self.highest = replace(self.highest, number=self.highest.number + 1)
    return self.highest


def _takes_newcomers_for_survivors(self: forming.Forming) -> bool:
    stage = self._stage
    if stage.live and stage.waiting.done and stage.roster.ready:
        return self._issue(set(stage.live) | stage.roster.ready)
    return _rejoin(self)


def _needs_no_fence(self: Fence, isolation_limit_s: float) -> float:
    return -math.inf


def _waits_for_no_grace(self: takeover.Takeover) -> bool:
    return True


def _switches_without_promises(self: Switching) -> bool:
    return self._hindered() or (self.plan is not None and self._confirm(self.plan) is None)


MUTANTS: dict[str, Mutant] = {
    "no attempt number": Mutant(StepMachine, "_counts", _counts_any_attempt, "C3"),
    "promise not kept": Mutant(StepMachine, "_at_promise", _forgets_its_promise, "Q5"),
    "promises what it has begun": Mutant(StepMachine, "_can_promise", _promises_anything, "Q5"),
    "divisor counts healing ranks": Mutant(StepMachine, "contributors", _counts_everybody, "C4"),
    "late Interrupt accepted": Mutant(StepMachine, "_on_interrupt", _accepts_late_interrupts, "Q2"),
    "isolation ignored": Mutant(StepMachine, "_on_isolation", _ignores_isolation, "Q3"),
    "vote ignored": Mutant(StepMachine, "_on_decided", _commits_without_the_vote, "C1"),
    "repair keeps old results": Mutant(OperationLedger, "start_again", _repairs_half, "C3"),
    "lineage ignored": Mutant(forming, "choose", _ignores_lineage, "S2"),
    "majority before step": Mutant(forming, "choose", _prefers_the_majority, "C6"),
    "results that stand forgotten": Mutant(forming, "standing", _forgets_results_that_stand, "C6"),
    "epoch not persisted": Mutant(Stage, "journal", _journals_no_epoch, "Q1"),
    "journal not written": Mutant(Stage, "journal", _journals_nothing, "Q1"),
    "quorum id used twice": Mutant(Numbering, "issue", _numbers_by_attempt_only, "Q1"),
    "newcomers as survivors": Mutant(
        forming.Forming, "rejoin", _takes_newcomers_for_survivors, "Q4"
    ),
    "no fence": Mutant(Fence, "opens_at", _needs_no_fence, "Q3"),
    "no takeover grace": Mutant(takeover.Takeover, "is_complete", _waits_for_no_grace, "Q6"),
    "switch without promises": Mutant(Switching, "propose", _switches_without_promises, "Q5"),
}
