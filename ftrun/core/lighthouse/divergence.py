"""Finds replicas that have grown apart from the others, although they hold one state by name.

Theory of operation. Equal state id means equal weights and settings (S1), because every replica
applies the same averaged gradients. A script may break that: a newcomer whose learning rate comes
from a variable that did not heal steps further than the others. So workers show marks of their
steps (core/worker/marks.py), and marks of one state are compared here. They are judged once more
than half of the quorum has shown equal ones, or all have shown theirs: the ones of most replicas
count; of equally many, those of replicas that never healed, then of the lowest slot.

A newcomer whose settings or parameters differ is replaced, and heals again, within its restart
budget. A replica that trains from the beginning is only reported, once: a script that gives each
rank settings of its own trains so under any launcher. Another position in the script is reported
too, because the state is right then, and only the batches are others.

Not here: what follows for a replica that is replaced (losses.py), a wrong place in the script
(inject/zero_edit/loop.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ftrun.core.failure_kinds import DIVERGED
from ftrun.core.ids import replica_order
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.words import replicas
from ftrun.core.messages import Mark, Progress

STATES_MAX = 64
MARKS_MAX = 8
NAMED_MAX = 160
Shown = tuple[str, str, str]
"""Settings, parameters and position of a mark."""


@dataclass(slots=True)
class _Known:
    """What was shown of one state, by slot and incarnation. ``are_unlike``: two of them differ."""

    shown: dict[tuple[str, str], Shown] = field(default_factory=dict)
    first: Shown | None = None
    are_unlike: bool = False

    def add(self, key: tuple[str, str], shown: Shown) -> None:
        """One more, which costs the same however many there are."""
        self.first = self.first or shown
        self.are_unlike = self.are_unlike or shown != self.first
        self.shown[key] = shown


class Divergence:
    """``_states``: by step and lineage, what each incarnation has shown; the newest states only.

    ``_reported``: incarnations that were reported already.
    """

    def __init__(self, state: MembershipState) -> None:
        self._state = state
        self._states: dict[tuple[int, str], _Known] = {}
        self._reported: set[tuple[str, str]] = set()

    def note(self, replica: Replica, progress: Progress) -> None:
        """A member shows its marks: compare them with those of the others."""
        if replica.replica_id not in self._state.live:
            return
        for mark in progress.marks[-MARKS_MAX:]:
            known = self._of(mark)
            if known is None:
                continue
            known.add((replica.replica_id, replica.incarnation), _shown(mark))
            if known.are_unlike and self._judge(mark, known.shown):
                return

    def _of(self, mark: Mark) -> _Known | None:
        """What was shown of this state; None: it is too old."""
        key = mark.step, mark.lineage
        if key not in self._states:
            if len(self._states) >= STATES_MAX and mark.step < min(
                step for step, _ in self._states
            ):
                return None
            self._states[key] = _Known()
            while len(self._states) > STATES_MAX:
                del self._states[min(self._states)]
        return self._states[key]

    def _judge(self, mark: Mark, shown: dict[tuple[str, str], Shown]) -> bool:
        """Whether somebody is replaced."""
        state = self._state
        members = {
            name: found
            for (name, incarnation), found in shown.items()
            if name in state.live and state.replicas[name].incarnation == incarnation
        }
        groups = _grouped(members, slice(0, 2))
        if len(groups) < 2:
            groups = _grouped(members, slice(0, 3))
        if len(groups) < 2:
            return False
        right = max(groups.values(), key=self._weight)
        if 2 * len(right) <= len(state.live) and len(members) < len(state.live):
            return False  # others may still show theirs
        wrong = [name for names in groups.values() if names is not right for name in names]
        theirs = members[right[0]]
        newcomers = [
            name
            for name in wrong
            if state.replicas[name].has_healed and members[name][:2] != theirs[:2]
        ]
        for name in wrong:
            cause = _cause(mark.step, members[name], theirs, right)
            if name in newcomers:
                state.replace([name], f"{cause}; it is replaced, and heals anew")
            else:
                self._report(name, cause)
        return bool(newcomers)

    def _weight(self, names: list[str]) -> tuple[int, int]:
        """Of how many replicas a group is, and of how many that never healed."""
        return len(names), sum(not self._state.replicas[name].has_healed for name in names)

    def _report(self, name: str, cause: str) -> None:
        known = name, self._state.replicas[name].incarnation
        if known in self._reported:
            return
        living = {(r.replica_id, r.incarnation) for r in self._state.replicas.values()}
        self._reported = (self._reported & living) | {known}
        self._state.outbox.notice("diverged", [name], f"Replica {name} {cause}.")


def _cause(step: int, mine: Shown, theirs: Shown, others: Collection[str]) -> str:
    """Why a replica differs, as the end of a sentence that begins with it."""
    who = replicas(others)
    if mine[0] != theirs[0]:
        own, right = _first_difference(mine[0], theirs[0])
        return (
            f"{DIVERGED} at step {step}: its optimizer has {own}, that of {who} {right}; the "
            "script takes it from its rank, or from a place that does not heal"
        )
    if mine[1] != theirs[1]:
        return (
            f"{DIVERGED} by step {step}: its parameters are not those of {who}; the script "
            "changes them by its rank, or by values that do not heal"
        )
    return f"was at {mine[2]} at step {step}, unlike {who} at {theirs[2]}: its batches differ"


def _shown(mark: Mark) -> Shown:
    return mark.settings, mark.parameters, mark.position


def _grouped(members: dict[str, Shown], parts: slice) -> dict[tuple[str, ...], list[str]]:
    """The replicas in the order of the slots, by these parts of what they have shown."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(members, key=replica_order):
        groups.setdefault(tuple(members[name][parts]), []).append(name)
    return groups


def _first_difference(mine: str, theirs: str) -> tuple[str, str]:
    """The first parts of two texts that differ; parts are separated by commas."""
    own, right = mine.split(", "), theirs.split(", ")
    index = next((i for i, (a, b) in enumerate(zip(own, right, strict=False)) if a != b), 0)
    if index == 0 and own[:1] == right[:1]:
        return f"{len(own)} settings", str(len(right))
    return own[index][:NAMED_MAX], right[index][:NAMED_MAX]
