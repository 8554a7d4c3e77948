"""Counts how often each fault struck, and in which phases: proof that faults are really drawn.

Not here: what the faults do (fault_kinds.py), the running of many schedules (run.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ftrun.core.lighthouse.phases import Phase

PHASES = ("down", *(phase.value for phase in Phase))


@dataclass
class Coverage:
    """``faults``: by kind and the lighthouse's phase. ``deaths``: by actor and next instruction.

    ``phases``: schedules in which the lighthouse was in it. ``fates``: worker events by the phase
    of the main thread and the fate of the step.
    """

    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    deaths: Counter[tuple[str, str]] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    fates: Counter[tuple[str, str]] = field(default_factory=Counter)

    def struck(self, kind: str, phase: str) -> None:
        """Count a fault of this kind."""
        self.faults[kind, phase] += 1

    def died(self, actor: str, instruction: str) -> None:
        """Count an actor's death right before this instruction."""
        self.deaths[actor, instruction] += 1

    def add(self, other: Coverage) -> None:
        """Add another schedule's counts."""
        self.faults += other.faults
        self.deaths += other.deaths
        self.phases += Counter(set(other.phases))
        self.fates += other.fates

    def tables(self, kinds: Iterable[str]) -> list[str]:
        """As Markdown: the strikes of each fault, the places of crashes, the phases visited."""
        return [
            *_table(("fault", "all", *PHASES), (self._row(kind) for kind in kinds)),
            "",
            *_table(("died", "before", "times"), ((*x, n) for x, n in sorted(self.deaths.items()))),
            "",
            *_table(
                ("phase of the lighthouse", "schedules"), ((p, self.phases[p]) for p in PHASES[1:])
            ),
            "",
            *_table(
                ("main thread", "fate of the step", "events"),
                ((*x, n) for x, n in sorted(self.fates.items())),
            ),
        ]

    def missed(self, kinds: Iterable[str]) -> list[str]:
        """The kinds that have never struck."""
        hit = {kind for kind, _ in self.faults}
        return [kind for kind in kinds if kind not in hit]

    def _row(self, kind: str) -> Sequence[object]:
        counts = [self.faults[kind, phase] for phase in PHASES]
        return (kind, sum(counts), *counts)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return lines
