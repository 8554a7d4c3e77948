"""A step's own part is what is left of it without the waits, whatever made the thread wait."""

from __future__ import annotations

import pytest

from ftrun.core.activity import Activity, Pause
from ftrun.core.messages import HealProgress
from ftrun.core.worker import events as e
from ftrun.core.worker.machine import StepMachine
from ftrun.core.worker.pace import STEPS_KEPT, Pace
from tests.unit.core.worker import alike
from tests.unit.core.worker.step_script import event_of, machine_of


def run(lines: list[tuple[float, str]], first: str = "worker 0 holds 5/A") -> StepMachine:
    """A machine after these events."""
    machine = machine_of(first)
    for now, text in lines:
        alike.handle(machine, event_of(text), now)
    return machine


def step(began: float, computed: float, reduced: float, ended: float) -> list[tuple[float, str]]:
    """One step: its reduction is issued, is complete, and the step is committed."""
    return [
        (began, "boundary"),
        (computed, "issue"),
        (reduced, "done 1.5#1 0"),
        (ended, "decide commit"),
    ]


FORMED = [(0.0, "boundary"), (0.0, "new quorum 1.5#1 at 5/A: 0 1 2"), (1.0, "built 1.5#1")]


def test_the_first_step_is_measured_from_the_first_commit_on() -> None:
    machine = run([*FORMED, *step(1.0, 2.0, 3.0, 4.0)[1:]])
    assert (machine.pace.step_s, machine.pace.own_s) == (None, None)
    for now, text in step(4.5, 5.0, 7.5, 8.0):
        alike.handle(machine, event_of(text), now)
    assert (machine.pace.step_s, machine.pace.own_s) == (4.0, 1.5)


def test_a_replica_that_comes_last_has_waited_for_nobody() -> None:
    machine = run([*FORMED, *step(1.0, 2.0, 3.0, 4.0)[1:], *step(4.0, 7.9, 7.9, 8.0)])
    assert (machine.pace.step_s, machine.pace.own_s) == (4.0, 4.0)


def test_buckets_of_a_batch_are_computed_while_the_first_ones_are_on_their_way() -> None:
    batch = [
        (4.0, "boundary"),
        (5.0, "issue batched"),
        (5.5, "done 1.5#1 0"),
        (6.0, "issue batched closes"),
        (7.0, "done 1.5#1 1"),
        (8.0, "decide commit"),
    ]
    machine = run([*FORMED, *step(1.0, 2.0, 3.0, 4.0)[1:], *batch])
    assert (machine.pace.step_s, machine.pace.own_s) == (4.0, 3.0)


def test_a_wait_for_the_mates_vote_is_none_of_its_own() -> None:
    first = [(2.0, "issue"), (3.0, "done 1.5#1 0"), (3.0, "vote"), (4.0, "decide commit")]
    second = [(4.0, "boundary"), (5.0, "issue"), (6.0, "done 1.5#1 0"), (6.5, "vote")]
    lines = [*FORMED, *first, *second, (7.5, "decide commit")]
    machine = run(lines, "worker 0 holds 5/A workers=2")
    assert (machine.pace.step_s, machine.pace.own_s) == (3.5, 1.5)


@pytest.mark.parametrize(
    "event", ["interrupt 1.5#1", "pause", "decide no"], ids=["interrupt", "pause", "discarded"]
)
def test_what_is_no_plain_step_is_left_out(event: str) -> None:
    machine = run([*FORMED, *step(1.0, 2.0, 3.0, 4.0)[1:], *step(4.0, 5.0, 6.0, 7.0)])
    assert machine.pace.step_s == 3.0
    alike.handle(machine, event_of("boundary"), 7.0)
    if event == "pause":
        machine.handle(e.Ticked(Pause("eval", 7.5)), 8.0)
        for now, text in step(0.0, 50.0, 60.0, 70.0)[1:]:
            alike.handle(machine, event_of(text), now)
    else:
        alike.handle(machine, event_of("issue"), 8.0)
        alike.handle(machine, event_of(event), 70.0)
    assert (machine.pace.step_s, machine.pace.own_s) == (3.0, 2.0)


def test_one_long_step_among_many_does_not_show() -> None:
    pace = Pace()
    for now in range(STEPS_KEPT):
        pace.committed(float(now))
    pace.committed(900.0)
    assert pace.step_s == 1.0


def test_the_own_part_is_not_known_where_a_device_runs_behind_its_host() -> None:
    pace = Pace(is_known_when_issued=False)
    pace.committed(0.0)
    pace.waits(1.0)
    pace.committed(3.0)
    assert (pace.step_s, pace.own_s) == (3.0, None)


def test_a_heal_is_reported_as_it_goes_on_and_not_at_each_tick() -> None:
    machine = run(
        [(0.0, "boundary"), (0.0, "new quorum 1.5#1 at 7/B: 0 1 newcomers 0"), (0.0, "built 1.5#1")]
    )
    shown = []
    for tick in range(41):
        now, came = tick / 10, HealProgress(tick // 8, 6)
        found = machine.handle(e.Ticked(heal=came), now)
        if any(isinstance(instruction, e.ShowProgress) for instruction in found):
            shown.append((now, came.done_bytes))
    assert shown == [(0.0, 0), (0.8, 1), (1.6, 2), (2.4, 3), (3.2, 4), (4.0, 5)]
    quick = [
        now
        for now in range(10, 30)
        if machine.handle(e.Ticked(heal=HealProgress(now, 60)), now / 10 + 4.0)
    ]
    assert quick == [10, 15, 20, 25]


def test_a_wait_in_the_scripts_collective_is_reported_again_and_again() -> None:
    """Between two steps and in one; its length is that over all tries of the collective."""
    machine = run([*FORMED, *step(1.0, 2.0, 3.0, 4.0)[1:]])
    waits = Pause("barrier at train.py:9", 5.0)
    for began, event in ((8.0, "tick"), (21.0, "boundary")):
        alike.handle(machine, event_of(event), began)
        shown = []
        for now in range(int(began), int(began) + 12):
            found = machine.handle(e.Ticked(collective=waits), float(now))
            shown += [(now, x) for x in found if isinstance(x, e.ShowProgress)]
        assert [now - int(began) for now, _ in shown] == [0, 5, 10]
        assert {x.activity for _, x in shown} == {Activity.COLLECTIVE}
        assert [x.since_s for _, x in shown] == [now - 5.0 for now, _ in shown]
        alike.handle(machine, e.Ticked(), began + 12)
        assert machine.activity()[0] is not Activity.COLLECTIVE
