"""The agent's side: a decree at each death, until all are in one group again, or a fall. Pure.

| event               | it follows                                                              |
|---------------------|-------------------------------------------------------------------------|
| a worker has died   | a fall, if it cannot be replaced alone; else Decree: the worker is not   |
|                     | ``over`` any more, the number is raised, all are woken, and when the     |
|                     | process is gone (not before, as its threads may still write) its         |
|                     | replacement starts                                                       |
| a look at the board | a fall, if a process has written one, or nothing has moved for too long   |
|                     | (``LIVING`` times that, as long as a worker that lives has not left its  |
|                     | broken group: it may compute in a library that holds Python's lock);     |
|                     | Decree, if a group could not be connected though nobody has died;        |
|                     | Mended, once each rank has joined the group of the newest number         |
| a look after a mend | ``Stand``, if some wait in their calls for long; a fall, if their calls  |
|                     | cannot meet (afterwards.py)                                              |

The first death of a mend counts as a restart, and so does each further one of a rank that is being
replaced. The first deaths of other ranks meanwhile belong to the same restart, as under torchrun,
where it is always one of all workers (``counts``). Whether a restart is left, and whether an
exception comes twice at one place, is for the group's budget (core/agent/restarts.py).

A fall is told once, and the other workers are killed. When all are gone, and what is in memory is
sound, all of them are replaced (``rewind``). For that the agent drops all logs, and what is newer
than the newest generations of one boundary, sets ``done`` to the calls before it, clears the other
words, and raises the number. So each call is a new one for all. Else all workers are
restarted, in new memory.

Of several ``replicas`` the other ones wait while this one is mended, but only so long
(``rejoin_s``). Then they go on without it, and it is restarted and heals from them, as after a
fall. So a worker is not replaced where that is known to be in vain: its script's main thread works
for longer to its first step, or the mend before was too late (``is_late``). Then the next death is
a restart at once, and the one after it is tried again. Nor is a worker replaced twice in one step:
what has ended both may be in the step, and a replica that heals from the others does not repeat it.
Its memory outlives a replica by that restart: where none holds the job's state any more, all go on
from the newest step that one of them has left whole and sound there (``sound_until``; which one is
chosen in core/lighthouse/choice.py).

Of a group that ``spans`` several nodes a whole node may be lost, which is a fall. If another one is
lost in the rewind, that leads to one more.

After a mend from which its workers wait in calls that cannot meet, they may have exchanged wrong
values. So all begin again from a step that was taken before that mend, and only once: if it comes
to the same, the group is restarted. So is one of several ``replicas``, and sooner, because all the
others wait for it, and have its state.

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
"""Of a mend: new numbers because a group could not be connected."""
LIVING = 5
APART_S = 10.0
"""So long workers of one of several replicas may wait in calls that cannot meet."""
REWINDS_MAX = 3
"""Of a group that spans several nodes, in a row."""
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
    }
)
"""After these falls all generations are as good as before. A replacement that dies writes no whole
one that is not; and should it be the newest one that kills, those before lead to the same place.
Other values may be a device's rounding. But a step that makes another collective than before takes
another way, by something that the script trains with and that no generation has: all that began
from one would end otherwise."""


@dataclass(frozen=True, slots=True)
class Decree:
    """Raise the board's number to this one, wake every process, start the replacement."""

    number: int


@dataclass(frozen=True, slots=True)
class Mended:
    """All are in one group again, ``after_s`` from the first death on."""

    after_s: float


Outcome: TypeAlias = Decree | Mended | Fall | None


@dataclass
class Mending:
    """One incarnation of a group. ``number``: of the newest decree. ``fallen``: it is over.

    Args:
        limit_s: that nothing may move for, while all wait.
        hang_s: after a mend, that a rank may wait in one call for; 0: nobody looks.
        spans: it has ranks on several nodes.
        replicas: that train together; if it is not the only one, ``rejoin_s``: so long the others
            wait for its answer after an interrupt.
        was_late: the mend before, from which this incarnation is the restart.
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
        """Whether a lost worker's replacement has not joined yet: look at the board."""
        return bool(self._deaths) and self.fallen is None

    def is_late(self, now: float) -> bool:
        """Whether the last mend has lasted for longer than the others wait. Ask at a restart."""
        took_s = now - self._began_at if self.is_under_way else self._took_s
        return took_s >= self.rejoin_s

    def counts(self, rank: int) -> bool:
        """Whether the death of ``rank`` now is one more restart. Ask before ``died``."""
        return not self._deaths or rank in self._deaths

    def died(
        self,
        rank: int,
        place: Generation | Fall,
        now: float,
        set_up_s: float = 0.0,
        reached: int = 0,
    ) -> Outcome:
        """A worker has died; ``place``: where its replacement would begin (settling.begin).

        ``set_up_s``: so long its main thread has worked to its first step, as the replacement's
        will. ``reached``: so many steps it has taken.
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
            falls: by rank, what it has written as the reason of a fall; 0: none.
            broken: by rank, the decree whose group it could not connect, though nobody has died: a
                new number lets all try again, because a group's place in the store is of one try.
            steps: by rank, so many it has taken.
        """
        if not self.is_under_way:
            return None
        if any(falls):
            return self._fall(Fall(next(filter(None, falls))))
        # One that is over is needed by those that are not: it may be asked for a call again.
        if all(board.over) or all(number >= self.number for number in joined):
            self._deaths.clear()
            self._rewinds = self._tries = 0
            self._took_s = now - self._began_at
            if self.hang_s and not self.spans:
                is_one = self.replicas == 1  # else the lighthouse tells who waits
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
        """Whether all go on after a mend is not known so far: ``look_after``."""
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
        """The ranks that live, and have not left their broken group."""
        return [rank for rank in missing(board) if rank not in self._deaths]

    @property
    def can_rewind(self) -> bool:
        """Whether what is in memory may be good enough to begin again from it, after a fall."""
        if self.replicas > 1:
            return False  # it is restarted, because the others may train on: it heals from them
        return self.fallen in SOUND and self._rewinds < (REWINDS_MAX if self.spans else 1)

    @property
    def sound_until(self) -> float:
        """The generations of this step and of those before are good enough to begin from, when all
        processes are gone; -1: none is. If it is not known whether all go on after a mend, and the
        others have gone on without it, it may be as after an APART."""
        if self.fallen is not None and self.fallen not in SOUND:
            return -1
        is_unsure = self.replicas > 1 and self._after is not None
        return self._sound_until or 0 if self.fallen is Fall.APART or is_unsure else inf

    def rewind(self, boundary: int | None, workers: int, now: float) -> Decree | None:
        """After a fall all processes are gone: replace all of them, or (None) restart the group.

        Args:
            boundary: of the memory that they have left (settling.common); None also if a worker
                has ended well, because it is not to come back.
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
