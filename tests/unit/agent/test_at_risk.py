from __future__ import annotations

import pytest

from ftrun.agent.at_risk import LOOKS, AtRisk, Stored
from ftrun.core.messages import Progress
from ftrun.core.replay.falls import Fall
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import GroupMemory

GROUP = 9


def group(*, generations: bool = True) -> GroupMemory:
    """Two workers that have taken five steps, with a snapshot of the third."""
    memory = GroupMemory.make(2, 4 << 20)
    for rank in range(2):
        area = memory.area(rank)
        area.lay_out(4096, 4096)
        memory.board.set(rank, Word.REACHED, 5)
        memory.board.add_group(rank, GROUP)
        if generations:
            area.open_log(0, 7)
            area.write(0, b"", [], 3, {GROUP: 7}, {GROUP: 7})
            memory.board.set(rank, Word.NEWEST, 3)
            set_done(memory, rank, 7)
    return memory


def set_done(memory: GroupMemory, rank: int, calls: int) -> None:
    memory.board.writer(memory.board.places(GROUP, [rank])[0])(calls)


def costs(known: AtRisk, now: float, *stored: Stored | None) -> list[tuple[int, float]]:
    elsewhere, on_disk = stored or (None, None)
    told = known.progress(now, elsewhere, on_disk, (("snapshots_written", 2.0),))
    assert isinstance(told, Progress) and told.step == known.step
    assert told.scalars == (("snapshots_written", 2.0),)
    losses = told.worker_lost, told.node_lost, told.job_lost
    return [(x.step, x.age_s) for x in losses if x is not None]


def test_a_lost_worker_costs_no_step_and_a_lost_node_what_is_stored_elsewhere() -> None:
    known = AtRisk(group(), 10.0)
    known.look(14.0)
    assert costs(known, 14.0) == [(5, 0.0), (0, 4.0), (0, 4.0)]
    assert costs(known, 15.0, Stored(4, 13.0), None) == [(5, 0.0), (4, 2.0), (0, 5.0)]
    assert costs(known, 15.0, Stored(1, 13.0), Stored(2, 11.0)) == [(5, 0.0), (2, 4.0), (2, 4.0)]


def test_without_a_snapshot_of_each_worker_all_is_lost() -> None:
    known = AtRisk(group(generations=False), 10.0)
    known.look(12.0)
    assert known.newest is None
    assert costs(known, 12.0) == [(0, 2.0)] * 3


def test_a_script_that_cannot_be_followed_loses_what_no_disk_has() -> None:
    memory = group()
    memory.board.set(1, Word.FALL, Fall.SCRIPT)
    known = AtRisk(memory, 10.0)
    known.look(12.0)
    assert known.fall is Fall.SCRIPT
    assert costs(known, 12.0, None, Stored(4, 11.0)) == [(4, 1.0)] * 3
    memory.board.set(1, Word.FALL, Fall.INPUT)  # of one death: the next may be mended
    known.look(12.0)
    assert known.fall is None


def test_a_log_with_a_gap_takes_all_back_to_the_snapshot_until_the_next_one() -> None:
    memory = group()
    known = AtRisk(memory, 10.0)
    set_done(memory, 1, 9)  # two calls that its log does not have
    known.look(11.0)
    assert not known.has_gap, "the words were read one by one"
    for _ in range(LOOKS - 1):
        known.look(12.0)
    assert known.has_gap
    assert costs(known, 14.0) == [(3, 3.0), (0, 4.0), (0, 4.0)]
    memory.area(1).open_log(1, 9)
    memory.area(1).write(1, b"", [], 5, {GROUP: 9}, {GROUP: 9})
    for call in (7, 8):
        memory.area(0).log(0, GROUP, call, 0)
    set_done(memory, 0, 9)
    known.look(15.0)
    assert not known.has_gap


def test_the_time_of_a_step_is_measured_and_a_step_back_is_no_step() -> None:
    memory = group()
    known = AtRisk(memory, 10.0)
    known.look(11.0)
    assert known.progress(11.0, None, None).step_s is None, "the first ones have the set-up"
    for rank in range(2):
        memory.board.set(rank, Word.REACHED, 9)
    known.look(13.0)
    assert known.progress(13.0, None, None).step_s == pytest.approx(0.5)
    for rank in range(2):
        memory.board.set(rank, Word.REACHED, 3)  # all have begun again
    known.look(14.0)
    assert known.step == 3
    assert known.progress(14.0, None, None).step_s == pytest.approx(0.5)
