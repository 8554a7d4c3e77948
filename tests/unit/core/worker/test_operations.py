"""The ledger of one step's reductions, compared with a simple oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.core.worker.operations import OperationLedger
from tests.suite.properties import examples


def issued(*kinds: str) -> OperationLedger:
    """``plain``, ``batched``, or ``closes``: the last one of its batch."""
    ledger = OperationLedger()
    for kind in kinds:
        ledger.issue(kind != "plain", kind == "closes")
    return ledger


def test_indices_are_in_the_order_of_issue() -> None:
    ledger = OperationLedger()
    assert [ledger.issue(False, False) for _ in range(3)] == [0, 1, 2]


def test_a_step_without_operations_is_complete() -> None:
    ledger = OperationLedger()
    assert ledger.complete and ledger.untouched and ledger.all_handed and not ledger.outstanding


def test_plain_operations_are_handed_out_one_by_one() -> None:
    ledger = issued("plain", "plain")
    assert ledger.finish(1) and ledger.take_ready() == (1,)
    assert ledger.take_ready() == ()
    assert not ledger.untouched and ledger.outstanding and not ledger.complete
    assert ledger.finish(0) and ledger.take_ready() == (0,)
    assert ledger.complete and ledger.all_handed


def test_a_batch_is_handed_out_as_a_whole() -> None:
    ledger = issued("batched", "batched")
    assert ledger.finish(0) and ledger.finish(1)
    assert not ledger.outstanding
    assert not ledger.complete, "more of the batch is to come"
    assert ledger.take_ready() == ()
    ledger.issue(batched=True, closes=True)
    assert ledger.take_ready() == ()
    assert ledger.finish(2) and ledger.take_ready() == (0, 1, 2)


def test_a_batch_does_not_hold_up_plain_operations() -> None:
    ledger = issued("batched", "plain", "closes")
    assert ledger.finish(1) and ledger.take_ready() == (1,)
    assert ledger.finish(2) and ledger.take_ready() == ()
    assert ledger.finish(0) and ledger.take_ready() == (0, 2)


def test_a_second_batch_waits_for_itself_only() -> None:
    ledger = issued("closes")
    assert ledger.finish(0) and ledger.take_ready() == (0,)
    ledger.issue(batched=True, closes=False)
    assert ledger.finish(1) and ledger.take_ready() == ()
    ledger.issue(batched=True, closes=True)
    assert ledger.finish(2) and ledger.take_ready() == (1, 2)


@pytest.mark.parametrize("index", [-1, 1, 7])
def test_what_was_never_issued_is_not_done(index: int) -> None:
    ledger = issued("plain")
    assert not ledger.finish(index)
    assert not ledger.complete


def test_what_is_done_is_done_once() -> None:
    ledger = issued("plain")
    assert ledger.finish(0)
    assert not ledger.finish(0)


def test_a_repair_begins_from_nothing() -> None:
    ledger = issued("batched", "batched")
    ledger.finish(0)
    ledger.start_again(0)
    assert ledger.outstanding and ledger.issued == 2
    assert ledger.finish(0), "it must be done again"
    ledger.issue(batched=True, closes=True)
    assert ledger.finish(1) and ledger.finish(2) and ledger.take_ready() == (0, 1, 2)


def test_what_was_handed_out_cannot_be_repaired() -> None:
    ledger = issued("plain", "plain")
    ledger.finish(0)
    ledger.take_ready()
    with pytest.raises(AssertionError, match="S7"):
        ledger.start_again(0)
    with pytest.raises(AssertionError, match="S7"):
        ledger.start_again(2)
    ledger.start_again(1)
    assert ledger.completed == 1 and ledger.outstanding


def test_what_stands_and_what_is_done_again() -> None:
    ledger = issued("plain", "plain", "plain", "plain")
    for index in (0, 1, 3):
        ledger.finish(index)
    assert (ledger.handed, ledger.done_until) == (0, 2)
    ledger.take_ready()
    assert (ledger.handed, ledger.done_until) == (4, 2)


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("issue"), st.sampled_from(["plain", "batched", "closes"])),
        st.tuples(st.just("finish"), st.integers(0, 6)),
    ),
    max_size=20,
)


@given(MOVES)
@settings(max_examples=examples(200))
def test_as_the_dumb_one_says(moves: list[tuple[str, str | int]]) -> None:
    """After every move, all results that may be handed out are, each once."""
    ledger = OperationLedger()
    kinds: list[str] = []
    done: set[int] = set()
    handed: list[int] = []
    for what, detail in moves:
        if what == "issue":
            assert ledger.issue(detail != "plain", detail == "closes") == len(kinds)
            kinds.append(str(detail))
        else:
            was_new = detail < len(kinds) and detail not in done  # type: ignore[operator]
            assert ledger.finish(int(detail)) == was_new
            done |= {int(detail)} if was_new else set()
        handed += ledger.take_ready()
        batch = [i for i, kind in enumerate(kinds) if kind != "plain"]
        is_closed = not batch or kinds[batch[-1]] == "closes"
        assert len(handed) == len(set(handed))
        assert {i for i in done if kinds[i] == "plain"} <= set(handed) <= done
        if is_closed and set(batch) <= done:
            assert set(batch) <= set(handed)
        assert ledger.outstanding == (len(done) < len(kinds))
        assert ledger.complete == (len(done) == len(kinds) and is_closed)
        assert ledger.untouched == (not handed)
        assert ledger.all_handed == (len(handed) == len(kinds))
