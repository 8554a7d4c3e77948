"""Lines in pieces: their widths, also of wide characters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.tools.status.screen.pieces import apart, bar, fit, line, rule


@given(st.text(max_size=40), st.integers(1, 30))
def test_what_is_fitted_has_exactly_its_width(text: str, cells: int) -> None:
    shown = "".join(char if char.isprintable() else " " for char in text)
    assert fit(line((shown, "bad"), "and more"), cells).cell_len == cells


def test_a_cut_is_shown() -> None:
    assert fit(line("replica ", "seven"), 10).plain == "replica s…"
    assert fit(line("replica"), 7).plain == "replica"


def test_numbers_stand_at_the_right() -> None:
    assert fit(line("42"), 5, right=True).plain == "   42"


def test_the_left_of_two_parts_gives_way() -> None:
    assert apart(line("a very long name"), line("v1"), 12).plain == "a very l… v1"
    assert apart(line("name"), line("too long for it"), 12).plain == "name"


def test_a_rule_goes_to_the_edge() -> None:
    assert rule(line(" replicas"), 14).plain == " replicas ────"


def test_a_bar_has_its_width_and_shares() -> None:
    found = bar([(0.75, "good"), (0.25, "care")], 8)
    assert [(span.end - span.start, span.style) for span in found.spans] == [
        (6, "good"),
        (2, "care"),
    ]
    assert bar([], 3).plain == "───"
