"""Marks of a worker's last steps, which show whether replicas have diverged. Pure.

Progress is sent ten times a second at most, and each replica sends its own, so two of them rarely
show the same step. So a worker shows the newest step that is divisible by each of 1, 10, 100 … Some
of these are the same on all replicas. Not here: what is done about a difference
(core/lighthouse/divergence.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ftrun.core.ids import StateId
from ftrun.core.messages import Mark

EVERY = (1000, 100, 10, 1)
SELDOM = 10
INTERVAL_S = 0.1
"""The shortest time between two marks that are shown. Marks of each tenth step are always noted."""
TEXT_CHARS_MAX = 400
COMPARED_MAX = 64
PARAMETERS_EVERY = 100
"""A digest of the parameters reads all of them."""


@dataclass(frozen=True, slots=True)
class _Noted:
    """A mark whose text is not made yet."""

    state: StateId
    settings: Callable[[], str]
    parameters: str
    position: Callable[[], str]

    def shown(self) -> Mark:
        settings, position = self.settings()[:TEXT_CHARS_MAX], self.position()[:TEXT_CHARS_MAX]
        step, lineage = self.state.step, self.state.lineage
        return Mark(step, lineage, settings, self.parameters, position)


class Marks:
    """The newest marks of one worker. Other threads may call ``shown``.

    ``compared``: the last states whose parameters were shown.
    """

    def __init__(self) -> None:
        self.compared: deque[StateId] = deque(maxlen=COMPARED_MAX)
        self._newest: dict[int, _Noted] = {}  # by ``EVERY``; replaced, never changed
        self._due_at = 0.0

    def wants(self, step: int, now: float) -> bool:
        """Whether the mark of ``step`` may be shown at all."""
        if step % SELDOM and now < self._due_at:
            return False
        self._due_at = now + INTERVAL_S
        return True

    def note(
        self,
        state: StateId,
        settings: Callable[[], str],
        parameters: str,
        position: Callable[[], str] = str,
    ) -> None:
        """The worker has committed up to ``state``.

        The callables return texts when the mark is shown.
        """
        if parameters:
            self.compared.append(state)
        noted, newest = _Noted(state, settings, parameters, position), dict(self._newest)
        for every in EVERY:
            if state.step % every == 0:
                newest[every] = noted
        self._newest = newest

    def shown(self) -> tuple[Mark, ...]:
        by_step = {noted.state.step: noted for noted in self._newest.values()}
        return tuple(by_step[step].shown() for step in sorted(by_step))
