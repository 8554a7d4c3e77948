"""``ftrun.heartbeat`` and ``ftrun.paused``: what a process announces, with ftrun and without."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterator

import pytest

import ftrun
from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.training import pauses


@pytest.fixture
def heard() -> Iterator[list[tuple[str, float]]]:
    """What a listener is told."""
    found: list[tuple[str, float]] = []
    pauses.listen(lambda name, limit_s: found.append((name, round(limit_s))))
    yield found
    pauses.stop_listening()


def test_a_pause_is_current_while_the_block_runs() -> None:
    assert pauses.current() is None
    began = clock.now()
    with ftrun.paused("eval"):
        found = pauses.current()
        assert found is not None
        assert found.name == "eval"
        assert began <= found.since <= clock.now()
    assert pauses.current() is None


def test_of_nested_pauses_the_innermost_counts(heard: list[tuple[str, float]]) -> None:
    with ftrun.paused("eval", limit_s=100.0), ftrun.paused("save", limit_s=50.0):
        found = pauses.current()
        assert found is not None
        assert found.name == "save"
    assert heard == [("eval", 100), ("save", 50), ("eval", 100), ("", 0)]


def test_a_pause_that_is_over_its_limit_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    with ftrun.paused("eval", limit_s=5.0):
        later = clock.now() + 6.0
        monkeypatch.setattr(pauses.clock, "now", lambda: later)  # type: ignore[attr-defined]
        assert pauses.current() is None


def test_an_exception_ends_a_pause() -> None:
    with pytest.raises(ZeroDivisionError), ftrun.paused():
        raise ZeroDivisionError
    assert pauses.current() is None


def test_a_heartbeat_is_counted_and_told_except_in_a_pause(heard: list[tuple[str, float]]) -> None:
    before = pauses.beats()
    ftrun.heartbeat()
    with ftrun.paused("eval"):
        ftrun.heartbeat()
    assert pauses.beats() == before + 2
    assert heard == [("", 0), ("eval", 3600), ("", 0)]


@pytest.mark.parametrize("name", ["", "x" * 33, "a\nb"])
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="printable"), ftrun.paused(name):
        pass


@pytest.mark.parametrize("limit_s", [0.0, -1.0, math.inf, math.nan, 1e9])
def test_a_limit_that_is_no_time_is_refused(limit_s: float) -> None:
    with pytest.raises(UserError, match="up to a week"), ftrun.paused(limit_s=limit_s):
        pass


def test_a_debugger_that_holds_the_main_thread_is_a_pause() -> None:
    namespace = {"look": pauses.current}
    code = compile("def user_line(): return look()", "/lib/bdb.py", "exec")
    exec(code, namespace)
    found = namespace["user_line"]()
    assert found is not None
    assert found.name == "debugger"
    assert pauses.current() is None


def test_no_garbage_is_collected_while_the_frames_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 may freeze then, if a finalizer lets another thread run."""
    frames, collects = sys._current_frames, []

    def current_frames() -> object:
        collects.append(gc.isenabled())
        return frames()

    monkeypatch.setattr(sys, "_current_frames", current_frames)
    assert "bdb" in sys.modules, "pytest has it, and so has torch.distributed"
    assert pauses.current() is None
    assert collects == [False] and gc.isenabled()
