"""The names of a worker's exchanges: which step, which number. Pure.

There are two ways to count. An unmodified script's exchanges are counted since the last *commit*
(``Numbers``), because they are part of one loop that all replicas go through; a newcomer sets the
count to its peers', who show it with their place (exchange_places.py). A managed group's are
counted since its step was *begun* (``ManagedNumbers``).

A step may be tried twice by one replica and once by another, which has repaired it. So the second
try counts from where the first one did, and gets the values that are kept. Peers never come to the
exchanges that a script makes after an uncommitted try: it gets its own values (``is_void``).

Not here: what is exchanged under a name (exchange.py).
"""

from __future__ import annotations

from ftrun.core.worker.exchange import MANAGED_FROM, SET_UP, ExchangeName


class Numbers:
    """The names of the exchanges of an unmodified script's loop."""

    def __init__(self) -> None:
        self._at = SET_UP
        self._index = 0
        self._behind = 0
        self._begun = self._counted = SET_UP
        self._counted_index = 0

    def step(self, state: int, *, has_begun: bool) -> int:
        """The step in the name of the next exchange.

        Args:
            state: the steps committed in this worker's state.
            has_begun: it has begun its first step.
        """
        return state - self._behind if has_begun else SET_UP

    def next(self, step: int) -> ExchangeName:
        """The name of the next exchange. The number begins at 0 after each commit."""
        if step != self._at:
            self._at, self._index = step, 0
        name = ExchangeName(step, self._index)
        self._index += 1
        return name

    def place(self, step: int) -> int:
        """How many exchanges there were since the last commit."""
        return self._index if step == self._at else 0

    def step_begun(self, step: int, state: int) -> None:
        """A step begins, perhaps once more. ``state``: the step of the state that is held: unlike
        while this worker heals, and its place is known only then."""
        self._begun = step
        if step != state:
            return
        if step != self._counted:
            self._counted, self._counted_index = step, self.place(step)
        self._at, self._index = step, self._counted_index

    @property
    def begun_at(self) -> ExchangeName:
        """The first exchange since the step that was begun last began."""
        return ExchangeName(self._counted, self._counted_index)

    def is_void(self, state: int, *, in_step: bool) -> bool:
        """Whether the last step has ended without a commit, and none has begun since."""
        return not in_step and self._begun >= state

    def set_place(self, state: int, index: int, behind: int) -> None:
        """This worker has healed to a state in which its peers have exchanged that often.

        ``behind``: it goes through that many steps again, whose exchanges its peers have kept.
        """
        self._behind = behind
        self._counted, self._counted_index = state, index
        self._at, self._index = self.step(state, has_begun=True), index

    def step_again(self) -> None:
        """One of the steps that this worker goes through again has ended."""
        self._behind = max(0, self._behind - 1)


class ManagedNumbers:
    """The names of the exchanges of managed groups.

    Attributes:
        step: the last one that was begun; ``SET_UP`` before the first.
    """

    def __init__(self) -> None:
        self.step = SET_UP
        self._since = 0

    def step_begun(self, step: int) -> None:
        """A step begins, perhaps once more."""
        self.step, self._since = step, 0

    def next(self) -> ExchangeName:
        """The name of the next exchange."""
        number, self._since = self._since, self._since + 1
        return ExchangeName(self.step, MANAGED_FROM + number)

    def is_void(self, state: int, *, in_step: bool) -> bool:
        """As ``Numbers.is_void``."""
        return not in_step and self.step >= state
