"""The words of a node's ranks for the other nodes."""

from __future__ import annotations

import asyncio

from ftrun.agent.team.boards import Boards
from ftrun.core.messages import GroupWords
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import GroupMemory


def test_the_last_words_are_sent_before_the_memory_is_free() -> None:
    """Seen: the second node's workers ended, and its memory was freed before the next look: the
    first one's waited for ever for the word that theirs were over."""
    sent: list[GroupWords] = []

    async def work() -> None:
        memory = GroupMemory.make(2, 64 << 20, range(1, 2))
        boards = Boards(lambda incarnation: memory if incarnation == "a" else None, sent.append)
        boards.begin("a", range(1, 2))
        memory.board.set(1, Word.OVER, 1)
        boards.tell()
        boards.end()
        memory.close()

    asyncio.run(work())
    assert [[(x.group_rank, x.over) for x in words.ranks] for words in sent] == [
        [(1, False)],
        [(1, True)],
    ]
