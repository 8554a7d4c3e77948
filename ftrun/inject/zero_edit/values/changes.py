"""The step at which each value of the script changed last, to find the newest copy. Pure.

A value that has never changed belongs to its replica (the rank, arguments, paths). A value that
only one replica changes has a later step there than at its peers, even if the peers once took it
from that replica. A container counts as one value, compared by a copy (histories.py).

Not here: reading (walk.py), tensors, which have versions (tensors.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from ftrun.core.worker.origins import is_same
from ftrun.inject.zero_edit.frames import OF_MODULE, Values
from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.kinds import may_name_life

Steps = dict[str, dict[str, int]]
"""The steps of the last changes, by function and path."""
NEVER = -1
_ABSENT = object()


class Changes:
    """The changes of one replica's values.

    Of a function that is on the stack more than once, only the innermost call counts.

    Attributes:
        steps: the step at which each value changed last; values that never have are left out.
    """

    def __init__(self) -> None:
        self._before: dict[str, Values] = {}
        self.steps: Steps = {}
        self._names = 0

    def begin(self, found: Iterable[tuple[str, Values]]) -> None:
        """Take the current values as a baseline, not as changes."""
        for function, values in _innermost(found):
            self._before.setdefault(function, {}).update(values)

    def note(self, found: Iterable[tuple[str, Values]], step: int) -> dict[str, Values]:
        """Record the values at a draw; returns those that changed since the last, by function."""
        changed: dict[str, Values] = {}
        for function, values in _innermost(found):
            if function not in self._before and OF_MODULE in function:
                self._before[function] = {**values}  # it was imported since: nothing has changed
            before = self._before.setdefault(function, {})
            if before == values:
                continue
            more = differing(before, values)
            if self._names + len(more) > limits.TRACKED:
                known = self.steps.get(function, {})
                more = {path: value for path, value in more.items() if path in known}
            if more:
                before.update(more)
                self._mark(function, more, step)
                changed[function] = more
        return changed

    def changed(self, found: Iterable[tuple[str, Values]]) -> dict[str, Values]:
        """For each function the values that have ever changed."""
        return {
            function: {path: value for path, value in values.items() if path in steps}
            for function, values in _innermost(found)
            if (steps := self.steps.get(function))
        }

    def adopt(self, steps: Mapping[str, Mapping[str, int]]) -> None:
        """Record that values were set which had changed at these steps elsewhere."""
        for function, paths in steps.items():
            known = self.steps.get(function, {})
            for path, step in paths.items():
                self._mark(function, (path,), max(step, known.get(path, NEVER)))

    def known(self) -> dict[str, dict[str, tuple[Any, int]]]:
        """All values that have changed, each with the step of its last change."""
        return {
            function: {path: (before[path], step) for path, step in steps.items() if path in before}
            for function, steps in self.steps.items()
            if (before := self._before.get(function)) is not None
        }

    def names(self) -> dict[str, Values]:
        """The texts and paths of the set-up that may name this life, as by the time."""
        found: dict[str, Values] = {}
        for function, values in self._before.items():
            changed = self.steps.get(function, {})
            of = {x: y for x, y in values.items() if x not in changed and may_name_life(y)}
            if of:
                found[function] = dict(islice(of.items(), limits.ITEMS))
        return dict(islice(found.items(), limits.ITEMS))

    def before(self, function: str) -> Values:
        return self._before.get(function, {})

    def step_of(self, function: str, path: str) -> int:
        """The step at which a value changed last; ``NEVER``: it has not."""
        return self.steps.get(function, {}).get(path, NEVER)

    def _mark(self, function: str, paths: Iterable[str], step: int) -> None:
        known = self.steps.setdefault(function, {})
        for path in paths:
            if path not in known:
                if self._names >= limits.TRACKED:
                    continue
                self._names += 1
            known[path] = step


def differing(before: Values, values: Values) -> Values:
    """The values that differ from ``before``."""
    return {
        path: value
        for path, value in values.items()
        if (old := before.get(path, _ABSENT)) is not value and not is_same(old, value)
    }


def _innermost(found: Iterable[tuple[str, Values]]) -> Iterator[tuple[str, Values]]:
    seen: set[str] = set()
    for function, values in found:
        if function not in seen:
            seen.add(function)
            yield function, values


def copied(steps: Steps, until: int) -> Steps:
    """A copy of the steps in which none is later than ``until``. May run in any thread."""
    return {
        function: {path: min(step, until) for path, step in list(paths.items())}
        for function, paths in list(steps.items())
    }
