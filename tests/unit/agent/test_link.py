"""Where a node asks a lighthouse for people."""

from __future__ import annotations

import pytest

from ftrun.agent.link import web_address


@pytest.mark.parametrize(
    ("bound", "reached", "asked_at"),
    [
        ("127.0.0.1:8000", "127.0.0.1:29510", "127.0.0.1:8000"),
        ("10.0.0.1:8000", "10.0.0.1:29510", "10.0.0.1:8000"),
        ("0.0.0.0:8000", "head:29510", "head:8000"),
        (":::8000", "[fd00::1]:29510", "[fd00::1]:8000"),
        # It answers people of its own host only, and this is another.
        ("127.0.0.1:8000", "10.0.0.1:29510", None),
        ("", "10.0.0.1:29510", None),
    ],
)
def test_the_lighthouse_says_where(bound: str, reached: str, asked_at: str | None) -> None:
    assert web_address(bound, reached) == asked_at
