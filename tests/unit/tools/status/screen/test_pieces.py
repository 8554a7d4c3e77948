"""Lines in pieces: their widths, also of wide characters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.tools.status.screen.pieces import (
    apart,
    bar,
    cut,
    fit,
    line,
    rule,
    text_of,
    width,
    wrapped,
)


@given(st.text(max_size=40), st.integers(0, 30))
def test_what_is_fitted_has_exactly_its_width(text: str, cells: int) -> None:
    shown = "".join(char if char.isprintable() else " " for char in text)
    assert width(cut(line((shown, "bad"), "and more"), cells)) <= cells
    assert width(fit(line((shown, "bad"), "and more"), cells)) == cells


def test_a_cut_is_shown() -> None:
    assert text_of(cut(line("replica ", "seven"), 10)) == "replica s…"
    assert cut(line("replica"), 7) == (("replica", "text"),)
    assert cut(line("replica"), 0) == ()


def test_numbers_stand_at_the_right() -> None:
    assert text_of(fit(line("42"), 5, right=True)) == "   42"


def test_the_left_of_two_parts_gives_way() -> None:
    assert text_of(apart(line("a very long name"), line("v1"), 12)) == "a very l… v1"
    assert text_of(apart(line("name"), line("too long for it"), 12)) == "name"


def test_a_rule_goes_to_the_edge() -> None:
    assert text_of(rule(line(" replicas"), 14)) == " replicas ────"
    assert width(rule(line("long title"), 4)) == 4


def test_words_are_wrapped_and_long_ones_are_cut() -> None:
    found = [text_of(row) for row in wrapped("the lighthouse is gone abcdefghijkl", 10)]
    assert found == ["the", "lighthouse", "is gone", "abcdefghij", "kl"]
    assert wrapped("", 10) == [()]


def test_a_bar_has_its_width_and_shares() -> None:
    found = bar([(0.75, "good"), (0.25, "care")], 8)
    assert [(len(text), role) for text, role in found] == [(6, "good"), (2, "care")]
    assert text_of(bar([], 3)) == "───"
