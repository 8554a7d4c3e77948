"""What a worker shows of its last steps, so that replicas that have grown apart are found. Pure.

Progress goes out ten times a second at most, and each replica sends its own, so two of them rarely
show the same step. So the newest step that 1, 10, 100 … divides is shown each: of these some are
the same on all replicas. Not here: what is done about a difference (core/lighthouse/divergence.py).
"""

from __future__ import annotations

from collections.abc import Callable

from ftrun.core.ids import StateId
from ftrun.core.messages import Mark

EVERY = (1000, 100, 10, 1)
SETTINGS_CHARS_MAX = 400
PARAMETERS_EVERY = 100
"""The digest of the parameters takes a pass over all of them."""

Entry = tuple[StateId, Callable[[], str], str]


class Marks:
    """The newest marks of one worker. Other threads may call ``shown``."""

    def __init__(self) -> None:
        self._newest: dict[int, Entry] = {}  # replaced, never changed

    def note(self, state: StateId, settings: Callable[[], str], parameters: str) -> None:
        """The worker has committed up to ``state``. ``settings``: gives their text, when shown."""
        entry = state, settings, parameters
        self._newest = {
            every: entry if state.step % every == 0 else self._newest.get(every, entry)
            for every in EVERY
            if state.step % every == 0 or every in self._newest
        }

    def shown(self) -> tuple[Mark, ...]:
        """The marks, oldest first."""
        entries = {state.step: (state, text, digest) for state, text, digest in
                   self._newest.values()}  # fmt: skip
        return tuple(
            Mark(state.step, state.lineage, text()[:SETTINGS_CHARS_MAX], digest)
            for state, text, digest in (entries[step] for step in sorted(entries))
        )
