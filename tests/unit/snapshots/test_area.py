from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ftrun.checkpoint.format import pack
from ftrun.core.replay.afterwards import Waits
from ftrun.core.replay.alike import Unlike
from ftrun.core.replay.falls import GROUPS_MAX
from ftrun.core.replay.mirroring import RankWords
from ftrun.core.replay.settling import Board as Words
from ftrun.core.replay.settling import Generation, Logged, Mark, missing
from ftrun.snapshots import area as module
from ftrun.snapshots.area import NONE, Area, AreaFull
from ftrun.snapshots.board import Board, Word
from ftrun.snapshots.group_memory import GroupMemory
from ftrun.snapshots.memory import ALIGNMENT, offsets_of

ROOM = 9 << 20
DEADLINE_S = 60.0


@pytest.fixture
def memory() -> Iterator[GroupMemory]:
    made = GroupMemory.make(3, ROOM)
    yield made
    made.close()


GROUP, OTHER = 7, (1 << 56) - 1


def write(area: Area, number: int, step: int = 0) -> None:
    tree = {"a": torch.full((1000,), float(number)), "b": torch.arange(7), "c": torch.empty(0)}
    calls, before = {GROUP: 10 * step, OTHER: step}, {GROUP: 10 * step - 1, OTHER: step}
    area.write(number, f"head {number}".encode(), pack(tree).leaves, step, calls, before)


def first_value(area: Area, number: int) -> float:
    found = area.read(number)
    assert found is not None and found.number == number
    assert found.head == f"head {number}".encode()
    return float(found.state[:4000].view(torch.float32).unique().item())


def test_three_generations_are_kept_and_the_newest_is_named(memory: GroupMemory) -> None:
    area = memory.area(1)
    area.lay_out(8192, 8192)
    assert area.newest == NONE and area.read(0) is None
    for number in range(5):
        write(area, number, 2 * number)
    assert area.newest == 4
    assert [area.read(number) is not None for number in range(6)] == [False, False] + [True] * 3 + [
        False
    ]
    assert [first_value(area, number) for number in (2, 3, 4)] == [2.0, 3.0, 4.0]
    kept = area.read(3)
    assert kept is not None and (kept.step, kept.before) == (6, {GROUP: 59, OTHER: 6})
    numbers = sorted(area.generations(), key=lambda known: known.number)
    assert [(x.number, x.step) for x in numbers] == [(2, 4), (3, 6), (4, 8)]
    assert numbers[1] == Generation(3, 6, {GROUP: 60, OTHER: 6}, {GROUP: 59, OTHER: 6})


def test_a_death_at_each_word_of_a_copy_leaves_the_generation_before(memory: GroupMemory) -> None:
    area = memory.area(0)
    area.lay_out(8192, 8192)
    for number in range(4):
        write(area, number)
    written, last = _Words(area), 0
    while written.fails_at == last:
        last += 1
        written.count, written.fails_at = 0, last
        try:
            write(area, 4)
        except _Killed:
            assert area.newest == 3
            assert first_value(area, 3) == 3.0
            assert area.read(1) is None  # its place is being written
            continue
        break
    assert last == 8  # each of its other words has been the last
    assert first_value(area, 4) == 4.0


def test_a_log_gives_each_call_back_and_knows_the_first_that_it_lacks(memory: GroupMemory) -> None:
    area = memory.area(0)
    area.lay_out(4096, 1 << 16)
    area.open_log(7, 100)
    parts = [torch.arange(5.0), torch.tensor(True), torch.empty(0)]
    area.log(7, GROUP, 90, 2, parts)
    area.log(7, OTHER, 90, 0)
    assert area.find(GROUP, 91) is None
    area.open_log(8, 102)
    area.log(8, GROUP, 91, 1, [torch.ones(3, 3).t()])
    found = area.find(GROUP, 90)
    assert found is not None and found.kind == 2
    offsets, nbytes = offsets_of([part.nbytes for part in parts])
    assert found.data.nbytes == nbytes
    assert found.data[offsets[0] : 20].view(torch.float32).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    nothing = area.find(OTHER, 90)
    assert nothing is not None and nothing.data.nbytes == 0
    assert area.find(OTHER, 91) is None and area.find(GROUP, 91) is not None
    assert area.log_bytes(7) == nbytes and area.newest_log == 8
    assert sorted(area.logs(), key=lambda log: log.first) == [Logged(100, 102), Logged(102, 103)]
    area.open_log(10, 200)  # takes the place of log 7
    assert area.find(GROUP, 90) is None and area.find(GROUP, 91) is not None


def test_memory_is_rewound_to_a_boundary_as_if_nothing_had_followed(memory: GroupMemory) -> None:
    area = memory.area(0)
    area.lay_out(8192, 8192)
    for number in range(5, 8):
        area.open_log(number, 11 * number)
        write(area, number, number)
        area.log(number, GROUP, 10 * number, 0)
    assert area.rewind(6) == {GROUP: 59, OTHER: 6}
    assert area.newest == 6 and first_value(area, 6) == 6.0
    assert area.read(7) is None and area.find(GROUP, 60) is None
    assert area.logs() == [Logged(65, 65)]
    assert area.generations()[-1].calls == {GROUP: 59, OTHER: 6}, "a replacement begins with it"
    area.log(area.newest_log, GROUP, 59, 0)
    assert area.logs() == [Logged(65, 66)] and area.find(GROUP, 59) is not None


def test_what_a_state_shows_stays_in_a_log_that_is_cut(memory: GroupMemory) -> None:
    area, leaves = memory.area(0), pack({"a": torch.zeros(10)}).leaves
    area.lay_out(4096, 1 << 16)
    for number in (1, 2):
        begin = 10 * number
        area.open_log(number, begin)
        for call in range(5):
            area.log(number, GROUP, begin + call, 1, [torch.full((100,), float(begin + call))])
        area.write(number, b"", leaves, number, {GROUP: begin + 3}, {GROUP: begin + 1})
    before = area.log_bytes(2)
    area.cut_logs()
    assert sorted(log.end for log in area.logs()) == [13, 23]
    assert area.log_bytes(2) == before * 3 // 5
    area.open_log(3, 30)
    area.log(3, GROUP, 30, 1, [torch.ones(1 << 12)])  # where the others were
    assert area.find(GROUP, 23) is None and area.find(GROUP, 30) is not None
    assert area.rewind(2, has_logs=True) == {GROUP: 23}
    assert area.logs() == [Logged(20, 23)]
    kept = area.find(GROUP, 22)
    assert kept is not None and kept.data.view(torch.float32)[99].item() == 22.0
    assert [(x.place, x.copied) for x in area.generations() if x.step == 2] == [(21, 23)]
    assert area.rewind(2) == {GROUP: 21}, "without a log they are made again"
    assert area.logs() == [Logged(21, 21)]


def test_what_does_not_fit_is_refused_with_both_sizes(memory: GroupMemory) -> None:
    area = memory.area(0)
    with pytest.raises(AreaFull, match=rf"bytes are needed, and {ROOM} are set aside"):
        area.lay_out(ROOM, 0)
    area.lay_out(4096, 4096)
    area.lay_out(ROOM, 0)  # a replacement: what the first has asked for stays
    with pytest.raises(AreaFull, match="room for 4096"):
        area.write(0, b"", pack({"a": torch.zeros(5000)}).leaves, 0, {}, {})
    area.open_log(0, 0)
    with pytest.raises(AreaFull, match="of 1 calls"):
        area.log(0, GROUP, 0, 0, [torch.zeros(5000)])
    assert area.newest == NONE and area.find(GROUP, 0) is None


def test_scarce_memory_is_not_taken_and_what_was_taken_is_given_back(memory: GroupMemory) -> None:
    area, leaves = memory.area(1), pack({"a": torch.ones(100_000)}).leaves
    area.divide()
    asked: list[int] = []

    def has_room(more: int) -> bool:
        asked.append(more)
        return len(asked) < 3

    for number in range(2):
        assert area.write(number, b"", leaves, number, {}, {}, has_room=has_room)
    assert min(asked) >= 400_000
    with pytest.raises(AreaFull, match=f"{asked[0]} bytes more would leave too little"):
        area.write(2, b"", leaves, 2, {}, {}, has_room=has_room)
    assert {x.number for x in area.generations()} == {0, 1}
    area.open_log(1, 0)
    area.log(1, GROUP, 0, 1, [torch.ones(100_000)])
    held = area.hold()
    assert held is not None and memory.held_bytes() > 1_200_000
    area.drop()
    assert {x.number for x in area.generations()} == {1}  # it is held
    assert not area.logs() and area.find(GROUP, 0) is None
    assert 400_000 < memory.held_bytes() < 500_000
    assert bytes(held.state[:4]) == b"\0\0\x80?"
    held.release()


def test_calls_of_a_log_are_bounded(memory: GroupMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLS_MAX", 2)
    area = memory.area(0)
    area.lay_out(4096, 4096)
    area.open_log(0, 0)
    area.log(0, GROUP, 0, 0)
    area.log(0, GROUP, 1, 0)
    with pytest.raises(AreaFull, match="of 3 calls"):
        area.log(0, GROUP, 2, 0)


def test_the_board_has_the_words_that_decide(memory: GroupMemory) -> None:
    board = memory.board
    assert board.all(Word.NEWEST) == [NONE] * 3
    board.set(1, Word.PUBLISHED, 3)
    board.set(0, Word.OVER, 1)
    board.make_decree(3, 333)
    assert board.look() == Words(3, [0, 3, 0], [{}, {}, {}], [True, False, False])
    assert board.died_at == 333


def test_the_board_has_which_of_its_steps_a_rank_had_for_one(memory: GroupMemory) -> None:
    board = memory.board
    for step, begun in ((4, 6), (5, 7), (5, 8)):
        board.begins(1, step, begun)
    # The second try of step 5 counts, and step 4 was taken before it.
    assert [board.begun(1, step) for step in (3, 4, 5, 6)] == [NONE, 6, 8, NONE]
    board.begins(1, 9, 9)  # it has healed
    assert [board.begun(1, step) for step in (5, 8, 9)] == [NONE, NONE, 9]
    board.set(1, Word.STEP, NONE)  # it died while it wrote
    assert board.begun(1, 9) == NONE


def test_memory_that_was_freed_is_not_found_under_the_number_of_another_file(
    memory: GroupMemory,
) -> None:
    other = GroupMemory.make(3, ROOM)
    place = other.place
    assert GroupMemory.open(place).board.ranks == 3
    other.close()
    # The numbers are free, and the next files get them.
    later = GroupMemory.make(3, ROOM)
    with pytest.raises(FileNotFoundError, match="the memory is gone"):
        GroupMemory.open(place)
    later.close()


def test_the_board_has_the_call_that_each_rank_waits_in(memory: GroupMemory) -> None:
    board = memory.board
    assert board.said(1) is None
    board.says(1, GROUP, 7, "broadcast", 64)
    said = board.said(1)
    assert said is not None and 0 <= said.age_s < 3600
    assert replace(said, age_s=0.0) == Waits(GROUP, 7, "broadcast", 64, 0.0)
    board.says(1, 0, -1, "", 0)
    said = board.said(1)
    assert said is not None and said.call == -1
    board.set(1, Word.SAID_AT, 0)
    assert board.said(1) is None, "a replacement has said nothing so far"


def test_the_board_has_how_far_each_rank_is_in_each_of_its_groups(memory: GroupMemory) -> None:
    board = memory.board
    assert board.add_group(0, GROUP) and board.add_group(2, OTHER) and board.add_group(2, GROUP)
    assert board.add_group(2, GROUP), "its replacement makes it again"
    places = board.places(GROUP, (0, 2))
    board.writer(places[1])(7)
    assert board.reader(places)() == (0, 7, 0)
    assert board.all_done() == [{GROUP: 0}, {}, {OTHER: 0, GROUP: 7}]
    board.rewind(2, {GROUP: 5})
    assert board.all_done()[2] == {OTHER: 0, GROUP: 5}
    others = range(100, 100 + GROUPS_MAX - 2)
    assert all(board.add_group(2, group) for group in others) and not board.add_group(2, 99)


def test_the_agent_writes_how_much_memory_may_be_taken(memory: GroupMemory) -> None:
    assert memory.board.room > 1 << 60
    memory.board.room = -5
    assert memory.board.room == -5 and memory.board.decree == 0


def test_who_waits_for_a_decree_is_woken(memory: GroupMemory) -> None:
    board = memory.board
    got: list[int] = []
    waiter = threading.Thread(target=lambda: got.append(_next_decree(board)))
    waiter.start()
    board.make_decree(1, 0)
    waiter.join(DEADLINE_S)
    assert got == [1]
    assert board.wait(1, 0.01) == 1  # nothing has come
    assert board.wait(0, DEADLINE_S) == 1  # it is there already


def test_another_process_writes_what_its_replacement_finds(memory: GroupMemory) -> None:
    code = """
import sys, torch
from ftrun.checkpoint.format import pack
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import GroupMemory
memory = GroupMemory.open(sys.argv[1])
area = memory.area(2)
area.lay_out(8192, 8192)
area.write(5, b"head 5", pack({"a": torch.full((1000,), 5.0)}).leaves, 2, {7: 17}, {7: 17})
area.open_log(5, 17)
area.log(5, 7, 17, 3, [torch.ones(2)])
memory.board.set(2, Word.AGAIN, 18)
memory.board.wait(0, 60.0)
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", code, memory.place]
    with subprocess.Popen(command) as process:
        while memory.board.read(2, Word.AGAIN) != 18:
            assert process.poll() is None
        memory.board.make_decree(1, 0)
        assert process.wait(DEADLINE_S) == -9
    area = memory.area(2)
    assert area.newest == 5 and first_value(area, 5) == 5.0
    entry = area.find(7, 17)
    assert entry is not None and entry.data.view(torch.float32)[:2].tolist() == [1.0, 1.0]
    assert memory.held_bytes() > 0


def test_memory_costs_nothing_before_it_is_written_and_leaves_nothing_behind() -> None:
    before = _held()
    made = GroupMemory.make(4, 1 << 40)
    assert made.held_bytes() < 1 << 20
    made.close()
    del made
    assert _held() == before


def test_the_agent_needs_no_torch_for_it() -> None:
    code = (
        "import sys\n"
        "from ftrun.snapshots.group_memory import GroupMemory\n"
        "GroupMemory.make(2, 1 << 30).board.make_decree(1, 0)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)


def _held() -> tuple[int, int]:
    """Descriptors, and mapped files."""
    maps = Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), maps.count("ftrun-snapshot")


def _next_decree(board: Board) -> int:
    while not (decree := board.wait(0, DEADLINE_S)):
        pass
    return decree


class _Killed(Exception):
    pass


class _Words:
    """An area's header in which the write number ``fails_at`` is the last; 0: all are made."""

    def __init__(self, area: Area) -> None:
        self._header = area._header
        self.count = self.fails_at = 0
        area._header = self  # type: ignore[assignment]

    def __getitem__(self, at: Any) -> Any:
        return self._header[at]

    def __setitem__(self, at: int, value: int) -> None:
        if self.fails_at and self.count == self.fails_at:
            raise _Killed
        self.count += 1
        self._header[at] = value


def test_a_generation_that_is_held_stays_and_the_worker_goes_around_it(memory: GroupMemory) -> None:
    area = memory.area(0)
    area.lay_out(8192, 8192)
    assert area.hold() is None
    for number in range(5):
        write(area, number, step=10 * number)
    held, other = area.hold(), area.hold(30)
    assert held is not None and other is not None
    assert (held.number, held.step, held.head, other.number) == (4, 40, b"head 4", 3)
    before = bytes(held.data)
    for number in range(5, 12):
        write(area, number, step=10 * number)
        assert {x.number for x in area.generations()} >= {number, number - 1}
    assert bytes(held.data) == before and other.head == b"head 3"
    assert bytes(held.front) + bytes(held.state) == before
    held.release()
    other.release()
    other.release()
    for number in range(12, 16):
        write(area, number)
    assert {3, 4}.isdisjoint(x.number for x in area.generations())


def test_more_holders_than_there_is_room_for_cost_a_copy_and_never_the_newest(
    memory: GroupMemory,
) -> None:
    area, large = memory.area(0), pack({"a": torch.zeros(520_000)}).leaves
    area.lay_out(2 << 20, 4096)  # three of them fill the area
    for number in range(3):
        write(area, number, step=10 * number)
    first = area.hold(0)
    assert area.write(3, b"", large, 30, {}, {})  # in place of the last but one
    second = area.hold()
    assert area.write(4, b"", large, 40, {}, {})
    third = area.hold()
    assert first is not None and second is not None and third is not None
    assert (first.number, second.number, third.number) == (0, 3, 4)
    assert not area.write(5, b"", large, 50, {}, {})
    assert area.newest == 4
    first.release()
    assert area.write(5, b"", large, 50, {}, {}) and area.newest == 5


def test_a_group_is_held_at_one_boundary_until_its_holder_dies(memory: GroupMemory) -> None:
    for rank in range(3):
        memory.area(rank).lay_out(8192, 8192)
        write(memory.area(rank), 1, step=10)
    write(memory.area(0), 2, step=20)
    code = """
import sys
from ftrun.snapshots.group_memory import GroupMemory
held = GroupMemory.open(sys.argv[1]).hold()
print(*[one.step for one in held], flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, memory.place]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "10 10 10\n"
        for number in range(2, 8):
            write(memory.area(1), number, step=10 * number)
        assert first_value(memory.area(1), 1) == 1.0
        process.kill()
    for number in range(8, 12):
        write(memory.area(1), number, step=10 * number)
    assert memory.area(1).read(1) is None
    assert memory.hold(50) is None


def test_what_is_received_is_what_was_held(memory: GroupMemory) -> None:
    area, other = memory.area(0), memory.area(1)
    area.lay_out(8192, 8192)
    write(area, 4, step=40)
    held = area.hold()
    assert held is not None
    copy = held.copy()
    with pytest.raises(module.Torn, match="generation 4 is not what was sent"):
        other.receive(copy, lambda data: None)
    assert other.newest == NONE
    mark = Mark(7, 8, 9)
    other.receive(copy, lambda data: data.__setitem__(slice(None), held.data), mark)
    (known,) = other.generations()
    assert first_value(other, 4) == 4.0 and (known.number, known.step) == (4, 40)
    again = other.hold()
    assert held.mark is None and again is not None and known.mark == again.mark == mark
    with pytest.raises(AreaFull, match="no room for a generation of"):
        other.receive(replace(copy, nbytes=ROOM), lambda data: None)


def test_large_bytes_that_a_log_has_are_not_copied_again(memory: GroupMemory) -> None:
    area = memory.area(0)
    area.lay_out(4096, 1 << 20)
    area.open_log(0, 0)
    one = torch.arange(module.LARGE_BYTES // 4, dtype=torch.int32)
    other = one.clone()
    other[100] = -1  # only inside
    for call, tensor in enumerate(
        (one, other, one.clone(), torch.ones(4), one[: one.numel() // 2])
    ):
        area.log(0, GROUP, call, 2, [tensor])
    assert area.log_bytes(0) == 2 * one.nbytes + ALIGNMENT + one.nbytes // 2
    found = [area.find(GROUP, call) for call in range(5)]
    assert [x.data.view(torch.int32)[100].item() for x in found[:3] if x] == [100, -1, 100]
    area.open_log(3, 5)  # in the same place
    area.log(3, GROUP, 5, 2, [one])
    assert area.log_bytes(3) == one.nbytes


def test_logs_share_their_room_and_none_writes_over_another(memory: GroupMemory) -> None:
    area, draws = memory.area(0), random.Random(0)
    area.lay_out(4096, 4096)
    logged: dict[int, dict[int, int]] = {}
    call, full, most = 0, 0, 0
    for number in range(300):
        area.open_log(number, call)
        logged = {x: logged[x] for x in logged if x > number - 3} | {number: {}}
        for _ in range(draws.randrange(12)):
            if draws.random() < 0.2:
                area.drop_logs(number - 2)
                logged = {x: logged[x] for x in logged if x > number - 2}
            size = draws.choice([0, 1, 60, 500, 3000])
            try:
                area.log(
                    number, GROUP, call, 2, [torch.full((size,), call % 251, dtype=torch.uint8)]
                )
            except AreaFull:
                full += 1
                break
            logged[number][call] = size
            call += 1
            for known in logged.values():
                for one, length in known.items():
                    entry = area.find(GROUP, one)
                    assert entry is not None and (entry.data[:length] == one % 251).all()
        most = max(most, area.log_bytes(number))
    assert full > 10, "some do not fit"
    assert most > 1.5 * area.log_room / 3


def test_a_board_takes_the_words_of_a_rank_of_another_node() -> None:
    made = GroupMemory.make(3, 1 << 22, range(1, 2))
    try:
        seen = GroupMemory.open(made.place)
        assert (seen.here, seen.spans, seen.board.ranks) == (range(1, 2), True, 3)
        made.board.rewind(1, {7: 3})
        assert seen.board.all_done() == [{}, {7: 3}, {}]
        assert missing(replace(seen.board.look(), number=5)) == [0, 1, 2]
        made.board.take(RankWords(2, 5, 4, True, 3, 2, (9, 7), (1, 6)))
        assert missing(replace(seen.board.look(), number=5)) == [0, 1]
        assert seen.board.row(2) == RankWords(2, 5, 4, True, 3, 2, (9, 7), (1, 6))
        assert seen.board.row(0) == RankWords(0, 0, 0, False, 0, 0)
        seen.close()
    finally:
        made.close()


def _same(mark: Mark | None) -> Mark | None:
    return mark


def test_a_generation_keeps_its_mark_and_none_is_left_of_another(memory: GroupMemory) -> None:
    area = memory.area(1)
    area.lay_out(8192, 8192)
    leaves = pack({"a": torch.ones(3)}).leaves
    for number in range(4):
        mark = Mark(-3, number, 1 << 62) if number < 2 else None
        area.write(number, b"", leaves, number, {}, {}, mark=partial(_same, mark))
    found = {x.number: x.mark for x in area.generations()}
    assert found == {1: Mark(-3, 1, 1 << 62), 2: None, 3: None}


def test_workers_that_differ_are_found_until_they_may(memory: GroupMemory) -> None:
    leaves = pack({"a": torch.ones(3)}).leaves
    for rank in range(3):
        memory.area(rank).lay_out(8192, 8192)
        for step in range(1, 3):
            digest = step if (rank, step) != (1, 2) else 9
            mark = partial(_same, Mark(5, digest, 0))
            memory.area(rank).write(step, b"", leaves, step, {}, {}, mark=mark)
    assert memory.has_mates()
    assert memory.unlike() == Unlike(2, 1, (1,), (0, 1, 2))
    held = memory.hold()
    assert held is not None and {x.step for x in held} == {1}  # what a disk gets
    memory.board.let_differ()
    assert memory.unlike() is None
    held = memory.hold()
    assert held is not None and {x.step for x in held} == {2}
