"""Words on one line of a terminal."""

from __future__ import annotations

import pytest

from ftrun.base.words import age, amount, counted, duration, first_of, plain, ranges


def test_foreign_text_is_one_bounded_line_that_drives_nothing() -> None:
    assert plain("a\x1b[31m\nb\x07\x9b") == "a [31m b  "
    assert len(plain("x" * 10_000)) < 400


def test_one_is_singular() -> None:
    assert [counted(n, "restart") for n in (0, 1, 2)] == ["0 restarts", "1 restart", "2 restarts"]


def test_a_long_list_is_cut() -> None:
    assert first_of(["a", "b"], 2) == "a, b"
    assert first_of(["a", "b", 3, 4], 2) == "a, b and 2 more"


def test_bytes_are_for_people() -> None:
    found = [amount(n) for n in (0, 999, 1000, 45_300, 999_400, 1_000_000, 123_456_789, 8.5e13)]
    assert found == ["0 B", "999 B", "1 kB", "45 kB", "999 kB", "1.0 MB", "123 MB", "85.0 TB"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0042, "4 ms"),
        (1.25, "1.25 s"),
        (59.9, "59.9 s"),
        (61.4, "1 min 01 s"),
        (3599.7, "1 h 00 min"),
        (90_000.0, "25 h 00 min"),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"),
        (0.25, "0.2 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (99.4, "99 s"),
        (99.6, "2 min"),
        (5969.0, "99 min"),
        (5971.0, "2 h"),
        (47.4 * 3600, "47 h"),
        (47.6 * 3600, "2 d"),
        (10.0**8, "1157 d"),
    ],
)
def test_an_age_is_short(seconds: float, text: str) -> None:
    assert age(seconds) == text
    assert len(text) <= 6


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["0"], "0"),
        (["0", "1"], "0 1"),
        (["0", "1", "2", "5", "7", "8", "9"], "0-2 5 7-9"),
        (["2", "1", "0"], "2 1 0"),
        (["1", "spare", "2", "01", "2"], "1 spare 2 01 2"),
    ],
)
def test_numbers_that_follow_each_other_are_a_range(names: list[str], text: str) -> None:
    assert ranges(names) == text
