"""The chronicle: bounded, and worded for people."""

from __future__ import annotations

from ftrun.core.ids import Attempt, pack_quorum_id
from ftrun.core.lighthouse.events import LighthouseSettings
from ftrun.core.lighthouse.history import History, replicas, sentence
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.quorum import Endpoint, Member, Quorum

SETTINGS = LighthouseSettings(changes_max=3, story_lines_max=2)
QUORUM = Quorum(
    Attempt(pack_quorum_id(1, 2), 1),
    (Member("0", "a", (Endpoint("h", "h:1"),), "s:1"),),
    "s:1",
    step=7,
)


def test_a_change_lasts_until_it_has_led_to_a_quorum() -> None:
    history = History(SETTINGS)
    history.begin(10.0, "retry", "replica 0: connection reset")
    history.begin(10.2, "shrink", "replica 1: killed")
    change = history.under_way
    assert change is not None
    assert change.view(10.5)["under_way"]
    history.complete(11.0, QUORUM)
    assert history.under_way is None
    assert change.view(20.0) == {
        "kind": "shrink",
        "cost_s": 0.0,
        "reason": "replica 0: connection reset; replica 1: killed",
        "quorum": "1.2",
        "members": ["0"],
        "step": 7,
        "ago_s": 10.0,
        "duration_s": 1.0,
        "under_way": False,
    }


def test_reasons_and_changes_are_bounded() -> None:
    history = History(SETTINGS)
    for number in range(20):
        history.begin(float(number), "retry", f"reason {number}")
    (change,) = history.changes
    assert change.reasons == ["reason 0", "reason 1", "reason 2", "reason 3"]
    history.complete(20.0, None, "given up")
    assert change.reasons[-1] == "given up"
    for number in range(20):
        history.begin(float(number), "switch", "more")
        history.complete(float(number), QUORUM)
    assert len(history.changes) == 3


def test_nothing_is_completed_twice() -> None:
    history = History(SETTINGS)
    history.complete(1.0, QUORUM)
    assert not history.changes


def test_a_story_has_the_last_lines_of_one_replica() -> None:
    history = History(SETTINGS)
    for number in range(5):
        history.note(float(number), "0", Phase.STEADY, f"line {number}")
    history.note(9.0, "1", Phase.STEADY, "another's")
    assert history.story("0") == ["3.000 steady: line 3", "4.000 steady: line 4"]
    assert history.story("7") == []


def test_replicas_for_people() -> None:
    assert replicas([]) == "no replica"
    assert replicas(["3"]) == "replica 3"
    assert replicas({"10", "9", "1"}) == "replicas 1, 9 and 10"
    assert replicas([str(n) for n in range(12)]) == "12 replicas (0 to 11)"
    assert sentence("replica 1 lost") == "Replica 1 lost"
    assert sentence("") == ""
