"""What a replacement finds in its own log of results, and in that of another replica."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed import ReduceOp

from ftrun.core.ids import Attempt, StateId
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.inject.zero_edit.results import Results
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import GroupMemory
from ftrun.training.reductions import Reduction

RANK = 1
HERE = Endpoint("10.0.0.1", "10.0.0.1:1")
MEMBERS = tuple(Member(x, f"a{int(x) + 1}", (HERE, HERE), "10.0.0.1:9") for x in "01")
QUORUM = Quorum(Attempt(3, 4), MEMBERS, "10.0.0.1:9", 5, StateId(5, "cd"))
LATER = replace(QUORUM, attempt=Attempt(3, 5), step=7, newcomers=("1",))


@pytest.fixture
def memories() -> Iterator[list[GroupMemory]]:
    """Of two replicas."""
    made = [GroupMemory.make(2, 8 << 20, has_results=True) for _ in range(2)]
    yield made
    for memory in made:
        memory.close()


class Log(Results):
    """Of one replica's worker, whose steps are numbered as its replica counts them."""

    def __init__(self, memory: GroupMemory, *others: GroupMemory, is_new: bool = True) -> None:
        self.fills = 0
        places = [x.place for x in others]
        super().__init__(memory.results(RANK), RANK, places, lambda: True, self._count)
        if is_new:
            self.starts()

    def _count(self) -> None:
        self.fills += 1

    def has(self, step: int, *values: float, quorum: Quorum = QUORUM, seen: int = 0) -> None:
        known = [(index, reduction(value)) for index, value in enumerate(values)]
        at = quorum.attempt
        self.hands_out(step, known, at, quorum, Attempt(at.quorum_id, seen or at.number))


def reduction(value: float) -> Reduction:
    return Reduction(torch.full((3,), value), ReduceOp.SUM)


def value(found: object) -> tuple[float, int] | None:
    """What a reduction has given, and the number of the attempt of its quorum."""
    if not isinstance(found, tuple):
        return None
    entry, quorum = found
    return entry.data[:12].view(torch.float32)[2].item(), quorum.attempt.number


def test_each_log_has_the_quorums_of_its_results(memories: list[GroupMemory]) -> None:
    log = Log(memories[0])
    log.begins(0, 0)
    log.has(7, 1.0, 2.0)
    log.has(8, 3.0, quorum=LATER)
    log.begins(1, 0)  # with the next generation
    log.has(9, 4.0, quorum=LATER)
    log.begins(2, 1)  # nobody needs the first one
    again = Log(memories[0], is_new=False)
    assert value(again.of(9, 0, QUORUM)) == (4.0, 5)
    assert again.steps_since(7) == {(9, 0)}
    _, quorum = again.of(9, 0, QUORUM) or (None, None)
    assert quorum == LATER
    assert again.of(8, 0, QUORUM) is None


def test_the_same_rank_of_another_replica_has_what_the_lost_worker_has_not(
    memories: list[GroupMemory],
) -> None:
    own, other = memories
    Log(own)
    log, mine = Log(other), Log(own, other, is_new=False)
    # The other replica has begun two steps less when it came to step 20.
    other.board.begins(RANK, 20, 18)
    log.has(18, 1.5, 2.5)
    at = QUORUM.attempt
    assert value(mine.of_others(20, 1, QUORUM, at)) == (2.5, 4)
    assert mine.of_others(20, 2, QUORUM, at) is None
    assert mine.of_others(21, 0, QUORUM, at) is None
    other.board.begins(RANK, 21, 19)  # it has taken that step, and its average is still of use
    assert value(mine.of_others(20, 0, QUORUM, at)) == (1.5, 4)
    other.board.begins(RANK, 22, 20)
    assert mine.of_others(20, 0, QUORUM, at) is None


def test_who_is_back_has_nothing_of_other_replicas_any_more(memories: list[GroupMemory]) -> None:
    """They may begin anew, and what they had then is free only once nobody has it."""
    own, other = memories
    log, mine = Log(other), Log(own, other)
    other.board.begins(RANK, 20, 18)
    log.has(18, 1.5)
    inodes = {(x.st_dev, x.st_ino) for x in (os.fstat(file.fd) for file in other._files)}

    def held() -> int:
        known = [Path(f"/proc/self/fd/{x}") for x in os.listdir("/proc/self/fd")]
        found = [x.stat() for x in known if x.exists()]
        return sum((x.st_dev, x.st_ino) in inodes for x in found)

    before = held()
    assert mine.of_others(20, 0, QUORUM, QUORUM.attempt) is not None
    assert held() >= before + len(inodes)
    mine.is_back()
    assert held() == before


def test_nothing_is_taken_that_a_later_quorum_may_have_decided_about(
    memories: list[GroupMemory],
) -> None:
    own, other = memories
    log, mine = Log(other), Log(own, other)
    other.board.begins(RANK, 20, 18)
    log.has(18, 1.5)
    assert mine.of_others(20, 0, QUORUM, LATER.attempt) is None
    alone = replace(QUORUM, attempt=Attempt(2, 1), members=MEMBERS[:1])
    assert mine.of_others(20, 0, alone, alone.attempt) is None


def test_a_lighthouse_that_begins_again_numbers_anew(memories: list[GroupMemory]) -> None:
    own, other = memories
    log, mine = Log(other), Log(own, other)
    other.board.begins(RANK, 20, 18)
    again = replace(QUORUM, attempt=Attempt(9, 4), newcomers=("0",))
    log.has(17, 0.5)
    log.has(18, 1.5, quorum=again)
    _, quorum = mine.of_others(20, 0, QUORUM, again.attempt) or (None, None)
    assert quorum == again
    _, quorum = log.of(17, 0, again) or (None, None)
    assert quorum == QUORUM


def test_a_replica_that_has_begun_anew_has_nothing(memories: list[GroupMemory]) -> None:
    own, other = memories
    log, mine = Log(other), Log(own, other)
    other.board.begins(RANK, 20, 18)
    log.has(18, 1.5)
    memories.remove(other)
    other.close()
    assert mine.of_others(20, 0, QUORUM, QUORUM.attempt) is None


def test_a_full_log_tells_once_and_begins_again(memories: list[GroupMemory]) -> None:
    log = Log(memories[0])
    large = torch.zeros(1 << 20)
    for step in range(1, 20):
        log.hands_out(
            step, [(0, Reduction(large + step, ReduceOp.SUM))], QUORUM.attempt, QUORUM, NONE
        )
    assert log.fills == 1
    log.begins(1, 1)
    log.has(30, 1.0)
    assert value(log.of(30, 0, QUORUM)) == (1.0, 4)


def test_calls_of_the_script_go_on_where_they_were(memories: list[GroupMemory]) -> None:
    log = Log(memories[0])
    for number in range(4):
        log.logs(QUORUM.attempt, [torch.tensor([number])])
    again = Log(memories[0], is_new=False)
    entries = again.calls_since(2)
    assert [int(x.data[:8].view(torch.int64)) for x in entries] == [2, 3]
    assert again.calls == 4
    assert memories[0].board.read(RANK, Word.BEGUN) == 0


NONE = Attempt(0, 0)
