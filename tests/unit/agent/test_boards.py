"""The agents of two nodes tell each other the words of their ranks when a worker is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ftrun.agent.team.boards import Boards
from ftrun.core.messages import GroupWords
from ftrun.core.replay.settling import missing
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import GroupMemory

GROUP = 7
DEADLINE_S = 60.0


async def until(holds: Callable[[], object]) -> None:
    """Wait until a function is true."""

    async def look() -> None:
        while not holds():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(look(), DEADLINE_S)


def test_the_words_of_a_rank_come_to_the_other_node_with_what_it_has_done() -> None:
    memories = [GroupMemory.make(2, 1 << 22, range(x, x + 1)) for x in range(2)]
    sent: list[GroupWords] = []

    async def run() -> None:
        near = Boards(lambda x: memories[0] if x == "a" else None, lambda words: None)
        far = Boards(lambda x: memories[1] if x == "a" else None, sent.append)
        near.begin("a", range(1))
        far.begin("a", range(1, 2))
        board, other = memories[1].board, memories[0].board
        board.add_group(1, GROUP)
        board.rewind(1, {GROUP: 5})
        await until(lambda: sent)
        for memory, boards in zip(memories, (near, far), strict=True):
            memory.board.make_decree(1, 0)
            boards.raised(1)
        board.set(1, Word.PUBLISHED, 1)
        await until(lambda: sent[-1].number == 1 and sent[-1].ranks[0].published == 1)
        assert near.came(replace(sent[-1], number=0)) is None, "of an older decree"
        assert near.came(replace(sent[-1], incarnation="b")) is None
        assert other.all_done() == [{}, {}]
        assert near.came(sent[-1]) == sent[-1]
        assert other.all_done() == [{}, {GROUP: 5}]
        assert missing(other.look()) == [0]
        count = len(sent)
        board.rewind(1, {GROUP: 9})  # no word of a call travels
        board.set(1, Word.OVER, 1)
        await until(lambda: len(sent) > count)
        near.came(sent[-1])
        assert (other.all_done()[1], other.look().over) == ({GROUP: 9}, [False, True])
        far.end()
        near.end()

    try:
        asyncio.run(run())
    finally:
        for memory in memories:
            memory.close()
