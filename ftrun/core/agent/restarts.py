"""Whether and when a failed replica group is started again: budget, backoff, verdicts.

The first failure restarts at once. The script's own failure before its first step restarts a little
later, because all replicas may fail alike (core/lighthouse/machine.py). While no new step is
committed, each further failure waits longer. ``refill_steps`` new steps refund one restart of the
budget. The script's own error twice in a row at the same position will recur at every try: it ends
the job at once. The same signature ``strikes_max`` times without a new step is a crash loop (P5).
``as_torchrun``: restarts are counted as torchrun counts them, and there are no other verdicts.

Not here: starting (supervisor.py), what makes two failures the same (failures.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from ftrun.core.agent.failures import Failure


@dataclass(frozen=True, slots=True)
class RestartRules:
    """The limits of one replica group.

    ``as_torchrun``: ``max_restarts`` in all, at once, without refunds or other verdicts.
    ``repeats``: but the same exception twice at one step ends the job, because a replacement
    repeats that step from memory. ``spent``: used before this agent started.
    """

    max_restarts: int
    refill_steps: int = 10
    backoff_first_s: float = 1.0
    backoff_max_s: float = 60.0
    strikes_max: int = 3
    as_torchrun: bool = False
    repeats: bool = False
    spent: int = 0


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the group again after ``delay_s``, by the ``number``-th restart of the budget."""

    delay_s: float
    number: int


@dataclass(frozen=True, slots=True)
class WillNotHelp:
    """The script's own error has recurred at ``step``; None: before the first step."""

    step: int | None


@dataclass(frozen=True, slots=True)
class CrashLoop:
    """The group has failed ``strikes`` times in the same way without a new step."""

    strikes: int


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """No restart is left. ``first``: the first failure since the last new step."""

    first: Failure


@dataclass(frozen=True, slots=True)
class NotWanted:
    """``--on-corruption stop``: no restart is wanted."""


Verdict: TypeAlias = Restart | WillNotHelp | CrashLoop | BudgetSpent | NotWanted


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an error with this ``signature``. ``heals``: ``step`` is its peers'."""

    signature: str
    step: int | None
    heals: bool

    def is_again(self, last: Place) -> bool:
        """Whether it equals ``last``: at the same step, or again before its own first step."""
        is_at_same = self.step == last.step or (self.heals and last.heals)
        return self.signature == last.signature and is_at_same


@dataclass
class RestartBudget:
    """One group's account.

    ``spent``: 0 <= spent <= max_restarts. ``row``: failures since the last new step. ``mark``: the
    highest step ever reached. ``step``: the step that the running incarnation has reached; None:
    not known. ``baseline``: the step from which the running incarnation's own commits count; None
    until it is known, because a step reached by healing is not its own. ``last``: the place of the
    failure before, if that is certain.
    """

    rules: RestartRules
    spent: int = 0
    row: int = 0
    mark: int = 0
    step: int | None = None
    baseline: int | None = None
    refill: int = 0
    first: Failure | None = None
    last: Place | None = None
    strikes: Counter[str] = field(default_factory=Counter)

    @property
    def left(self) -> int:
        return max(0, self.rules.max_restarts - self.spent)

    def started(self) -> None:
        self.baseline = self.step = None

    def healed(self, step: int) -> None:
        """The group has its peers' state of ``step``; the step of the heal does not count."""
        self.baseline = step + 1

    def progressed(self, step: int) -> None:
        self.step = step
        if self.baseline is None:
            self.baseline = step
        gained = step - max(self.mark, self.baseline)
        self.mark = max(self.mark, step)
        if gained <= 0 or self.rules.as_torchrun:
            return
        self.row = 0
        self.first = None
        self.strikes.clear()
        refunds, self.refill = divmod(self.refill + gained, self.rules.refill_steps)
        self.spent = max(0, self.spent - refunds)

    def failed(
        self, failure: Failure, *, at_start: bool = False, has_position: bool = True
    ) -> Verdict:
        """Judge a failure. A Restart is taken from the budget at once.

        ``at_start``: the script itself has failed, before any step of this slot. ``has_position``:
        the step at which it failed is certain, or it has made none.
        """
        self.row += 1
        if self.row == 1:
            self.first = failure
        verdict = self._verdict_by_cause(failure, has_position)
        if verdict is not None:
            return verdict
        if self.spent >= self.rules.max_restarts:
            return BudgetSpent(self.first or failure)
        self.spent += 1
        return Restart(self._backoff_s(at_start), self.spent)

    def _verdict_by_cause(self, failure: Failure, has_position: bool) -> Verdict | None:
        """The verdict that follows from the failure's cause alone, whatever the budget."""
        signature = failure.signature()
        step = self.step if failure.step is None else failure.step
        is_judged = not self.rules.as_torchrun or (self.rules.repeats and step is not None)
        if signature is None or not is_judged:
            self.last = None
            return None
        last, self.last = self.last, None
        if has_position:
            self.last = Place(signature, step, failure.heals)
        is_again = last is not None and self.last is not None and self.last.is_again(last)
        if is_again and failure.will_recur(at_start=step is None):
            return WillNotHelp(step if last is not None and step == last.step else None)
        if self.rules.as_torchrun:
            return None
        self.strikes[signature] += 1
        if self.strikes[signature] >= self.rules.strikes_max:
            return CrashLoop(self.strikes[signature])
        return None

    def _backoff_s(self, at_start: bool) -> float:
        if self.rules.as_torchrun:
            return 0.0
        if self.row <= 1:
            return self.rules.backoff_first_s if at_start else 0.0
        doubled = self.rules.backoff_first_s * 2.0 ** min(self.row - 2, 32)
        return min(doubled, self.rules.backoff_max_s)
