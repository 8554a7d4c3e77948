"""The agent's memory of one replica group, which outlives its workers.

Theory of operation. The agent makes one anonymous file for the group's board and one for each
worker's area, and every worker maps them. If the job has several replicas, each worker has a second
area, whose logs keep the results of its reductions with other replicas. Pages cost nothing until
they are written, so each area has the largest size that it may ever need.

Not here: an area (area.py), the board (board.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from ftrun.base import futex
from ftrun.core.replay.alike import Unlike, unlike
from ftrun.core.replay.settling import Generation, common
from ftrun.snapshots.area import NONE, TRIES, Area, Held
from ftrun.snapshots.board import WHY_BYTES, Board, Word, board_bytes
from ftrun.snapshots.memory import SharedMemory

VARIABLE = "FTRUN_MEMORY"
"""Environment variable of a worker: where the memory of its group is, then the memory of each other
replica on this node. The last item may name memory that earlier processes have left: a step, the
replica, and the place, separated by ``LEFT``. If all replicas restart together, it is the memory of
one of them."""
AT_FALL = "FTRUN_MEMORY_AT_FALL"
"""The same where no snapshots are taken. Workers leave their states there when all replicas are
about to restart together (inject/zero_edit/at_fall.py)."""
LEFT = "@"
RESULTS_SHARE = 3
"""An area for results has 1 / RESULTS_SHARE of the size of a rank's main area: as much as its
logs."""


class GroupMemory:
    """The board and the areas of one group, as the agent or a worker of it sees them.

    ``here``: the ranks of this node. Only they have areas. Some words of the other ranks are copied
    to the board (core/replay/mirroring.py).
    """

    def __init__(
        self,
        board: SharedMemory,
        areas: Sequence[SharedMemory],
        nbytes: int,
        here: range,
        ranks: int,
    ) -> None:
        """``areas``: one for each rank, then one for the results of each rank, if results are
        kept."""
        self._files = (board, *areas)
        board.reserve(board_bytes(ranks) + WHY_BYTES)
        self.board = Board(board, ranks)
        self.here = here
        self.nbytes = nbytes
        self._areas: dict[int, Area] = {}

    @classmethod
    def make(
        cls, ranks: int, nbytes: int, here: range | None = None, *, has_results: bool = False
    ) -> GroupMemory:
        """Allocate memory for a group, up to ``nbytes`` for each area. Called by the agent.

        Args:
            here: the ranks of this node; None: all ranks.
            has_results: also keep the results of reductions with other replicas, for which a third
                more memory is used.

        Raises:
            OSError: this system has no such memory, or no futex.
        """
        futex.number()
        here = range(ranks) if here is None else here
        areas = [SharedMemory() for _ in range(len(here) * (1 + has_results))]
        made = cls(SharedMemory(), areas, nbytes, here, ranks)
        made.board.room = 1 << 62  # until the agent has measured it
        for rank in here:
            made.area(rank).clear()
            if has_results:
                made.results(rank).clear()
            made.board.set(rank, Word.NEWEST, NONE)
        return made

    @property
    def spans(self) -> bool:
        """Whether the group has ranks on other nodes too."""
        return len(self.here) < self.board.ranks

    @classmethod
    def open(cls, place: str) -> GroupMemory:
        """Map the group's memory in a worker.

        Raises:
            OSError: the agent is gone, or has freed it.
        """
        process, size, first, stop, ranks, *files = place.split(":")
        opened = list[SharedMemory]()
        try:
            for file in files:
                opened.append(SharedMemory.at(f"{process}/{file}"))
        except OSError:
            for one in opened:
                os.close(one.fd)
            raise
        board, *areas = opened
        return cls(board, areas, int(size), range(int(first), int(stop)), int(ranks))

    @property
    def place(self) -> str:
        """The argument for ``open``, valid in any process of this user on this node."""
        files = ":".join(f"{file.fd}.{os.fstat(file.fd).st_ino}" for file in self._files)
        ranks = f"{self.here.start}:{self.here.stop}:{self.board.ranks}"
        return f"/proc/{os.getpid()}/fd:{self.nbytes}:{ranks}:{files}"

    def area(self, rank: int) -> Area:
        """A rank's area, mapped on first use."""
        return self._area(self.here.index(rank))

    def results(self, rank: int) -> Area:
        """The log of the results of a rank's reductions with other replicas."""
        return self._area(len(self.here) + self.here.index(rank))

    @property
    def has_results(self) -> bool:
        """Whether results of reductions with other replicas are kept."""
        return len(self._files) > 1 + len(self.here)

    def _area(self, number: int) -> Area:
        if number not in self._areas:
            memory = self._files[1 + number]
            nbytes = self.nbytes // (RESULTS_SHARE if number >= len(self.here) else 1)
            memory.reserve(2 * nbytes)  # of address space: see ``lay_out``
            self._areas[number] = Area(memory, nbytes)
        return self._areas[number]

    def generations(self) -> list[list[Generation]]:
        """The whole generations of each rank here."""
        found = [self.area(rank).generations() for rank in self.here]
        if self.board.may_differ:
            return [[replace(x, mark=None) for x in known] for known in found]
        return found

    def has_mates(self) -> bool:
        """Whether workers here are known to hold the same parameters."""
        return any(x.mark is not None for own in self.generations() for x in own)

    def unlike(self) -> Unlike | None:
        """Workers here that should hold the same parameters and do not."""
        return None if self.spans or self.board.may_differ else unlike(self.generations())

    def hold(self, step: int | None = None) -> list[Held] | None:
        """Hold a generation of each rank here, all of the same step.

        ``step``: None: the newest step that all ranks have. Returns None if there is no such set.
        """
        ranks = [self.area(rank) for rank in self.here]
        for _ in range(TRIES):
            boundary = common(self.generations()) if step is None else step
            if boundary is None:
                return None
            held = [area.hold(boundary) for area in ranks]
            whole = [x for x in held if x is not None]
            if len(whole) == len(ranks):
                return whole
            for one in whole:
                one.release()
        return None

    @property
    def worker_bytes(self) -> int:
        """The bytes that are set aside for each worker."""
        return self.nbytes + self.nbytes // RESULTS_SHARE * self.has_results

    def held_bytes(self) -> int:
        """The bytes of memory that the board and all areas use now."""
        return sum(os.fstat(file.fd).st_blocks * 512 for file in self._files)

    def close(self) -> None:
        """Unmap it. The memory is free once every process that has mapped it has ended."""
        self._areas.clear()
        for file in self._files:
            file.close()
