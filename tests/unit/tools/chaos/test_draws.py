"""When and whom: by seed, exponentially distributed, and what the options take."""

from __future__ import annotations

import signal
import statistics

import pytest

from ftrun.base.errors import UserError
from ftrun.tools.chaos.draws import Draws, parse_duration, parse_signal


def test_the_same_seed_draws_the_same() -> None:
    one, two, other = Draws(30.0, 7), Draws(30.0, 7), Draws(30.0, 8)
    drawn = [(one.pause_s(), one.victim("abc")) for _ in range(20)]
    assert drawn == [(two.pause_s(), two.victim("abc")) for _ in range(20)]
    assert drawn != [(other.pause_s(), other.victim("abc")) for _ in range(20)]


def test_pauses_are_exponentially_distributed() -> None:
    draws = Draws(30.0, 1)
    pauses = [draws.pause_s() for _ in range(20_000)]
    assert statistics.mean(pauses) == pytest.approx(30.0, rel=0.03)
    assert statistics.median(pauses) == pytest.approx(30.0 * 0.6931, rel=0.03)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30.0), ("30s", 30.0), ("1.5 m", 90.0), ("2min", 120.0), ("1h", 3600.0), ("50ms", 0.05)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text, "--mtbf") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "-1s", "x", "30 days", "31000h", "nan", "1e3"])
def test_what_is_no_duration_is_named(text: str) -> None:
    with pytest.raises(UserError, match="--mtbf"):
        parse_duration(text, "--mtbf")


def test_signals() -> None:
    assert parse_signal("KILL") == parse_signal("sigkill") == signal.SIGKILL
    assert parse_signal("segv") == signal.SIGSEGV
    for bad in ("STOP", "9", "", "WINCH"):
        with pytest.raises(UserError, match="--signal"):
            parse_signal(bad)
