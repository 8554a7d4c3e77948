"""The agent's side of a mend: a decree at each death, until all are connected, or a fall. Pure.

| event               | result                                                                  |
|---------------------|-------------------------------------------------------------------------|
| a worker has died   | a fall, if it cannot be replaced alone; else Decree: the worker is not   |
|                     | ``over`` any more, the number is raised, all processes are woken, and   |
|                     | the replacement starts when the process is gone (not before, because    |
|                     | its threads may still write)                                            |
| a look at the board | a fall, if a process has written one, or nothing has moved for the      |
|                     | limit (``LIVING`` times that while a worker that lives has not left its |
|                     | broken group: it may compute in a library that holds Python's lock);    |
|                     | Decree, if a group could not be connected although no worker has died;  |
|                     | Mended, once each rank has joined the group of the newest number        |
| a look after a mend | ``Stand``, if some ranks wait in their calls for long; a fall, if their |
|                     | calls cannot match (afterwards.py)                                      |

The first death of a mend counts as a restart, and so does each further death of a rank that is
being replaced. The first deaths of other ranks meanwhile belong to the same restart, as under
torchrun, where a restart is always of all workers (``counts``). The group's budget decides whether
a restart is left, and whether an exception has come twice at one place (core/agent/restarts.py).

A fall is reported once, and the other workers are killed. When all processes are gone, and what is
in memory is sound, all of them are replaced (``rewind``). For that the agent drops all logs and
what is newer than the newest generations of one boundary, sets ``done`` to the calls before it,
clears the other words, and raises the number. So each call is a new one for all. Otherwise all
workers are restarted, in new memory.

If the job has several ``replicas``, the others wait while this one is mended, for ``rejoin_s`` at
most. Then they continue without it, and it is restarted and heals from them, as after a fall. So a
worker is not replaced alone where that cannot succeed: if its script's main thread needs longer to
its first step, or if the mend before was too late (``is_late``). After a late mend the next death
is a restart at once, and the death after that is mended again. Nor is a worker replaced twice in
one step: the step itself may have killed both, and a replica that heals does not repeat it. A
replica's memory outlives such a restart. If no replica holds the job's state any more, all resume
from the newest step that one of them has left whole and sound in memory (``sound_until``; the
choice is in core/lighthouse/choice.py).

A group that ``spans`` several nodes may lose a whole node, which is a fall. If another node is lost
in the rewind, another rewind follows.

If the workers wait in calls that cannot match after a mend, they may have exchanged wrong values.
So all resume from a step that was made before that mend. This is tried once: if it ends in the same
way, the group is restarted. One of several ``replicas`` is restarted at once, and after a shorter
wait, because all others wait for it and have its state.

Not here: what the processes do (settling.py), starting one (core/agent/supervisor.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from ftrun.core.replay.afterwards import Afterwards, Apart, Stand, Waits
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import Board, Generation, missing

DEATHS_MAX = 3
TRIES_MAX = 20
"""The limit in one mend: new numbers because a group could not be connected."""
LIVING = 5
APART_S = 10.0
"""Workers of one of several replicas may wait in calls that cannot match for this long."""
REWINDS_MAX = 3
"""The limit in a row, for a group that spans several nodes."""
SOUND = frozenset(
    {
        Fall.LOG_FULL,
        Fall.INPUT,
        Fall.PEER_LOG,
        Fall.OTHER_INPUT,
        Fall.LATE,
        Fall.TOO_NEW,
        Fall.NODES,
        Fall.STAYS,
        Fall.DIES_AGAIN,
        Fall.SAME_STEP,
        Fall.APART,
        Fall.SLOW,
        Fall.STEP_LOST,
        Fall.QUORUM,
        Fall.CORRUPTED,
    }
)
"""After these falls all generations are as good as before. A replacement that dies leaves no whole
generation that is wrong; if the newest one is the cause of its death, those before lead to the same
place. Different values may be a device's rounding. But if a repeated step makes another collective
than before, it depends on something that no generation has: a group that resumed from one would end
with another result.
"""


@dataclass(frozen=True, slots=True)
class Decree:
    """Raise the board's number to this one, wake every process, start the replacement."""

    number: int


@dataclass(frozen=True, slots=True)
class Mended:
    """All are in one group again, ``after_s`` after the first death."""

    after_s: float


Outcome: TypeAlias = Decree | Mended | Fall | None


@dataclass
class Mending:
    """One incarnation of a group.

    ``number``: the number of the newest decree. ``fallen``: the reason why this group cannot be
    mended any more.

    Args:
        limit_s: the longest time without progress, while all wait.
        hang_s: after a mend, the longest time that a rank may wait in one call; 0: not watched.
        spans: the group has ranks on several nodes.
        replicas: the number of replicas that train together.
        rejoin_s: if there are several replicas, the time for which the others wait for this one's
            answer after an interrupt.
        was_late: the mend whose restart is this incarnation was too late.
    """

    limit_s: float
    spans: bool = False
    replicas: int = 1
    rejoin_s: float = 0.0
    hang_s: float = 0.0
    was_late: bool = False
    number: int = 0
    fallen: Fall | None = None
    _deaths: Counter[int] = field(default_factory=Counter)
    _reached: dict[int, int] = field(default_factory=dict)
    _rewinds: int = 0
    _began_at: float = 0.0
    _took_s: float = 0.0
    _seen: tuple[object, ...] = ()
    _moved_at: float = 0.0
    _tries: int = 0
    _after: Afterwards | None = None
    _sound_until: int | None = None
    _was_apart: bool = False

    @property
    def is_under_way(self) -> bool:
        """Whether a lost worker's replacement has not joined yet: call ``look`` meanwhile."""
        return bool(self._deaths) and self.fallen is None

    def is_late(self, now: float) -> bool:
        """Whether the last mend took longer than the other replicas wait. Ask at a restart."""
        took_s = now - self._began_at if self.is_under_way else self._took_s
        return took_s >= self.rejoin_s

    def counts(self, rank: int) -> bool:
        """Whether a death of ``rank`` now counts as one more restart. Ask before ``died``."""
        return not self._deaths or rank in self._deaths

    def died(
        self,
        rank: int,
        place: Generation | Fall,
        now: float,
        set_up_s: float = 0.0,
        reached: int = 0,
    ) -> Outcome:
        """A worker has died. ``place``: where its replacement would begin (settling.begin).

        ``set_up_s``: the work of its main thread to its first step, which the replacement needs
        too. ``reached``: the number of steps that it has made.
        """
        if self.fallen is not None:
            return None
        if self.replicas > 1 and (self.was_late or set_up_s >= self.rejoin_s):
            return self._fall(place if isinstance(place, Fall) else Fall.SLOW)
        if self.replicas > 1 and reached <= self._reached.get(rank, -1):
            return self._fall(Fall.SAME_STEP)
        self._reached[rank] = reached
        if not self._deaths:
            self._began_at = now
        self._deaths[rank] += 1
        if isinstance(place, Fall):
            return self._fall(place)
        if self._deaths[rank] > DEATHS_MAX:
            return self._fall(Fall.DIES_AGAIN)
        self.number += 1
        self._moved_at = now
        return Decree(self.number)

    def look(
        self,
        board: Board,
        joined: Sequence[int],
        falls: Sequence[int],
        now: float,
        broken: Sequence[int] = (),
        steps: Sequence[int] = (),
    ) -> Outcome:
        """Look at the board while ``is_under_way``.

        Args:
            joined: by rank, the decree of the group that it is connected to.
            falls: by rank, the reason of a fall that it has written; 0: none.
            broken: by rank, the decree whose group it could not connect although no worker has
                died. A new number lets all try again, because a group's place in the store serves
                one try.
            steps: by rank, its number of steps.
        """
        if not self.is_under_way:
            return None
        if any(falls):
            return self._fall(Fall(next(filter(None, falls))))
        # A rank that is over is still needed while others are not: it may have to repeat a call.
        if all(board.over) or all(number >= self.number for number in joined):
            self._deaths.clear()
            self._rewinds = self._tries = 0
            self._took_s = now - self._began_at
            if self.hang_s and not self.spans:
                is_one = self.replicas == 1  # otherwise the lighthouse reports who waits
                limits = (self.hang_s,) * 2 if is_one else (inf, min(APART_S, self.hang_s))
                self._after = Afterwards(tuple(steps), *limits)
                known = self._sound_until
                self._sound_until = min(steps) if known is None else min(known, *steps)
            return Mended(self._took_s)
        if self.number in broken and self._tries < TRIES_MAX:
            self._tries += 1
            self.number += 1
            self._moved_at = now
            return Decree(self.number)
        seen = (tuple(board.published), tuple(joined), tuple(board.done))
        if seen != self._seen:
            self._seen, self._moved_at = seen, now
        still_s = now - self._moved_at
        if self.staying(board):
            return self._fall(Fall.STAYS) if still_s >= LIVING * self.limit_s else None
        return self._fall(Fall.LATE) if still_s >= self.limit_s else None

    @property
    def is_watched(self) -> bool:
        """Whether progress after a mend is not certain yet: call ``look_after`` meanwhile."""
        return self._after is not None and not self.is_under_way and self.fallen is None

    def look_after(
        self, board: Board, steps: Sequence[int], waits: Sequence[Waits | None], now: float
    ) -> Stand | None:
        """Look at the board while it ``is_watched``. An ``Apart`` is a fall."""
        assert self._after is not None, "it is watched"
        found = self._after.look(board, steps, waits, now)
        if isinstance(found, Apart):
            self._fall(Fall.APART)
            self._rewinds += self._was_apart
            self._was_apart = True
        elif self._after.is_over:
            self._sound_until, self._was_apart = None, False
        self._after = None if self._after.is_over else self._after
        return found

    def staying(self, board: Board) -> list[int]:
        """The ranks that live and have not left their broken group."""
        return [rank for rank in missing(board) if rank not in self._deaths]

    @property
    def can_rewind(self) -> bool:
        """Whether the group may resume from memory after a fall, if what is there is whole."""
        if self.replicas > 1:
            return False  # a restart: the others may train meanwhile, and this one heals from them
        return self.fallen in SOUND and self._rewinds < (REWINDS_MAX if self.spans else 1)

    @property
    def sound_until(self) -> float:
        """The newest step whose generation is good enough to resume from, when all processes are
        gone; those before it are too. -1: none is. In a job of several replicas the last mend may
        not be proved yet when the others continue without this replica: then the same limit holds
        as after APART.
        """
        if self.fallen is not None and self.fallen not in SOUND:
            return -1
        is_unsure = self.replicas > 1 and self._after is not None
        return self._sound_until or 0 if self.fallen is Fall.APART or is_unsure else inf

    def rewind(self, boundary: int | None, workers: int, now: float) -> Decree | None:
        """After a fall all processes are gone: replace all of them, or (None) restart the group.

        Args:
            boundary: the common boundary in the memory that they have left (settling.common). None
                also if a worker has ended well, because that worker must not start again.
        """
        if boundary is None or not self.can_rewind or boundary > self.sound_until:
            return None
        self.fallen = None
        self._rewinds += 1
        self._deaths = Counter(dict.fromkeys(range(workers), 0))
        self.number += 1
        self._moved_at = now
        return Decree(self.number)

    def _fall(self, reason: Fall) -> Fall:
        self.fallen = reason
        return reason
