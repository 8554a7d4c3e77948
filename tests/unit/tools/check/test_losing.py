"""When ``ftrun check`` loses a node."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ftrun.inject.zero_edit import allowed
from ftrun.tools.check import losing
from ftrun.tools.check.losing import LOST, Losing, Move, Seen, move

DUE = range(8, 20)


@pytest.mark.parametrize(
    ("step", "seen", "late", "then"),
    [
        (0, None, False, Move.GO),
        (4, None, True, Move.WAIT),
        (4, Seen(3, 0), True, Move.WAIT),
        (4, Seen(4, 2), False, Move.GO),
        (8, Seen(8, 0), False, Move.GO),
        (8, Seen(8, 7), False, Move.GO),
        (8, Seen(8, 6), False, Move.LOSE),
        (19, Seen(19, 18), False, Move.WAIT),
        (19, Seen(19, 18), True, Move.LOSE),
        (19, Seen(19, 0), True, Move.GIVE_UP),
    ],
)
def test_a_step_waits_for_the_status_and_the_loss_for_a_copy(
    step: int, seen: Seen | None, late: bool, then: Move
) -> None:
    assert move(step, seen, DUE, is_late=late) is then


def test_a_worker_asks_and_the_node_is_lost_after_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step waits until a node stands by."""
    did: list[str] = []
    now = Seen(0, 0)
    one = Losing(tmp_path, "", DUE, lambda: did.append("spare"), lambda: did.append("lost"))
    monkeypatch.setattr(one, "_seen", lambda: now)

    def asks(step: int, lines: Sequence[str] = ("",)) -> int:
        (tmp_path / allowed.ASKED).write_text(str(step))
        for line in lines:
            one.look(line)
        return allowed.allowed_until(tmp_path)

    one.look("")
    assert not did
    assert asks(0) == 0 and did == ["spare"]
    assert asks(0, ["ftrun: c3 stands by: the team has its 2 nodes\n", ""]) == 1
    assert asks(7) == 1
    now = Seen(7, 5)
    assert asks(7) == 8
    now = Seen(8, 5)
    assert asks(8) == losing.ALL
    assert did == ["spare", "lost"]
    assert json.loads((tmp_path / LOST).read_text()) == {"step": 8, "copied": 5, "again": 0}


def test_a_worker_waits_until_its_step_may_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        (tmp_path / allowed.ALLOWED).write_text(str(3 + len(pauses)))

    monkeypatch.setattr(time, "sleep", sleep)
    assert allowed.wait_to_begin(tmp_path, 4)
    assert len(pauses) == 2 and (tmp_path / allowed.ASKED).read_text() == "4"


def test_a_worker_that_gets_no_answer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowed, "WAIT_S", 0.0)
    assert not allowed.wait_to_begin(tmp_path, 4)
