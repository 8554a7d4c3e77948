"""ftrun's own warnings in a worker."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from ftrun.inject import notices


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is printed."""
    text, ours = io.StringIO(), logging.getLogger("ftrun")
    monkeypatch.setattr(sys, "__stderr__", text)
    before = list(ours.handlers)
    notices.install()
    yield text
    ours.handlers = before


def test_a_warning_says_that_it_is_ftruns(
    said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # also pytest's own
    logging.getLogger("ftrun.training.lingering").warning("%s waits for %s", "the end", "replica 1")
    logging.getLogger("ftrun.training.lingering").info("not shown")
    logging.getLogger("other").warning("not ours")
    assert said.getvalue() == "ftrun: the end waits for replica 1\n"


def test_a_script_that_has_set_up_logging_prints_it_its_own_way(
    said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = io.StringIO()
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler(theirs)])
    logging.getLogger("ftrun.training").warning("text")
    assert (said.getvalue(), theirs.getvalue()) == ("", "text\n")
