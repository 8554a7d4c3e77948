"""The memory snapshots of the groups that run here: made, looked at, told of.

Not here: the memory itself (snapshots/area.py), what follows from it (core/agent/replacing.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from ftrun.agent.resources import memory
from ftrun.base import clock
from ftrun.base.words import amount
from ftrun.config.forms import why_no_memory_snapshots
from ftrun.config.settings import RunSettings
from ftrun.core.agent.events import BoardSeen, Kept
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import Generation, begin, common
from ftrun.snapshots.area import NONE, GroupMemory, Word

SHARE = 0.5
"""Of the memory that is free when a group starts: its areas take no more."""
LEAST_BYTES = 64 << 20
"""Of one area. With less, no memory snapshot is taken."""
TELL_EVERY_S = 0.25
CGROUPS = Path("/sys/fs/cgroup")


class MemorySnapshots:
    """By incarnation. ``tell``: shows people a line. In the event loop's thread."""

    def __init__(self, settings: RunSettings, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, GroupMemory] = {}
        self._is_told = False

    def make(self, incarnation: str) -> None:
        """Set memory aside for a new incarnation, where snapshots in memory are taken."""
        if why_no_memory_snapshots(self._settings):
            return
        ranks, here = self._settings.workers_per_replica, self._settings.ranks_here
        areas = len(here) * (2 if self._settings.spans else 1)  # as many for another node's
        free = free_bytes()
        each = int(free * SHARE / areas) // 4096 * 4096
        why = f"{amount(free)} of memory are free" if each < LEAST_BYTES else ""
        if not why:
            try:
                self._known[incarnation] = GroupMemory.make(ranks, each, here)
            except OSError as error:
                why = error.strerror or str(error)
        if why:
            self._tell_once(f"No memory snapshots: {why}. A death restarts all workers.")
        else:
            self._loop.call_later(TELL_EVERY_S, self._look, incarnation)

    def of(self, incarnation: str) -> GroupMemory | None:
        """The memory of an incarnation; None: it has none."""
        return self._known.get(incarnation)

    def starts(self, incarnation: str, rank: int) -> str:
        """A process is about to start as this rank; returns where it finds the memory, or ""."""
        known = self._known.get(incarnation)
        if known is None:
            return ""
        known.board.set(rank, Word.STARTS, known.board.read(rank, Word.STARTS) + 1)
        return known.place

    def decree(self, incarnation: str, number: int, dead: int) -> None:
        """Raise the number on the board, and wake all of the group. A dead worker is not over."""
        known = self._known.get(incarnation)
        if known is not None:
            if dead >= 0:
                known.board.set(dead, Word.OVER, 0)
            known.board.make_decree(number, int(clock.now() * 1e9))

    def due(self, incarnation: str, word: int) -> None:
        """At which steps all take their states, as rank 0 says on another node."""
        known = self._known.get(incarnation)
        if known is not None:
            known.board.set(0, Word.DUE, word)

    def kept(self, incarnation: str, rank: int) -> Kept | None:
        """What there is of a worker that dies."""
        known = self._known.get(incarnation)
        if known is None:
            return None
        board, area = known.board, known.area(rank)
        fall = next(filter(None, board.all(Word.FALL)), 0)
        done = board.all_done()
        place: Generation | Fall = Fall.NODES
        if not known.spans:
            place = begin(area.generations(), area.logs(), done, rank)
        return Kept(Fall(fall) if fall else place, board.read(rank, Word.NEWEST))

    def seen(self, incarnation: str) -> BoardSeen | None:
        """The words of all ranks."""
        known = self._known.get(incarnation)
        if known is None:
            return None
        board = known.board
        words = tuple(board.all(Word.JOINED)), tuple(board.all(Word.FALL))
        boundary = common([known.area(rank).generations() for rank in known.here])
        broken = tuple(board.all(Word.BROKEN))
        return BoardSeen(incarnation, board.look(), *words, boundary, broken)

    def rewind(self, incarnation: str, number: int, boundary: int) -> None:
        """No process of the group runs: drop what is later than the step ``boundary``."""
        known = self._known[incarnation]
        for rank in known.here:
            known.board.rewind(rank, known.area(rank).rewind(boundary))
            for word in (Word.FALL, Word.OVER):
                known.board.set(rank, word, 0)
            if not known.board.read(rank, Word.STARTS):  # the state has come from elsewhere
                known.board.set(rank, Word.STARTS, 1)
        known.board.make_decree(number, int(clock.now() * 1e9))

    def free(self, incarnation: str) -> None:
        """No process of the group runs any more."""
        known = self._known.pop(incarnation, None)
        if known is not None:
            known.close()

    def close(self) -> None:
        """Free all."""
        for incarnation in list(self._known):
            self.free(incarnation)

    def _look(self, incarnation: str) -> None:
        """Tell once that snapshots are taken, or why none are."""
        known = self._known.get(incarnation)
        if known is None:
            return
        fall = next(filter(None, known.board.all(Word.FALL)), 0)
        if fall:
            words = Fall(fall).words
            self._tell_once(f"No memory snapshots: {words}. A death restarts all workers.")
        elif NONE not in known.board.all(Word.NEWEST):
            each = known.held_bytes() // known.board.ranks
            self._tell_once(
                f"Memory snapshots: on this node ({amount(each)} a worker so far, at "
                f"most {amount(known.nbytes)}). A lost worker costs no step."
            )
        else:
            self._loop.call_later(TELL_EVERY_S, self._look, incarnation)

    def _tell_once(self, text: str) -> None:
        if not self._is_told:
            self._is_told = True
            self._tell(text)


def free_bytes(root: Path = CGROUPS, proc: Path = Path("/proc/self/cgroup")) -> int:
    """The memory that is free on this machine, and in this process's control group."""
    free = [int(resource.free_bytes) for resource in memory()]
    try:
        lines = proc.read_text().splitlines()
        below = next(line[3:].lstrip("/") for line in lines if line.startswith("0::"))
        limit = (root / below / "memory.max").read_text().strip()
        used = int((root / below / "memory.current").read_text())
        free += [max(0, int(limit) - used)] if limit.isdecimal() else []
    except (OSError, ValueError, StopIteration):
        pass  # no limit that can be read
    return min(free, default=0)
