"""A newcomer does not print again what its predecessor has printed in its set-up."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.inject.zero_edit import repeated, told
from ftrun.inject.zero_edit.repeated import Repeated


class Raw(io.BytesIO):
    """A stream's end, whose ``write`` can be another."""


class Life:
    """A worker's set-up, with streams of its own."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, directory: Path, *, is_newcomer: bool = False
    ) -> None:
        self.is_newcomer, self.raws = is_newcomer, [Raw(), Raw()]
        self.streams = [io.TextIOWrapper(raw, "utf-8", write_through=True) for raw in self.raws]
        monkeypatch.setattr(sys, "stdout", self.streams[0])
        for name in ("stderr", "__stderr__"):
            monkeypatch.setattr(sys, name, self.streams[1])
        monkeypatch.setattr(told, "_SAID", set())
        script: Any = SimpleNamespace(
            file=lambda _: directory / "repeated",
            mates=SimpleNamespace(rank=1),
            is_on_its_way=lambda: self.is_newcomer,
        )
        self.repeated = Repeated(script)

    @property
    def out(self) -> str:
        return self.raws[0].getvalue().decode()

    @property
    def errors(self) -> str:
        return self.raws[1].getvalue().decode()


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Life:
    made = Life(monkeypatch, tmp_path)
    print("10 parameters")
    print("10:30:01 set up", file=sys.stderr)
    sys.stdout.write("\r 50 % |██   |\r100 % |████|\n\nstep ")
    print("0: loss 2.5")
    made.repeated.are_left()
    print("iter 0: loss 2.4")
    return made


def test_a_set_up_is_printed_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: Life
) -> None:
    """Its numbers may be others, and a bar may be drawn at other times."""
    assert first.out.endswith("\n\nstep 0: loss 2.5\niter 0: loss 2.4\n")
    for _ in range(2):  # the second one follows the first, which has died
        second = Life(monkeypatch, tmp_path, is_newcomer=True)
        print("11:45:07 set up", file=sys.stderr)
        print("10 parameters\n\r 30 % |█   |\r 60 %|██  |\r100 % |█████|\n")
        print("step 0: loss 2.4999")
        told.say("of ftrun's")
        second.repeated.ends()
        print("iter 5: loss 0.4")
        assert second.out == "iter 5: loss 0.4\n"
        assert second.errors == "ftrun: of ftrun's\n"


def test_what_its_predecessor_had_not_printed_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: Life
) -> None:
    second = Life(monkeypatch, tmp_path, is_newcomer=True)
    print("10 parameters\nthe cache is ", end="")
    print("there\nstep 0: loss 1.0\nstep 0: loss 1.0")
    second.repeated.ends()
    assert second.out == "the cache is there\nstep 0: loss 1.0\n"
    assert second.errors.count("those that differ are shown") == 1


def test_one_that_begins_at_the_beginning_shows_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: Life
) -> None:
    """Its peers have gone meanwhile; what it prints is left to its own successor."""
    second = Life(monkeypatch, tmp_path, is_newcomer=True)
    print("10 parameters")
    second.is_newcomer = False
    print("other")
    second.repeated.are_left()
    assert sorted(second.out.splitlines()) == ["10 parameters", "other"]
    third = Life(monkeypatch, tmp_path, is_newcomer=True)
    print("other\nstep 0: loss 1.0")
    assert third.out == "step 0: loss 1.0\n"


def test_one_that_has_no_predecessor_prints_as_it_comes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for is_newcomer in (True, False):
        life = Life(monkeypatch, tmp_path, is_newcomer=is_newcomer)
        print("a prompt: ", end="")
        assert life.out == "a prompt: "


def test_a_line_without_an_end_is_shown_at_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: Life
) -> None:
    second = Life(monkeypatch, tmp_path, is_newcomer=True)
    sys.stdout.write("x" * repeated.LINE_BYTES_MAX)
    assert not second.out
    sys.stdout.write("x")
    assert len(second.out) == repeated.LINE_BYTES_MAX + 1


def test_what_a_signal_prints_in_between(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: Life
) -> None:
    second = Life(monkeypatch, tmp_path, is_newcomer=True)
    plain = second.repeated._write

    def interrupted(number: int, piece: bytes) -> None:
        print("10 parameters")
        plain(number, piece)

    monkeypatch.setattr(second.repeated, "_write", interrupted)
    print("10 parameters", end="")
    assert second.out == "10 parameters\n"


def test_what_is_written_at_once_goes_out_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    life, written = Life(monkeypatch, tmp_path), list[bytes]()
    monkeypatch.setattr(life.repeated, "plain", [written.append] * 2)
    sys.stdout.write("a\nb\nc")
    assert written == [b"a\nb\nc"]
