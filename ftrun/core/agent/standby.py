"""Standbys: workers that have started up to the script's first line and wait for an assignment.

Theory of operation. An agent keeps ``wanted`` of them. A start takes as many as it needs, the
oldest first; the other workers are forked. No start waits for standbys: they are forked only after
the spawner's last import, and with a delay after each start, because the replacement needs the
processor first.

| event            | what happens                                                |
|------------------|-------------------------------------------------------------|
| all is imported  | they are due                                                |
| a group starts   | it takes some; the missing ones are due after the delay     |
| one dies         | due after the delay; after ``deaths_max`` in a row: never   |
| there is too     | due after a longer delay                                    |
| little memory    |                                                             |
| due              | all that are missing are started                            |

Not here: the processes (agent/spawner.py), how a group uses them (supervisor.py). A standby belongs
to no slot and to no quorum.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StandbyRules:
    """The rules for standbys. ``wanted``: the number that is kept ready.

    ``deaths_max``: after this many deaths in a row, with none used in between, none is kept.
    ``room_delay_s``: until one is tried again for which there was too little memory.
    ``parked``: the standbys that the spawner has from the start.
    """

    wanted: int = 0
    deaths_max: int = 5
    refill_delay_s: float = 0.5
    room_delay_s: float = 30.0
    parked: tuple[str, ...] = ()


@dataclass
class StandbyPool:
    """The standbys of one agent. ``idle``: their names, the oldest first.

    Invariant: 0 <= deaths <= deaths_max.
    """

    rules: StandbyRules
    idle: list[str] = field(default_factory=list)
    used: int = 0
    deaths: int = 0
    due_at: float | None = None
    _opened: bool = False
    _named: int = 0

    def __post_init__(self) -> None:
        self.idle += self.rules.parked[: self.rules.wanted]

    def open(self, now: float) -> None:
        """The spawner's last import is over: standbys forked from now on have all modules."""
        self._opened = True
        self._arm(now)

    def take(self, count: int, now: float) -> tuple[str, ...]:
        """Assign up to ``count`` of them to a start."""
        taken = tuple(self.idle[:count])
        del self.idle[:count]
        if taken:
            self.deaths = 0
            self.used += len(taken)
        self._arm(now + self.rules.refill_delay_s)
        return taken

    def died(self, name: str, now: float, *, lacks_room: bool = False) -> bool:
        """A standby has ended before it was used, or (``lacks_room``) was not started.

        Returns:
            True if no more are kept from now on.
        """
        if name not in self.idle:
            return False  # It was taken at the same moment: the start deals with its end.
        self.idle.remove(name)
        if lacks_room:
            self._arm(now + self.rules.room_delay_s)
            return False
        if self.deaths == self.rules.deaths_max:
            return False
        self.deaths += 1
        if self.deaths < self.rules.deaths_max:
            self._arm(now + self.rules.refill_delay_s)
            return False
        self.due_at = None
        return True

    def refill(self, now: float) -> tuple[str, ...]:
        """The names of those to start now."""
        if self.due_at is None or now < self.due_at:
            return ()
        self.due_at = None
        missing = range(self.rules.wanted - len(self.idle))
        fresh = tuple(f"standby-{self._named + number + 1}" for number in missing)
        self._named += len(fresh)
        self.idle += fresh
        return fresh

    def check(self) -> None:
        """Assert what must hold between events."""
        assert len(self.idle) <= self.rules.wanted, self
        assert len(set(self.idle)) == len(self.idle), self
        assert 0 <= self.deaths <= self.rules.deaths_max, self
        given_up = self.deaths == self.rules.deaths_max
        assert self.due_at is None or (self._opened and not given_up), self

    def _arm(self, at: float) -> None:
        """Set the time of the next refill. In a row of starts the last one's delay counts."""
        is_wanted = self._opened and self.deaths < self.rules.deaths_max
        if is_wanted and len(self.idle) < self.rules.wanted:
            self.due_at = at
