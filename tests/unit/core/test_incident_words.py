"""The words of an incident's record, whatever of it is there."""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.core import failure_kinds as kinds
from ftrun.core.incident_words import OUTPUT_LINES, STACK_LINES, block, line

FIRST: dict[str, Any] = {"replica_id": "1", "kind": kinds.SIGNAL, "cause": "died: SIGSEGV\nmore"}


def record(first: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A record whose first cause is ``FIRST`` with these changes."""
    return {"number": 3, "first_cause": {**FIRST, **(first or {})}, **more}


def words(first: dict[str, Any] | None = None, **more: Any) -> str:
    return "\n".join(block(record(first, **more)))


def test_an_empty_record_has_words_too() -> None:
    assert line({}) == "   ?  at an unknown time  replica ? : no verdict yet"
    assert block({}) == [
        "Incident ?, at an unknown time:",
        "  first cause: replica ? ",
        "  cost: no step lost, 0.0 replica-seconds",
        "  verdict: none yet, it is not over",
    ]


def test_one_line() -> None:
    found = line(
        record(
            time="2026-11-25T10:00:00.123+00:00",
            verdict=kinds.RESTARTED,
            is_open=True,
            consequences=[{}],
            consequences_not_shown=2,
        )
    )
    assert found == (
        "   3  2026-11-25 10:00:00 UTC  replica 1 died: SIGSEGV, and 3 in consequence: restarted "
        "(not over yet)"
    )


@pytest.mark.parametrize(
    ("kind", "worker", "expected"),
    [
        (kinds.MEMORY, {"memory": "oom_kill 1", "signal": 9}, "out of memory: oom_kill 1"),
        (kinds.SIGNAL, {"signal": 9}, "who sent it is not known"),
        (kinds.PEER, {}, "this is what a lost peer looks like"),
    ],
)
def test_what_is_known_of_a_cause(kind: str, worker: dict[str, Any], expected: str) -> None:
    assert expected in words({"kind": kind, "worker": worker})


def test_a_traceback_or_else_the_last_lines() -> None:
    rows = "\n".join(f"row {number}" for number in range(20))
    found = words({"worker": {"traceback": rows, "output": "never", "pid": 7}, "host": "a"}, step=4)
    assert "Incident 3, at an unknown time, at step 4:" in found
    assert "first cause: replica 1 (pid 7) on a died: SIGSEGV" in found
    assert "traceback (the last 12 of 20):" in found and "| row 8" in found
    assert "row 7\n" not in found and "never" not in found
    assert "its last lines:\n    | row 19" in words({"worker": {"output": "row 19\x1b[2J"}})[:200]


def test_of_a_crash_the_stacks_are_shown_from_the_current_thread() -> None:
    rows = [
        *("before", "Fatal Python error: Segmentation fault", "Thread 1:", "  File a.py"),
        *("Current thread 2:", *(f"  File b.py, line {number}" for number in range(20))),
        '  File "/x/ftrun/inject/bootstrap.py", line 1',
    ]
    found = block(record({"worker": {"output": "\n".join(rows)}}))
    at = found.index("  its last lines:")
    shown = found[at + 1 : at + 3 + OUTPUT_LINES]
    assert shown[:3] == ["    | before", f"    | {rows[1]}", "    | Current thread 2:"]
    assert shown[-1] == "    |   File b.py, line 10"
    assert "bootstrap" not in "\n".join(found) and "a.py" not in "\n".join(found)


def test_stacks_of_workers_and_those_that_are_too_long() -> None:
    long = "\n".join(f"File {number}" for number in range(STACK_LINES + 3))
    others = [{"group_rank": 1, "stacks": long, "cause": "was killed", "kind": kinds.HANG}]
    found = words({"worker": {"group_rank": 0, "stacks": "File x"}, "other_workers": others})
    assert "first cause: replica 1, worker 0 died" in found
    assert "Python stacks of worker 0 before it was killed:\n    | File x" in found
    assert "... 3 more lines (--json has them)" in found
    assert "worker 1 of the same group: was killed" in found


def test_what_followed() -> None:
    unwell = {"kind": kinds.UNHEALTHY, "cause": "is not well"}
    found = words(
        {"other_workers": [unwell, {}]},
        consequences=[
            {"replica_id": "0", "cause": "lost", "after_s": 0.2},
            {"replica_id": "2", "cause": "lost", "after_s": 0.0},
        ],
        consequences_not_shown=5,
        members=[
            {"replica_id": "0", "step": 7, "reductions": "2 of 3", "activity": "waiting"},
            {"replica_id": "2", "step": 7},
        ],
        cost={"steps": 1, "replica_seconds": 2.5},
        verdict=kinds.RESTARTED,
        verdict_words="Restart 1 of 10 now.",
    )
    for expected in (
        "    it is not well\n    replica 0 (0.2 s later): lost\n    replica 2 (with it): lost",
        "    and 5 more",
        "    replica 0: step 7, waiting, its reductions 2 of 3\n    replica 2: step 7\n",
        "cost: 1 step to train again, 2.5 replica-seconds",
        "verdict: restarted (Restart 1 of 10 now.)",
    ):
        assert expected in found, found


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (
            {"step": 7, "quorum": "1.2"},
            "no replica was left: training continued at step 7 with quorum",
        ),
        ({"survivors": ["0"]}, "replica 0 repaired the step in place in quorum"),
        (
            {"survivors": ["0", "2"], "recomputes": ["0"], "step": 7},
            "replicas 0, 2 computed step 7",
        ),
        ({"survivors": list("012345678")}, "9 replicas repaired"),
    ],
)
def test_what_the_survivors_did(response: dict[str, Any], expected: str) -> None:
    assert expected in words(response=response)


def test_who_is_back() -> None:
    healed = {"step": 9, "donors": ["0"], "duration_s": 0.25}
    first = {"back_after_s": 1.5, "healed": healed}
    then = [{"replica_id": "2", "back_after_s": 2.0}, {"replica_id": "3"}]
    found = words(first, consequences=then, verdict=kinds.RESTARTED)
    assert "replica 1 was back after 1.5 s, healed to step 9 from replica 0 in 0.25 s" in found
    assert "replica 2 was back after 2.0 s\n" in found and "replica 3 was back" not in found
    assert "was back" not in words(first, verdict=kinds.CRASH_LOOP)
