"""A node's part in the exchange of board words between the nodes of a group.

Not here: which words are sent, and which count (core/replay/mirroring.py), the board itself
(snapshots/board.py), the consequences (core/replay/settling.py in the workers, mending.py in the
lead).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ftrun.core.messages import GroupWords
from ftrun.core.replay.mirroring import Mirror, RankWords
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import GroupMemory

LOOK_S = 0.05
SOON_S = 0.002
"""The interval while a worker is replaced."""


class Boards:
    """The exchange for one incarnation at a time. Runs in the event loop's thread.

    Args:
        of: returns the memory of an incarnation; None: there is none yet, or not any more.
        send: called with words for the other nodes.
    """

    def __init__(
        self, of: Callable[[str], GroupMemory | None], send: Callable[[GroupWords], object]
    ) -> None:
        self._of = of
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._incarnation = ""
        self._mirror = Mirror(())
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, incarnation: str, here: range) -> None:
        """An incarnation starts, with these ranks on this node."""
        self.end()
        self._incarnation, self._mirror = incarnation, Mirror(here)
        self._look()

    def end(self) -> None:
        """The incarnation is over."""
        self._incarnation = ""
        if self._timer is not None:
            self._timer.cancel()

    def raised(self, number: int) -> None:
        """A decree is in force on this node's board."""
        self._write(self._mirror.raised(number))
        if self._timer is not None:
            self._timer.cancel()
        self._look()

    def came(self, words: GroupWords) -> GroupWords | None:
        """Words of other nodes have arrived. Returns those that count."""
        if words.incarnation != self._incarnation:
            return None
        found = self._mirror.came(words.number, words.ranks)
        self._write(found)
        return self._of_rows(found) if found else None

    def _write(self, rows: list[RankWords]) -> None:
        memory = self._of(self._incarnation)
        if memory is not None:
            for row in rows:
                memory.board.take(row)

    def _of_rows(self, rows: list[RankWords]) -> GroupWords:
        return GroupWords(self._incarnation, self._mirror.number, tuple(rows))

    def tell(self) -> None:
        """Send what the other nodes lack, now: this node's memory may be freed before the next
        look.
        """
        memory = self._of(self._incarnation)
        if memory is not None:
            news = self._mirror.news([memory.board.row(rank) for rank in memory.here])
            if news:
                self._send(self._of_rows(news))

    def _look(self) -> None:
        self.tell()
        memory, wait_s = self._of(self._incarnation), LOOK_S
        if memory is not None:
            joined = memory.board.all(Word.JOINED)
            if any(joined[rank] < self._mirror.number for rank in memory.here):
                wait_s = SOON_S
        if self._incarnation:
            self._timer = self._loop.call_later(wait_s, self._look)
