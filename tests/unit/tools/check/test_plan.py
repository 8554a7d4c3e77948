"""Where the runs of ``ftrun check`` kill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftrun.tools.check.plan import EVALUATION, STARTING, TRAINING, WRITING, Kill, plan_of


def seen(
    step: int,
    saves: Sequence[int] = (),
    evaluations: Sequence[int] = (),
    turns: Sequence[int] | None = None,
) -> dict[int, dict[str, Any]]:
    known = {"step": step, "turns": range(step) if turns is None else turns}
    last = {**known, "saves": [], "evaluations": evaluations}
    return {0: {**last, "saves": saves}, 1: last}


def test_both_ends_die_in_training_and_the_first_while_it_writes() -> None:
    plan = plan_of(seen(60, [0, 16, 32, 48], [16, 32, 48]))
    assert plan.training == (Kill(1, TRAINING, 15), Kill(0, WRITING, 32), Kill(0, TRAINING, 45))
    assert plan.evaluations == (Kill(1, EVALUATION, 16), Kill(0, EVALUATION, 32))
    assert plan.writes and not plan.untried


def test_a_whole_turn_follows_that_of_the_last_death() -> None:
    """Seen: who joins within a turn logs losses that it has computed again, by newer models."""
    assert plan_of(seen(15, turns=[0, 4, 6, 8, 10, 13])).training[1] == Kill(0, TRAINING, 9)
    assert plan_of(seen(15, turns=[0, 5, 10])).training[1] == Kill(0, TRAINING, 6), "it is not long"
    assert plan_of(seen(15, turns=[0])).training[1] == Kill(0, TRAINING, 11)


def test_a_save_late_in_the_run_is_the_only_other_death() -> None:
    plan = plan_of(seen(60, [50]))
    assert plan.training == (Kill(1, TRAINING, 15), Kill(0, WRITING, 50))


def test_the_workers_of_one_replica_die_at_the_start_too_and_all_must_end_alike() -> None:
    plan = plan_of(seen(60, [0, 16, 32, 48], [16, 34, 50]), is_group=True)
    assert plan.training == (
        Kill(1, STARTING, 0),
        Kill(1, TRAINING, 15),
        Kill(0, WRITING, 32),
        Kill(0, TRAINING, 45),
        Kill(1, EVALUATION, 50),  # the others are too near to another death
    )
    assert not plan.evaluations


def test_a_node_is_lost_early_because_each_step_waits_for_the_status_until_then() -> None:
    assert plan_of(seen(60), is_group=True, loses=True).loss == range(8, 59)
    assert plan_of(seen(8), is_group=True, loses=True).loss == range(2, 7)
    assert not plan_of(seen(2), is_group=True, loses=True).loss
    assert not plan_of(seen(60), is_group=True).loss


def test_what_does_not_come_up_is_said() -> None:
    plan = plan_of(seen(60))
    assert plan.training == (Kill(1, TRAINING, 15), Kill(0, TRAINING, 45))
    assert [x.partition(":")[0] for x in plan.untried] == [
        "while a file is written",
        "in an evaluation",
    ]
    assert not plan.writes


def test_a_run_of_a_few_steps() -> None:
    assert plan_of(seen(2)).training == ()
    assert plan_of(seen(3)).training == (Kill(1, TRAINING, 1),)
    assert plan_of(seen(6)).training == (Kill(1, TRAINING, 1), Kill(0, TRAINING, 4))


def test_of_several_workers_one_dies_once() -> None:
    plan = plan_of(seen(60, [0, 16, 32, 48], [16, 32, 48]), once=True)
    assert plan.training == (Kill(1, TRAINING, 15),) and not plan.evaluations
    assert plan.untried == ("of replica 0, in an evaluation or while a file is written",)


def test_evaluations_in_each_step_are_apart() -> None:
    assert [x.step for x in plan_of(seen(20, (), range(20))).evaluations] == [1, 4]
