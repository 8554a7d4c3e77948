"""How the words of ranks come to other nodes, and what is known of these without words."""

from __future__ import annotations

from dataclasses import replace

from ftrun.core.replay.mirroring import Elsewhere, Mirror, RankWords, has_all
from ftrun.core.replay.settling import Board


def row(rank: int, published: int = 0, done: int = 0, *, over: bool = False) -> RankWords:
    return RankWords(rank, published, 0, over, 0, 0, (7,), (done,))


def test_only_changes_are_sent_and_calls_are_none() -> None:
    mirror = Mirror((0, 1))
    assert mirror.news([row(0), row(1)]) == [row(0), row(1)]
    assert mirror.news([row(0, done=5), row(1, done=9)]) == []
    assert mirror.news([row(0, 1, 5), row(1, done=9)]) == [row(0, 1, 5)]
    assert mirror.news([row(0, 1, 6), row(1, done=9, over=True)]) == [row(1, done=9, over=True)]


def test_at_a_decree_all_are_sent_again() -> None:
    mirror = Mirror((0, 1))
    mirror.news([row(0, 1), row(1)])
    assert mirror.raised(2) == []
    assert mirror.news([row(0, 1), row(1)]) == [row(0, 1), row(1)]


def test_words_count_for_the_decree_in_force_only() -> None:
    mirror = Mirror((0,), 3)
    assert mirror.came(3, [row(0, 3), row(1, 3)]) == [row(1, 3)], "its own are the truth here"
    assert mirror.came(2, [row(1, 2)]) == []
    assert mirror.came(4, [row(1, 4), row(2, 4)]) == []
    assert mirror.came(5, [row(2, 5)]) == []
    assert mirror.raised(4) == [row(1, 4)]
    assert mirror.raised(5) == [row(2, 5)]
    assert mirror.raised(6) == []


def test_a_replacement_waits_for_all_that_can_still_tell() -> None:
    board = Board(2, [2, 2, 1], [{}, {}, {}], [False, False, False])
    assert not has_all(board)
    assert has_all(replace(board, over=[False, False, True])), "it may have left"
    assert has_all(replace(board, published=[2, 2, 2]))


def test_a_call_of_all_shows_what_others_have() -> None:
    known = Elsewhere()
    known.begins(0, 0)
    known.completes(0)
    assert known.logged == 0
    for call, awaited in ((1, 1), (2, 1), (3, 1), (4, 4)):
        known.begins(call, awaited)
    known.completes(4)
    assert known.logged == 2, "two were under way at a time"
    known.step_begins(5)
    assert known.logged == 2
    known.begins(5, 5)
    known.step_begins(6)
    assert known.logged == 5, "in the step that has ended all have met"
