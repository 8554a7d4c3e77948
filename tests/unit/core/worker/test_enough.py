"""Whether a step that too few contribute to will have enough when it is repeated."""

from __future__ import annotations

from tests.unit.core.worker.step_script import event_of, machine_of


def test_newcomers_that_heal_will_count() -> None:
    machine = machine_of("worker 0 holds 5/A contributors_min=2")
    assert machine.report().contributors_min == 2
    assert not machine.will_be_enough  # in no quorum
    for event in ("boundary", "new quorum 1.1#1 at 5/A: 0 1 newcomers 1", "built 1.1#1"):
        machine.handle(event_of(event), 0.0)
    assert machine.will_be_enough and not machine.is_enough and not machine.tries_again
    machine.handle(event_of("decide no shared"), 0.0)
    machine.handle(event_of("boundary"), 0.0)
    assert machine.is_enough and not machine.will_be_enough and machine.tries_again


def test_members_that_are_too_few_will_not() -> None:
    machine = machine_of("worker 0 holds 5/A contributors_min=3 tells_min=0")
    assert machine.report().contributors_min == 0
    for event in ("boundary", "new quorum 1.1#1 at 5/A: 0 1 newcomers 1", "built 1.1#1"):
        machine.handle(event_of(event), 0.0)
    assert not machine.will_be_enough
