"""When all nodes' parts of a snapshot are there; random lives of nodes are in tests/sim."""

from __future__ import annotations

from ftrun.core.replay.parts import Parts


def test_all_that_were_asked_must_have_written() -> None:
    parts = Parts("draft", 5)
    assert not parts.is_over
    assert parts.ask(["a", "b"]) == ["a", "b"]
    parts.answered("a", "draft")
    parts.answered("b", "another draft")
    parts.answered("c", "draft")
    assert not parts.is_over
    parts.answered("b", "draft")
    assert parts.is_over and parts.why_not is None and parts.damaged is None


def test_one_that_cannot_write_or_is_lost_spoils_it_once_all_have_answered() -> None:
    parts = Parts("draft", 5)
    parts.ask(["a", "b", "c"])
    parts.answered("b", "draft", "the disk is full")
    parts.gone("c")
    parts.gone("d")
    assert not parts.is_over, "a still writes"
    parts.answered("a", "draft")
    assert parts.is_over and parts.why_not == ("b", "the disk is full")


def test_what_a_lost_node_has_written_is_of_no_use() -> None:
    parts = Parts("draft", 5)
    parts.ask(["a", "b"])
    parts.answered("b", "draft")
    parts.gone("b")
    parts.answered("a", "draft")
    assert parts.is_over and parts.why_not == ("b", "it is lost")


def test_a_node_that_comes_for_a_lost_one_reads_too() -> None:
    parts = Parts("snapshot", 5, is_read=True)
    parts.ask(["a", "b"])
    parts.answered("a", "snapshot")
    parts.gone("b")
    assert not parts.is_over and parts.why_not is None
    assert parts.ask(["a", "c"]) == ["c"]
    parts.answered("c", "snapshot", "x.distcp is not what was written", is_damaged=True)
    assert parts.is_over and parts.damaged == ("c", "x.distcp is not what was written")
    assert parts.why_not is None
