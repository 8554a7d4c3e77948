"""Words for people that many notices have."""

from __future__ import annotations

from ftrun.core.lighthouse.words import replicas, sentence


def test_replicas_for_people() -> None:
    assert replicas([]) == "no replica"
    assert replicas(["3"]) == "replica 3"
    assert replicas({"10", "9", "1"}) == "replicas 1, 9 and 10"
    assert replicas([str(n) for n in range(12)]) == "12 replicas (0 to 11)"
    assert sentence("replica 1 lost") == "Replica 1 lost"
    assert sentence("") == ""
