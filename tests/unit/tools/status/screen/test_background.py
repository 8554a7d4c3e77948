"""A terminal's answer about its background."""

from __future__ import annotations

import os
import pty
import sys
import threading

import pytest

from ftrun.tools.status.screen import background
from ftrun.tools.status.screen.background import Background, is_light, said_by


@pytest.mark.parametrize(
    ("answer", "light"),
    [
        (b"\x1b]11;rgb:0000/0000/0000\x1b\\\x1b[?62c", False),
        (b"\x1b]11;rgb:ffff/ffff/ffff\x07\x1b[?62c", True),
        (b"\x1b]11;rgb:fd/f6/e3\x1b\\", True),
        (b"\x1b]11;rgba:1111/1414/1a1a/ffff\x1b\\", False),
        (b"\x1b[?62;22c", None),
        (b"", None),
    ],
)
def test_the_answer_is_understood(answer: bytes, light: bool | None) -> None:
    assert is_light(answer) is light


@pytest.mark.parametrize(
    ("value", "light"), [("0;15", True), ("15;0", False), ("12;7", True), ("0;default", None)]
)
def test_some_terminals_say_it_in_the_environment(value: str, light: bool | None) -> None:
    assert said_by({"COLORFGBG": value}) is light
    assert said_by({}) is None


@pytest.mark.parametrize("answers", [True, False])
def test_a_terminal_is_asked_and_may_be_silent(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(background, "ANSWER_S", 60.0 if answers else 0.05)
    ours, theirs = pty.openpty()

    def terminal() -> None:
        asked = b""
        while b"\x1b[c" not in asked:
            asked += os.read(ours, 100)
        if answers:
            os.write(ours, b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;22c")

    thread = threading.Thread(target=terminal)
    thread.start()
    with open(theirs, "r+b", buffering=0) as file:
        monkeypatch.setattr(sys, "stdin", file)
        monkeypatch.setattr(sys, "stdout", file)
        assert Background().is_light() is (True if answers else None)
    thread.join(60)
    os.close(ours)


def test_a_pipe_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "r+b") as null:
        monkeypatch.setattr(sys, "stdin", null)
        assert Background().is_light() is None
