"""The slowest worker's step is its group's, and what heals is all of it."""

from __future__ import annotations

from ftrun.core.activity import Activity
from ftrun.core.agent.group_progress import GroupProgress
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import HealProgress, Progress


def progress(
    own_s: float | None, heal: HealProgress | None = None, step_s: float = 1.0
) -> Progress:
    return Progress(5, 5, Activity.STEP, step_s=step_s, own_s=own_s, heal=heal)


def test_the_slowest_worker_is_the_groups() -> None:
    groups = GroupProgress()
    first = progress(0.25, HealProgress(1, 10))
    groups.note(WorkerKey("0", "a", 0), first)
    assert groups.whole("0", "a", first) is first
    groups.note(WorkerKey("0", "a", 1), progress(0.75, HealProgress(2, 10), 1.5))
    whole = groups.whole("0", "a", first)
    assert (whole.own_s, whole.step_s, whole.heal) == (0.75, 1.5, HealProgress(3, 20))
    groups.note(WorkerKey("0", "a", 1), progress(None, HealProgress(2)))
    whole = groups.whole("0", "a", first)
    assert (whole.own_s, whole.heal) == (0.25, HealProgress(3, None))


def test_another_incarnations_workers_are_none_of_this_ones() -> None:
    groups = GroupProgress()
    groups.note(WorkerKey("0", "a", 1), progress(9.0))
    first = progress(0.25)
    groups.note(WorkerKey("0", "b", 0), first)
    assert groups.whole("0", "b", first) is first
    assert groups.whole("0", "a", first) is first


def test_one_that_has_healed_does_not_heal_because_a_mate_does() -> None:
    groups = GroupProgress()
    first = progress(0.25)
    groups.note(WorkerKey("0", "a", 0), first)
    groups.note(WorkerKey("0", "a", 1), progress(0.5, HealProgress(2, 10)))
    assert groups.whole("0", "a", first).heal is None


def test_a_group_waits_in_a_collective_only_if_all_its_workers_wait() -> None:
    groups = GroupProgress()
    first = Progress(5, 5, Activity.COLLECTIVE)
    groups.note(WorkerKey("0", "a", 0), first)
    for phase, whole in (
        (Activity.OUTSIDE, Activity.OUTSIDE),
        (Activity.WAITING, Activity.COLLECTIVE),
        (Activity.COLLECTIVE, Activity.COLLECTIVE),
    ):
        groups.note(WorkerKey("0", "a", 1), Progress(5, 5, phase))
        assert groups.whole("0", "a", first).phase is whole
