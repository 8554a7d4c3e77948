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


@pytest.mark.parametrize("seed", [3_000_088, 3_000_927])
def test_a_survivor_that_stays_ends_in_a_fall(seed: int) -> None:
    """On several nodes too, and with a call logged since the last look."""
    one = world(seed)
    one.run()
    assert "fall  STAYS" in "\n".join(one.story)


@pytest.mark.parametrize("seed", [710_012_239, 720_013_512, 720_015_452, 720_022_008])
def test_each_of_several_replacements_begins_no_log_of_its_own(seed: int) -> None:
    """The third would take the place of one that is needed: these were falls, or lost a step."""
    world(seed).run()


def test_calls_that_cannot_meet_after_a_mend_are_a_fall() -> None:
    name = "makes a call twice"
    with pytest.raises(Violation, match="APART"):
        world(SEEDS[name], name).run()
    with pytest.raises(Violation, match="no fall comes"):
        world(SEEDS[name], f"{name}, and nobody looks").run()


SEEDS = {
    "makes a call twice": 4,
    "makes a call twice, and nobody looks": 4,
    "reads a peer's log without a second look": 13522,
    "chooses its generation late": 9240,
    "connects once": 19,
    "waits for ever for one that lives": 166,
    "begins at its newest generation": 45,
    "begins though the log has a gap": 59,
    "connects before all have published": 69,
    "publishes before it has cut": 37,
    "issues its last call alone again": 3,
    "issues again backwards": 3,
    "takes from the log while it connects": 249,
    "takes from the log what not all have": 5,
    "keeps inputs for ever": 0,
    "keeps the last input only": 0,
    "the first call is what one has": 5,
    "the root of a reduce logs nothing": 1,
    "newcomer writes done in replay": 1,
    "counts before it logs": 9,
    "gives before it logs": 1,
    "the optimizer does not wait for the copy": 37,
    "the first call is read late": 249,
    "publishes in the middle of a call": 4,
    "joins before it has caught up": 1,
    "ends with its own script": 1,
    "takes from the log only at the begin": 1,
    "a generation is whole too early": 166,
    "a replacement empties the log": 30,
    "only the newest generation is kept": 117,
    "one decree for two deaths": 1,
    "a fall is told twice": 3,
    "mended without the dead": 1,
    "rewinds to what one has": 45,
    "keeps the logs at a rewind": 305,
    "keeps newer generations at a rewind": 457,
    "keeps done at a rewind": 3,
    "a replacement starts at once": 3,
    "the first call is what the first member has": 1,
    "one first call for all groups": 9,
    "begins by the calls of all ranks": 45,
    "issues again group by group": 24,
    "is live from then on": 39,
    "drops inputs in all groups": 46,
    "joins when it is back in one group": 1,
    "finds a call by its number": 7,
    "a rank outside of the group logs for it": 77,
    "rewinds all alike": 172,
    "begins at the copy": 1,
    "rewinds to the copy": 59,
    "announces by its own log": 24472,
    "announces the next step": 689,
    "forgets what is due": 2,
    "over is back": 107,
    "chooses before all have told": 36,
    "takes words of an older decree": 7,
    "tells its words once": 4587,
    "forgets early words": 7,
    "others have what it has": 48,
    "others have all before the call": 48,
    "tells done of before": 1672,
    "published comes first": 922,
    "logs gathers as on one node": 39,
    "issues again what it has not kept": 38,
    "keeps nothing of a full log": 33,
    "keeps nothing behind the place": 33,
    "a log begins with what is logged": 15,
    "each replacement begins a log": 700_031_992,
    "begins again without the logs": 59,
    "a log ends too early": 373,
    "rewinds to the oldest": 8,
    "frees a log while a copy is made": 309,
    "keeps nothing where there is room": 0,
    "a rank is replaced time after time": 305,
    "all begin again time after time": 45,
    "gives up what still moves": 1,
    "tells a rank's words once": 0,
    "knows a step ahead": 184,
}
"""The first seed that finds each planted bug."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    world(SEEDS[name]).run()  # without it all is well
    with pytest.raises((Violation, AssertionError)):
        world(SEEDS[name], name).run()
