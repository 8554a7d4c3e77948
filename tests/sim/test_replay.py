"""Schedules of a group that recovers without replicas, and proof that they would find bugs."""

from __future__ import annotations

import pytest

from ftrun.core.replay.falls import Fall
from tests.sim.replay.mutants import MUTANTS, world
from tests.sim.violation import Violation

SCHEDULES = 200


def test_a_recovery_ends_as_an_undisturbed_run_or_falls_for_a_reason() -> None:
    mends, falls = 0, set[Fall | None]()
    for seed in range(SCHEDULES):
        one = world(seed)
        one.run()
        mends += one.mends
        falls.add(one.reason)
    assert mends > SCHEDULES / 2
    assert {None, Fall.NO_GENERATION} < falls


SEEDS = {
    "announces the next step": 609,
    "forgets what is due": 2,
    "drops inputs while it connects": 11632,
    "reads a peer's log without a second look": 13764,
    "chooses its generation late": 3701,
    "connects once": 19,
    "begins at its newest generation": 45,
    "begins though the log has a gap": 122,
    "connects before all have published": 33,
    "publishes before it has cut": 9,
    "issues its last call alone again": 1,
    "issues again backwards": 1,
    "takes from the log while it connects": 748,
    "takes from the log what not all have": 1,
    "keeps inputs for ever": 0,
    "keeps the last input only": 0,
    "the first call is what one has": 1,
    "the root of a reduce logs nothing": 10,
    "newcomer writes done in replay": 1,
    "logs a call twice": 140,
    "counts before it logs": 9,
    "gives before it logs": 1,
    "the optimizer does not wait for the copy": 45,
    "the log is opened late": 81,
    "the first call is read late": 124,
    "publishes in the middle of a call": 143,
    "joins before it has caught up": 1,
    "ends with its own script": 42,
    "takes from the log only at the begin": 1,
    "a generation is whole too early": 26,
    "a replacement empties the log": 30,
    "logs on after a gap": 2076,
    "only the newest generation is kept": 338,
    "one decree for two deaths": 1,
    "a fall is told twice": 3,
    "mended without the dead": 1,
    "rewinds to what one has": 122,
    "keeps the logs at a rewind": 3,
    "keeps newer generations at a rewind": 535,
    "keeps done at a rewind": 3,
    "the dead are over": 237,
    "keeps over at a rewind": 971,
    "a replacement starts at once": 3,
}
"""The first seed that finds each planted bug."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    world(SEEDS[name]).run()  # without it all is well
    with pytest.raises((Violation, AssertionError)):
        world(SEEDS[name], name).run()
