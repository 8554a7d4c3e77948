"""The history of changes: bounded."""

from __future__ import annotations

from ftrun.core.books.history import History
from ftrun.core.ids import Attempt, pack_quorum_id
from ftrun.core.quorum import Endpoint, Member, Quorum

CHANGES_MAX = 3
QUORUM = Quorum(
    Attempt(pack_quorum_id(1, 2), 1),
    (Member("0", "a", (Endpoint("h", "h:1"),), "s:1"),),
    "s:1",
    step=7,
)


def test_a_change_lasts_until_it_has_led_to_a_quorum() -> None:
    history = History(CHANGES_MAX)
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
    history = History(CHANGES_MAX)
    for number in range(20):
        history.begin(float(number), "retry", f"reason {number}")
    (change,) = history.changes
    assert change.reasons == ["reason 0", "reason 1", "reason 2", "reason 3"]
    history.complete(20.0, None, "given up")
    assert change.reasons[-1] == "given up"
    for number in range(20):
        history.begin(float(number), "switch", "more")
        history.complete(float(number), QUORUM)
    assert len(history.changes) == CHANGES_MAX


def test_nothing_is_completed_twice() -> None:
    history = History(CHANGES_MAX)
    history.complete(1.0, QUORUM)
    assert not history.changes
