"""What the agent does about a death in a group whose state is in its memory."""

from __future__ import annotations

from math import inf

from ftrun.core.replay.afterwards import Apart, Waits
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.mending import (
    DEATHS_MAX,
    LIVING,
    SOUND,
    TRIES_MAX,
    Decree,
    Mended,
    Mending,
)
from ftrun.core.replay.settling import Board, Generation

PLACE = Generation(3, 30)
NONE = [0, 0, 0]


def board(number: int, published: list[int], over: tuple[bool, ...] = (False,) * 3) -> Board:
    return Board(number, published, [{0: 30}] * 3, over)


def test_each_death_is_a_decree_and_all_together_one_mend() -> None:
    mending = Mending(60.0)
    assert mending.look(board(0, [0, 0, 0]), NONE, NONE, 0.0) is None
    assert mending.counts(1)
    assert mending.died(1, PLACE, 1.0) == Decree(1)
    assert not mending.counts(2), "the first death of another rank is of the same restart"
    assert mending.counts(1), "a replacement has died"
    assert mending.died(2, PLACE, 1.5) == Decree(2)
    assert mending.look(board(2, [2, 2, 2]), [2, 1, 2], NONE, 2.0) is None
    assert mending.look(board(2, [2, 2, 2]), [2, 2, 2], NONE, 3.0) == Mended(2.0)
    assert not mending.is_under_way
    assert mending.counts(2)


def test_whose_script_is_over_joins_too_unless_all_are_over() -> None:
    mending = Mending(60.0)
    mending.died(1, PLACE, 1.0)
    words = board(1, [1, 1, 1], (False, True, False))
    assert mending.look(words, [1, 0, 1], NONE, 2.0) is None
    assert mending.look(words, [1, 0, 1], NONE, 2.0, [0, 1, 0]) == Decree(2), "it could not"
    words = board(2, [2, 2, 2], (True, True, True))
    assert mending.look(words, [1, 0, 1], NONE, 3.0) == Mended(2.0)


def test_what_cannot_be_mended_falls_once() -> None:
    mending = Mending(60.0)
    assert mending.died(1, Fall.LOG_FULL, 1.0) is Fall.LOG_FULL
    assert mending.fallen is Fall.LOG_FULL
    assert mending.died(2, PLACE, 1.5) is None
    assert mending.look(board(0, NONE), NONE, [0, 4, 0], 2.0) is None


def test_a_process_asks_for_a_fall() -> None:
    mending = Mending(60.0)
    mending.died(1, PLACE, 1.0)
    assert mending.look(board(1, [1, 1, 1]), NONE, [0, Fall.INPUT, 0], 2.0) is Fall.INPUT


def test_replacements_that_die_again_and_again() -> None:
    mending = Mending(60.0)
    for number in range(DEATHS_MAX):
        assert mending.died(1, PLACE, 1.0) == Decree(number + 1)
    assert mending.died(1, PLACE, 1.0) is Fall.DIES_AGAIN
    assert mending.rewind(29, 3, 2.0) == Decree(DEATHS_MAX + 1), "all begin from what they have"
    for _ in range(DEATHS_MAX):
        assert isinstance(mending.died(1, PLACE, 3.0), Decree)
    assert mending.died(1, PLACE, 3.0) is Fall.DIES_AGAIN
    assert mending.rewind(29, 3, 4.0) is None, "once"


def test_who_waits_for_a_replacement_waits_so_long() -> None:
    mending = Mending(60.0)
    mending.died(1, PLACE, 1.0)
    assert mending.look(board(1, [1, 0, 1]), NONE, NONE, 50.0) is None  # it has moved
    assert mending.look(board(1, [1, 0, 1]), NONE, NONE, 109.0) is None
    assert mending.look(board(1, [1, 0, 1]), NONE, NONE, 110.0) is Fall.LATE


def test_a_survivor_may_compute_for_longer_but_not_for_ever() -> None:
    mending = Mending(60.0)
    mending.died(1, PLACE, 1.0)
    words = board(1, [1, 0, 0])
    for now in (50.0, 200.0, 49.0 + 60.0 * LIVING):
        assert mending.look(words, NONE, NONE, now) is None
    assert mending.staying(words) == [2]
    assert mending.look(words, NONE, NONE, 50.0 + 60.0 * LIVING) is Fall.STAYS
    assert mending.rewind(30, 3, 400.0) == Decree(2), "its memory is sound"


def test_once_a_survivor_has_left_its_group_the_limit_is_the_usual_one() -> None:
    mending = Mending(60.0)
    mending.died(1, PLACE, 1.0)
    assert mending.look(board(1, [1, 0, 0]), NONE, NONE, 200.0) is None
    assert mending.look(board(1, [1, 0, 1]), NONE, NONE, 261.0) is None
    assert mending.look(board(1, [1, 0, 1]), NONE, NONE, 321.0) is Fall.LATE


def test_after_a_fall_all_are_replaced_once_from_the_boundary_that_all_have() -> None:
    mending = Mending(60.0)
    mending.died(1, Fall.LOG_FULL, 1.0)
    assert mending.rewind(30, 3, 5.0) == Decree(1)
    assert mending.fallen is None
    assert mending.counts(2), "each is being replaced"
    assert mending.look(board(1, [0, 0, 0]), NONE, NONE, 64.0) is None
    assert mending.died(2, Fall.OTHER_CALL, 66.0) is Fall.OTHER_CALL
    assert mending.rewind(30, 3, 67.0) is None, "one is enough"


def test_a_step_that_took_another_way_is_not_gone_on_from() -> None:
    """Something that no generation has decides which calls it makes."""
    for fall, is_sound in ((Fall.OTHER_INPUT, True), (Fall.OTHER_CALL, False)):
        mending = Mending(60.0)
        mending.died(1, PLACE, 1.0)
        assert mending.look(board(1, [1, 0, 1]), NONE, [0, fall, 0], 2.0) is fall
        assert mending.can_rewind is is_sound
        assert (mending.rewind(30, 3, 5.0) is not None) is is_sound


def test_what_a_restarted_group_has_left_is_sound_by_the_same_rule() -> None:
    mending = Mending(60.0, replicas=2, rejoin_s=5.0)
    assert mending.sound_until == inf, "it was restarted for another reason"
    for fall in Fall:
        mending = Mending(60.0, replicas=2, rejoin_s=5.0)
        mending.died(1, PLACE, 1.0)
        assert mending.look(board(1, [1, 0, 1]), NONE, [0, fall, 0], 2.0) is fall
        assert not mending.can_rewind, "it is restarted, because others may hold a newer state"
        if fall is not Fall.APART:
            assert mending.sound_until == (inf if fall in SOUND else -1)
    assert {Fall.OTHER_CALL, Fall.SCRIPT, Fall.UNLIKE}.isdisjoint(SOUND)


def test_a_replacement_that_never_comes_is_late_after_a_rewind_too() -> None:
    mending = Mending(60.0)
    mending.died(1, Fall.LOG_FULL, 1.0)
    mending.rewind(30, 3, 5.0)
    assert mending.look(board(1, [0, 1, 1]), NONE, NONE, 6.0) is None
    assert mending.look(board(1, [0, 1, 1]), NONE, NONE, 66.0) is Fall.LATE


def test_the_next_mend_may_rewind_again() -> None:
    mending = Mending(60.0)
    mending.died(1, Fall.LOG_FULL, 1.0)
    mending.rewind(30, 3, 5.0)
    assert mending.look(board(1, [1, 1, 1]), [1, 1, 1], NONE, 6.0) == Mended(5.0)
    mending.died(1, Fall.LOG_FULL, 7.0)
    assert mending.rewind(40, 3, 8.0) == Decree(2)


def test_when_the_group_is_restarted_instead() -> None:
    mending = Mending(60.0)
    mending.died(1, Fall.LOG_FULL, 1.0)
    assert mending.rewind(None, 3, 5.0) is None
    other = Mending(60.0)
    other.died(1, Fall.CALL, 1.0)
    assert other.rewind(30, 3, 5.0) is None


def test_a_group_that_cannot_be_connected_is_tried_again_so_often() -> None:
    mending = Mending(60.0)
    mending.died(1, PLACE, 1.0)
    words = board(1, [1, 1, 1])
    assert mending.look(words, NONE, NONE, 2.0, [0, 0, 0]) is None
    for number in range(TRIES_MAX):
        assert mending.look(words, NONE, NONE, 2.0, [0, number + 1, 0]) == Decree(number + 2)
    last = TRIES_MAX + 1
    assert mending.look(words, NONE, NONE, 3.0, [0, last, 0]) is None
    assert mending.look(words, NONE, NONE, 63.0, [0, last, 0]) is Fall.LATE


def of_two(rejoin_s: float = 5.0) -> Mending:
    return Mending(60.0, replicas=2, rejoin_s=rejoin_s)


def test_after_a_mend_that_was_late_the_next_death_is_a_restart() -> None:
    mending = of_two()
    assert mending.died(1, PLACE, 10.0) == Decree(1)
    assert not mending.is_late(14.9), "the others still wait"
    assert mending.is_late(15.0), "it restarts because they have gone on"
    mending.look(board(1, [1, 1, 1]), [1, 1, 1], NONE, 15.5)
    assert mending.is_late(16.0), "it was over when that was known here"
    mending = Mending(60.0, replicas=2, rejoin_s=5.0, was_late=True)
    assert mending.died(1, PLACE, 100.0) is Fall.SLOW
    assert not mending.is_late(200.0), "nobody has waited"
    assert of_two().died(1, PLACE, 300.0) == Decree(1), "the one after it is tried again"


def test_a_worker_of_one_of_several_replicas_is_replaced_once_in_a_step() -> None:
    for mends in (False, True):
        mending = of_two()
        assert mending.died(1, PLACE, 1.0, reached=7) == Decree(1)
        assert mending.died(2, PLACE, 1.1, reached=7) == Decree(2), "another worker"
        if mends:
            assert isinstance(mending.look(board(2, [2, 2, 2]), [2, 2, 2], NONE, 2.0), Mended)
        assert mending.died(1, PLACE, 3.0, reached=7 - (not mends)) is Fall.SAME_STEP
    mending = of_two()
    mending.died(1, PLACE, 1.0, reached=7)
    mending.look(board(1, [1, 1, 1]), [1, 1, 1], NONE, 2.0)
    assert mending.died(1, PLACE, 3.0, reached=8) == Decree(2), "it has made a step"


def test_many_replicas_wait_as_two_do() -> None:
    assert Mending(60.0, replicas=16, rejoin_s=5.0).died(1, PLACE, 1.0) == Decree(1)


def test_a_replica_that_has_others_is_not_rewound_but_restarted() -> None:
    mending = of_two()
    mending.died(1, Fall.LOG_FULL, 1.0)
    assert not mending.can_rewind
    assert mending.rewind(30, 3, 5.0) is None


def test_a_script_with_a_long_set_up_restarts_its_replica() -> None:
    """The others would wait in vain: they go on without it after a while."""
    assert of_two().died(1, PLACE, 1.0, 4.9) == Decree(1)
    assert of_two().died(1, PLACE, 1.0, 5.0) is Fall.SLOW
    assert of_two().died(1, Fall.CALL, 1.0, 5.0) is Fall.CALL, "that is the reason"
    assert Mending(60.0).died(1, PLACE, 1.0, 5.0) == Decree(1), "no others go on without it"


def watched() -> Mending:
    """One that is mended, with a look at whether all go on."""
    mending = Mending(60.0, hang_s=20.0)
    mending.died(1, PLACE, 1.0)
    words = board(1, [1, 1, 1])
    assert mending.look(words, [1, 1, 1], NONE, 2.0, (), (30, 30, 30)) == Mended(1.0)
    assert mending.is_watched
    return mending


def waits(*calls: int) -> list[Waits | None]:
    return [Waits(0, call, "allreduce", 4, 0.1) for call in calls]


def apart(mending: Mending, now: float) -> None:
    """Its workers wait in calls that cannot meet."""
    words = board(mending.number, [mending.number] * 3)
    assert mending.look_after(words, (30, 30, 30), waits(5, 6, 6), now) is None
    found = mending.look_after(words, (30, 30, 30), waits(5, 6, 6), now + 20.0)
    assert isinstance(found, Apart) and found.group == 0
    assert mending.fallen is Fall.APART and not mending.is_watched


def test_after_a_mend_from_which_nobody_goes_on_all_begin_again_once() -> None:
    mending = watched()
    apart(mending, 10.0)
    assert mending.rewind(30, 3, 31.0) == Decree(2)
    words = board(2, [2, 2, 2])
    assert mending.look(words, [2, 2, 2], NONE, 32.0, (), (30, 30, 30)) == Mended(31.0)
    apart(mending, 40.0)
    assert mending.rewind(30, 3, 61.0) is None, "it comes to the same"


def test_what_was_computed_after_such_a_mend_is_not_gone_on_from() -> None:
    mending = watched()
    apart(mending, 10.0)
    assert mending.sound_until == 30
    assert mending.rewind(31, 3, 31.0) is None


def test_once_all_have_gone_on_nobody_looks_any_more() -> None:
    mending = watched()
    words = board(1, [1, 1, 1])
    assert mending.look_after(words, (31, 32, 32), waits(-1, -1, -1), 10.0) is None
    assert mending.is_watched, "one is in the step that was under way"
    mending.died(2, PLACE, 11.0)
    assert not mending.is_watched, "another mend is under way"
    again = board(2, [2, 2, 2])
    assert mending.look(again, [2, 2, 2], NONE, 12.0, (), (32, 32, 32)) == Mended(1.0)
    assert mending.look_after(again, (34, 34, 34), waits(-1, -1, -1), 13.0) is None
    assert not mending.is_watched
    mending.died(2, PLACE, 14.0)
    assert mending.look(board(3, [3] * 3), [3] * 3, NONE, 15.0, (), (40, 40, 40)) == Mended(1.0)
    apart(mending, 16.0)
    assert mending.rewind(40, 3, 37.0) == Decree(4), "of the mend that was right nothing is left"


def test_without_a_limit_for_hangs_nobody_looks() -> None:
    mending = Mending(60.0)
    mending.died(1, PLACE, 1.0)
    assert mending.look(board(1, [1, 1, 1]), [1, 1, 1], NONE, 2.0) == Mended(1.0)
    assert not mending.is_watched


def test_what_is_copied_after_a_mend_is_sound_once_all_have_gone_on() -> None:
    """The others give up a replica that hangs after a mend: its calls may not have met."""
    mending = Mending(60.0, replicas=2, rejoin_s=5.0, hang_s=60.0)
    assert mending.sound_until == inf
    mending.died(1, PLACE, 1.0, reached=8)
    words = board(1, [1, 1, 1])
    assert mending.look(words, [1, 1, 1], NONE, 2.0, steps=[9, 8, 9]) == Mended(1.0)
    assert mending.sound_until == 8
    mending.look_after(words, [11, 10, 11], [None] * 3, 3.0)
    assert mending.sound_until == inf
