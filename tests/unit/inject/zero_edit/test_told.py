"""What an unmodified script's worker says."""

from __future__ import annotations

import io
import sys

import pytest

from ftrun.inject.zero_edit import told


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    found = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", found)
    monkeypatch.setattr(told, "_SAID", set())
    return found


def test_what_is_made_late_is_told_by_line_and_the_consequence_once(said: io.StringIO) -> None:
    told.made_late("a.py:3", "makes another AdamW", 7)
    told.made_late("a.py:4", "makes another StepLR", 7)
    text = said.getvalue()
    assert "a.py:3 makes another AdamW after 7 steps" in text and "a.py:4 makes another" in text
    assert text.count("What a script makes after its first step") == 1


def test_a_script_that_silences_print_silences_no_notice(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """torchvision's references let only rank 0 print."""
    monkeypatch.setattr("builtins.print", lambda *args, **kwargs: None)
    told.say("replica 1 joined")
    assert capfd.readouterr().err == "ftrun: replica 1 joined\n"
