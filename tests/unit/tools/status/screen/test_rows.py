"""Rows of the table: ranks, folds, filters, stragglers, and what a replica does in a word."""

from __future__ import annotations

import pytest

from ftrun.core.lighthouse.status import ReplicaStatus, Status
from ftrun.tools.status.screen.activity import ORDER, activity, heal_words, name_of
from ftrun.tools.status.screen.rows import Fold, View, build, matching, straggler_limit_s
from tests.unit.tools.status.documents import healing, healthy, hung, thousand


def keys(status: Status, view: View) -> list[str]:
    return [row.key for row in build(status, view)]


def test_few_replicas_have_a_row_each_and_open_to_their_ranks() -> None:
    status, view = healthy(0), View()
    assert keys(status, view) == [f"replica:{n}" for n in range(10)]
    view.flip("replica:1")
    assert keys(status, view)[1:4] == ["replica:1", "replica:1.0", "replica:1.1"]
    view.flip("replica:1")
    assert len(keys(status, view)) == 10


def test_ranks_are_shown_from_the_beginning_if_they_are_few() -> None:
    status = healthy(0, replicas=4)
    assert keys(status, View())[:3] == ["replica:0", "replica:0.0", "replica:0.1"]


def test_a_thousand_are_folded_by_state_with_the_sick_ones_open() -> None:
    rows = build(thousand(0), View())
    found = [(row.key, len(row.group.replicas)) for row in rows if row.group is not None]
    assert found == [
        ("state:backoff", 1),
        ("state:healing", 2),
        ("state:starting", 1),
        ("state:training", 996),
    ]
    open_ones = [row.key for row in rows if row.replica is not None]
    assert open_ones == ["replica:512", "replica:17", "replica:404", "replica:731"]


def test_folds_follow_each_other_and_nodes_are_in_their_order() -> None:
    status, view = thousand(0), View()
    view.next_fold(status)
    assert view.fold is Fold.NODE
    names = [row.group.name for row in build(status, view) if row.group is not None]
    assert len(names) == 125
    assert names[:2] == ["gpu-01", "gpu-02"]
    assert names[-1] == "gpu-125"
    view.next_fold(status)
    assert view.fold is Fold.NONE
    assert len(build(status, view)) == 1000


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("3", ["3"]),
        ("gpu-02", ["1", "6"]),
        ("healing", ["6"]),
        ("HEALING gpu-02", ["6"]),
        ("backoff", ["8"]),
        ("20311", ["0"]),
        ("nothing like it", []),
        ("", [str(n) for n in range(10)]),
    ],
)
def test_a_filter_has_all_its_words(words: str, found: list[str]) -> None:
    assert [x["replica_id"] for x in matching(healing(0)["replicas"], words)] == found


def test_only_a_replica_that_makes_others_wait_is_a_straggler() -> None:
    status = hung(0)
    limit = straggler_limit_s(status)
    assert limit is not None
    assert [x["replica_id"] for x in status["replicas"] if (x["own_s"] or 0) > limit] == ["7"]
    status["replicas"] = status["replicas"][:2]
    assert straggler_limit_s(status) is None


def member(**facts: object) -> ReplicaStatus:
    found = healthy(0)["replicas"][0]
    found |= facts  # type: ignore[typeddict-item]
    return found


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "training 13 min"),
        ({"use": "repairing", "use_s": 0.25}, "repairing 0.2 s"),
        ({"heal": {"done_bytes": 615, "total_bytes": 2_000_000_000}}, "healing 0 % of 2.0 GB"),
        ({"heal": {"done_bytes": 2_500_000, "total_bytes": None}}, "healing 2.5 MB"),
        ({"restart_in_s": 3.4}, "restarts in 3 s"),
        ({"pause": "eval\x1b[31m", "pause_s": 34.0}, "paused: eval [31m 34 s"),
        ({"is_hung": True}, "hung"),
        ({"use": "a use of later", "use_s": 1.0}, "a use of later 1.0 s"),
        ({"phase": "draining"}, "draining 13 min"),
        ({"phase": "given up", "use": "drained"}, "given up 13 min"),
    ],
)
def test_what_a_replica_does_in_words(facts: dict[str, object], words: str) -> None:
    found = activity(member(**facts))
    assert f"{found.words} {found.age}".startswith(words)


def test_every_use_of_the_account_has_a_word() -> None:
    uses = (
        "training", "outside", "waiting", "repairing", "healing", "starting", "backoff",
        "no quorum", "stopped", "absent", "drained", "finished",
    )  # fmt: skip
    assert {name_of(member(use=use)) for use in uses} <= set(ORDER)


def test_a_heal_says_how_much_has_come() -> None:
    assert heal_words({"done_bytes": 5, "total_bytes": 4}) == "100 % of 4 B"
