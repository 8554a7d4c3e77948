"""Finds replicas that have diverged: their state ids are equal, but their states are not.

Theory of operation. Equal state id means equal weights and settings (S1), because every replica
applies the same averaged gradients. A script may break that: a newcomer whose learning rate comes
from a variable that did not heal steps further than the others. So workers show marks of their
steps (core/worker/marks.py), and marks of one state are compared here. They are judged once more
than half of the quorum has shown equal ones, or all have shown theirs. The group with most
witnesses (below) is right; else the largest group; of equally large ones, the one with more
replicas that never healed, then the one with the lowest slot.

A newcomer whose settings or parameters differ is replaced, and heals again, within its restart
budget. A replica that trains from the beginning is only reported, once: a script that has other
settings for each rank does so under any launcher. A different position in the script is only
reported too: the state is right then, and only the batches differ. Positions are compared by their
numbers alone, because ranks may reach one batch by different lines, as when only rank 0 shows its
progress.

Silent corruption. If the parameters of replicas were equal in one comparison and differ in a later
one, while their settings do not, the script did not cause it: memory or a device has altered bits.
The *witnesses* are the replicas that took part in the last comparison in which all were equal. A
later replica is no witness, because it may have healed from the one that was corrupted since.

| the witnesses                       | heal                | stop     | report           |
|-------------------------------------|---------------------|----------|------------------|
| two or more, and most, are equal    | the others heal     | job ends | the others named |
| else: it is unknown which is right  | both sides named    | job ends | both sides named |

The last comparison. A step after the last mark may corrupt a replica too. So each worker shows its
parameters once more at the end of its script, as they were when its loop ended (inject/zero_edit/
marking.py), and none leaves before all are judged (core/worker/parting.py). The rules are the same,
except that a job whose replicas stay unlike ends with another exit code (outcome.py). A digest that
was taken *late* may include what the script has done since, such as loading its best weights in one
rank alone: then a difference is reported, and no replica is judged by it.

Not here: the consequences for a replaced replica (losses.py) and for its node (set_aside.py), a
wrong place in the script (inject/zero_edit/loop.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from ftrun.core.failure_kinds import CORRUPTED, DIVERGED, HEAL, STOP
from ftrun.core.ids import StateId, replica_order
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.words import replicas, sentence
from ftrun.core.messages import Mark, Progress

STATES_MAX = 64
AT_END = -1
MARKS_MAX = 8
NAMED_MAX = 160
_LINES = re.compile(r" at [^,]*")
_ADVICE = "; `ftrun restart REPLICA` heals one from the others"
Shown = tuple[str, str, str]
"""The settings, parameters and position of a mark."""


@dataclass(slots=True)
class _Known:
    """The marks of one state, by slot and incarnation. ``are_unlike``: two of them differ."""

    shown: dict[tuple[str, str], Shown] = field(default_factory=dict)
    first: Shown | None = None
    are_unlike: bool = False

    def add(self, key: tuple[str, str], shown: Shown) -> None:
        """Add a mark. The cost does not depend on the number of marks."""
        self.first = self.first or shown
        if shown != self.first and not self.are_unlike:
            self.are_unlike = _numbers(shown) != _numbers(self.first)
        self.shown[key] = shown


class Divergence:
    """Compares the marks of members, and replaces or reports those that differ.

    ``_states``: by step and lineage, the marks of each incarnation; the newest states only.
    ``_reported``: incarnations that were reported already, and the step of the agreement before, or
    ``AT_END``. ``agreed``: the last state at which the parameters of all members, two at least,
    were equal; ``_witnesses``: those members. ``ends``: why the job must end; "": it need not.
    ``_at_end``: the marks that are judged now were taken at the scripts' ends.
    """

    def __init__(self, state: MembershipState) -> None:
        self._state = state
        self.agreed: StateId | None = None
        self.ends = ""
        self._witnesses: frozenset[tuple[str, str]] = frozenset()
        self._states: dict[tuple[int, str, bool], _Known] = {}
        self._at_end = False
        self._reported: set[tuple[str, str, int]] = set()

    def note(self, replica: Replica, progress: Progress) -> None:
        """A member shows its marks: compare them with the others' marks."""
        if replica.replica_id not in self._state.live:
            return
        for mark in progress.marks[-MARKS_MAX:]:
            known = self._of(mark)
            if known is None:
                continue
            key = replica.replica_id, replica.incarnation
            is_new = key not in known.shown
            known.add(key, _shown(mark))
            if known.are_unlike and self._judge(mark, known.shown):
                return
            if is_new and mark.parameters and len(known.shown) >= len(self._state.live):
                self._agree(mark, known.shown)

    def ended(self, replica: Replica, mark: Mark) -> None:
        """The script of a member has ended: judge all members once all have shown their ends."""
        state = self._state
        known = self._of(mark, at_end=True) if replica.replica_id in state.live else None
        if known is None:
            return
        key, its = (replica.replica_id, replica.incarnation), _shown_at_end(mark)
        is_judged = state.compared == mark.lineage and known.shown.get(key) == its
        known.add(key, its)
        if is_judged or len(known.shown) < len(state.live):
            return
        members = self._members(known.shown)
        if members.keys() == state.live:
            state.unlike, self._at_end = "", True
            is_replaced = known.are_unlike and self._judge_ends(mark, known.shown, members)
            state.compared, self._at_end = "" if is_replaced else mark.lineage, False

    def _judge_ends(
        self, mark: Mark, shown: dict[tuple[str, str], Shown], members: dict[str, Shown]
    ) -> bool:
        """Returns whether a replica is replaced."""
        if not any(when for _, _, when in members.values()):
            return self._judge(mark, shown)
        known = {name: x for name, x in members.items() if x[1]}
        groups = sorted(_grouped(known, slice(1, 2)).values(), key=len)
        for name in [name for names in groups[:-1] for name in names]:
            text = (
                f"Replica {name} has ended with other parameters than {replicas(groups[-1])}. It "
                f"is unknown whether the script has set them after step {mark.step}, or memory or "
                "a device has altered them, because ftrun did not see the end of its loop."
            )
            self._report(name, text, AT_END)
        return False

    def _of(self, mark: Mark, *, at_end: bool = False) -> _Known | None:
        """The marks of this state; None: it is too old."""
        key = mark.step, mark.lineage, at_end
        if key not in self._states:
            if len(self._states) >= STATES_MAX and mark.step < min(
                step for step, *_ in self._states
            ):
                return None
            self._states[key] = _Known()
            while len(self._states) > STATES_MAX:
                del self._states[min(self._states)]
        return self._states[key]

    def _members(self, shown: dict[tuple[str, str], Shown]) -> dict[str, Shown]:
        state = self._state
        return {
            name: found
            for (name, incarnation), found in shown.items()
            if name in state.live and state.replicas[name].incarnation == incarnation
        }

    def _agree(self, mark: Mark, shown: dict[tuple[str, str], Shown]) -> None:
        """Note the members as witnesses if all of them have shown equal parameters."""
        members, live = self._members(shown), self._state.live
        digests = {parameters for _, parameters, _ in members.values()}
        is_whole = members.keys() == live and len(live) > 1
        if mark.step and is_whole and len(digests) == 1:
            self.agreed = StateId(mark.step, mark.lineage)
            self._witnesses = frozenset((x, self._state.replicas[x].incarnation) for x in live)

    def _is_witness(self, name: str) -> bool:
        return (name, self._state.replicas[name].incarnation) in self._witnesses

    def _judge(self, mark: Mark, shown: dict[tuple[str, str], Shown]) -> bool:
        """Returns whether a replica is replaced."""
        state = self._state
        members = self._members(shown)
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
        odd = [name for name in wrong if self._is_corrupted(name, members[name], theirs)]
        if odd:
            return self._corrupted(mark.step, odd, right)
        newcomers = [
            name
            for name in wrong
            if state.replicas[name].has_healed and members[name][:2] != theirs[:2]
        ]
        for name in wrong:
            cause = _cause(mark.step, members[name], theirs, right)
            if name in newcomers:
                state.replace([name], f"{cause}; it is replaced, and heals again")
            else:
                self._report(name, f"Replica {name} {cause}.")
        return bool(newcomers)

    def _is_corrupted(self, name: str, mine: Shown, theirs: Shown) -> bool:
        """Whether its parameters alone differ, and did not in the last full comparison."""
        return self._is_witness(name) and mine[0] == theirs[0] and mine[1] != theirs[1]

    def _corrupted(self, step: int, odd: list[str], right: list[str]) -> bool:
        """Some have other parameters than ``right``. Returns whether a replica is replaced."""
        state, agreed = self._state, self.agreed
        assert agreed is not None, "witnesses have agreed"
        is_known = self._has_most_witnesses(right)
        since = f"since a step after {agreed.step} and up to {step}"
        action = state.spec.on_corruption
        if not is_known:
            cause = (
                f"{replicas(odd)} and {replicas(right)} hold different parameters {since}, and it "
                "is unknown which are right: memory or a device has altered some (silent "
                "corruption)"
            )
        else:
            cause = (
                f"{CORRUPTED} {since}: its parameters differ from those of {replicas(right)}, "
                "because memory or a device of its node has altered them (silent corruption)"
            )
        if action == STOP:
            who = f"{replicas(odd)} " if is_known else ""
            self.ends = f"{who}{cause}; --on-corruption stop"
        elif action == HEAL and is_known:
            state.replace(odd, f"{cause}; it heals from them")
            return True
        else:
            after = "The job ends like this" if self._at_end else f"Training continues{_ADVICE}"
            for name in odd if is_known else odd[:1]:
                text = f"replica {name} {cause}" if is_known else cause
                self._report(name, sentence(f"{text}. {after}."), agreed.step)
            if self._at_end:
                state.unlike = f"{replicas(odd)} {cause}" if is_known else cause
        return False

    def _has_most_witnesses(self, names: list[str]) -> bool:
        mine, all_ = (sum(map(self._is_witness, x)) for x in (names, self._state.live))
        return mine > 1 and 2 * mine > all_  # a single witness may itself be the corrupted one

    def _weight(self, names: list[str]) -> tuple[bool, int, int]:
        """Whether the group has most witnesses; its size; how many of its members never healed."""
        most = self._has_most_witnesses(names)
        return most, len(names), sum(not self._state.replicas[name].has_healed for name in names)

    def _report(self, name: str, text: str, agreed: int = 0) -> None:
        """Report once, and once more each time that all have agreed since."""
        known = name, self._state.replicas[name].incarnation, agreed
        if known in self._reported:
            return
        living = {(r.replica_id, r.incarnation) for r in self._state.replicas.values()}
        self._reported = {x for x in self._reported if x[:2] in living} | {known}
        self._state.outbox.notice("diverged", [name], text)


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
            f"{DIVERGED} by step {step}: its parameters differ from those of {who}; the script "
            "changes them by its rank, or by values that do not heal"
        )
    return f"was at {mine[2]} at step {step}, unlike {who} at {theirs[2]}: its batches differ"


def _shown(mark: Mark) -> Shown:
    return mark.settings, mark.parameters, mark.position


def _shown_at_end(mark: Mark) -> Shown:
    return "", mark.parameters, "late" if mark.is_late else ""


def _numbers(shown: Shown) -> Shown:
    """The same, with only the numbers of the position: without the lines at which its loops are."""
    settings, parameters, position = shown
    return settings, parameters, _LINES.sub("", position)


def _grouped(members: dict[str, Shown], parts: slice) -> dict[tuple[str, ...], list[str]]:
    """The replicas in the order of the slots, grouped by these parts of their marks."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(members, key=replica_order):
        groups.setdefault(tuple(_numbers(members[name])[parts]), []).append(name)
    return groups


def _first_difference(mine: str, theirs: str) -> tuple[str, str]:
    """The first parts of two texts that differ; parts are separated by commas."""
    own, right = mine.split(", "), theirs.split(", ")
    index = next((i for i, (a, b) in enumerate(zip(own, right, strict=False)) if a != b), 0)
    if index == 0 and own[:1] == right[:1]:
        return f"{len(own)} settings", str(len(right))
    return own[index][:NAMED_MAX], right[index][:NAMED_MAX]
