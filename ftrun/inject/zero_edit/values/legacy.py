"""The values that a worker leaves to its successor, with the steps at which they changed.

A value that one rank alone keeps (``if rank == 0: best = …``) is on no other replica. So at each
noted step (sparing.py) a worker writes the values that have changed into a file of its slot on this
node, where they outlive a SIGKILL. Its successor takes those that no peer has changed later. A slot
that moves to another node finds nothing there.

Not here: the file (journal.py), which values a newcomer takes (counters.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.frames import Spot, Values
from ftrun.inject.zero_edit.values.changes import NEVER
from ftrun.inject.zero_edit.values.histories import (
    Copy,
    copies_in,
    digests_of,
    plain_of,
    within_limits,
)
from ftrun.inject.zero_edit.values.journal import Journal, read
from ftrun.inject.zero_edit.values.kinds import is_container

Ranges = tuple[tuple[Spot, int], ...]


@dataclass(slots=True)
class Left:
    """The values that a predecessor has left.

    ``life``: of the job; another one begins if all replicas are lost. ``values``: by function and
    path, with the step of the last change. ``ranges``: the last numbers of its ``range`` loops.
    ``noted``: steps at which it has noted all that had changed. ``early_at``: the mark of the draw
    at which it has noted what had changed at its last step so far; 0: it has noted all. ``names``:
    the texts of its set-up that may name its life.
    """

    life: str
    values: dict[str, dict[str, tuple[Any, int]]]
    ranges: dict[Spot, int] = field(default_factory=dict)
    noted: frozenset[int] = frozenset()
    early_at: int = 0
    names: dict[str, Values] = field(default_factory=dict)
    step: int = NEVER

    def compared(self) -> dict[str, Values]:
        """What is compared with a peer's: the plain values, and digests of the containers."""
        every = {
            function: {path: x for path, (x, _) in values.items()}
            for function, values in self.values.items()
        }
        return {
            function: {path: x for path, x in values.items() if not is_container(x)}
            | digests_of(values)
            for function, values in every.items()
        }


class Legacy:
    """Writes one worker's values. It stops if the file fails, or is too small for all values.

    Args:
        path: of this slot and rank.
    """

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path, "if this worker dies, what it alone counts is lost")
        self._is_off = self._has_begun = False
        self._early_at = 0
        self._marks: tuple[int, list[int]] = NEVER, []  # of a step's draws, the early ones so far
        self._ranges: Ranges = ()

    def begin(
        self,
        life: str,
        known: Mapping[str, Mapping[str, tuple[Any, int]]],
        ranges: Ranges,
        at: int = NEVER,
        names: Mapping[str, Values] = MappingProxyType({}),
    ) -> None:
        """Leave all values that have ever changed, each with the step. ``at``: all that had changed
        at this step are among them, as after ``add``. ``names``: see ``Left``."""
        if self._is_off:
            return
        self._ranges, self._has_begun = ranges, True
        every = [(f, p, step, x) for f, of in known.items() for p, (x, step) in of.items()]
        values: dict[str, dict[str, Any]] = {function: {} for function in known}
        for function, path, step, value in every:
            if type(value) is not Copy:
                values[function][path] = value, step
        lists, lacking = within_limits(x for x in every if type(x[3]) is Copy and x[3].heals)
        for function, path, step, packed in lists:
            values[function][path] = packed, step
        for words in lacking:
            told.once(f"{words} is too large to keep: a worker that replaces this one lacks it")
        entry = {"life": life, "known": values, "ranges": _plain(ranges), "at": at}
        entry["names"] = {function: {**of} for function, of in names.items()}
        self._is_off = not self._journal.begin(entry)

    def add(
        self, step: int, changed: Mapping[str, Values], ranges: Ranges, *, early_at: int = 0
    ) -> bool:
        """Leave what has changed at ``step``; False: there is no room, so that a beginning is due.

        It runs in every step that is noted. ``early_at``: more may change at this step, so that it
        can be compared with what a peer has at the same draw alone, which this marks.
        """
        if self._is_off or not self._has_begun:
            return True
        completes = self._early_at not in (0, early_at)  # also at another draw of the step
        self._early_at = early_at
        before = self._marks[1] if self._marks[0] == step else []
        if early_at:
            self._marks = step, [*before, early_at]
        if not (changed or completes):
            return True
        more = [
            [function, path, copy.start, copy.packed(copy.start)]
            for function, path, copy in copies_in(changed)
            if copy.heals
        ]
        plain = {function: found for function, x in changed.items() if (found := plain_of(x))}
        if not (plain or more or completes):
            return True
        entry: dict[str, Any] = {"step": step, "set": plain}
        if early_at:
            entry["early"], entry["after"] = early_at, [x for x in before if x != early_at]
        if more:
            entry["grown"] = more
        if ranges != self._ranges:
            self._ranges, entry["ranges"] = ranges, _plain(ranges)
        return self._journal.add(entry)


def left_at(path: Path, until: int, at: int = 0) -> Left | None:
    """The values that the last worker has left at ``path``, as they were at the step ``until``.

    ``at``: the mark of a draw of that step. What was left at a later draw of it does not count: who
    goes on from there does that again.

    Returns:
        None if nothing can be read there.
    """
    try:
        entries = [entry for entry, _ in read(path)]
        return _joined(entries, until, at) if entries else None
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _joined(entries: Sequence[dict[str, Any]], until: int, at: int) -> Left:
    first = entries[0]
    known = {
        function: {path: (value, step) for path, (value, step) in values.items() if step <= until}
        for function, values in first["known"].items()
    }
    noted = {entry["step"] for entry in entries[1:] if "early" not in entry}
    noted |= {first["at"]} - {NEVER}
    left = Left(first["life"], known, _ranges(first["ranges"]), frozenset(noted))
    left.names = first["names"]
    left.step = max((x for of in known.values() for _, x in of.values()), default=NEVER)
    for entry in entries[1:]:
        step = entry["step"]
        if step > until:
            break  # they are in the order of the steps
        if step == until and at in entry.get("after", ()):
            continue
        left.early_at, left.step = entry.get("early", 0), step
        for function, values in entry["set"].items():
            of_function = known.setdefault(function, {})
            of_function.update((path, (value, step)) for path, value in values.items())
        for function, path, start, packed in entry.get("grown", ()):
            of_function = known.setdefault(function, {})
            before = of_function.get(path)
            if start:
                if before is None or len(before[0]["values"]) < start:
                    continue  # it was too large for the beginning
                packed["values"] = before[0]["values"][:start] + packed["values"]
            of_function[path] = (packed, step)
        if "ranges" in entry:
            left.ranges = _ranges(entry["ranges"])
    return left


def _plain(ranges: Ranges) -> list[list[Any]]:
    return [[spot.name, spot.line, number] for spot, number in ranges]


def _ranges(plain: Sequence[Sequence[Any]]) -> dict[Spot, int]:
    return {Spot(name, line): number for name, line, number in plain}
