"""Which output the terminal shows, by stream and local rank."""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.base.errors import UserError
from ftrun.config.streams import Streams
from tests.unit.run_settings import run_settings


def parsed(**given: Any) -> Streams:
    return run_settings(**given).streams()


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, {"0o", "0e", "1o", "1e"}),
        ({"redirects": "3"}, set()),
        ({"redirects": "1"}, {"0e", "1e"}),
        ({"redirects": "3", "tee": "3"}, {"0o", "0e", "1o", "1e"}),
        ({"redirects": "3", "tee": "0:1"}, {"0o"}),
        ({"redirects": "0:3,1:2"}, {"1o"}),
        ({"local_ranks_filter": "1"}, {"1o", "1e"}),
        ({"local_ranks_filter": " 0, 1 ", "redirects": "2"}, {"0o", "1o"}),
        ({"redirects": "10:3"}, {"0o", "0e", "1o", "1e"}),
    ],
)
def test_what_the_terminal_shows(given: dict[str, str], shown: set[str]) -> None:
    streams = parsed(**given)
    both = {f"{rank}{'e' if error else 'o'}" for rank in (0, 1) for error in (False, True)
            if streams.shows(rank, error=error)}  # fmt: skip
    assert both == shown


@pytest.mark.parametrize(
    "given",
    [
        {"redirects": "4"},
        {"tee": "0:3,"},
        {"tee": "x"},
        {"redirects": ""},
        {"local_ranks_filter": "0;1"},
    ],
)
def test_a_mistake_is_named(given: dict[str, str]) -> None:
    (value,) = given.values()
    with pytest.raises(UserError, match=f"'{value}': give"):
        parsed(**given)


def test_the_words_before_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed().label("2", 1) == "[2.1] "
    template = "[${role_name}${local_rank} $x]: "
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", template)
    assert parsed(role="trainer").label("2", 1) == "[trainer1 $x]: "


def test_lines_with_one_of_the_words_are_copied() -> None:
    streams = parsed(duplicate_stdout_filters="loss,epoch", duplicate_stderr_filters="error")
    assert streams.copies(b"epoch 3", error=False)
    assert not streams.copies(b"epoch 3", error=True)
    assert streams.copies(b"an error", error=True)
    assert not streams.copies(b"", error=False)


def test_two_commas_stand_for_one_in_a_word() -> None:
    assert parsed(duplicate_stdout_filters="a,,b,c").out_words == ("a,b", "c")


def test_streams_that_are_named_have_files_of_their_own() -> None:
    streams = parsed(redirects="0:1,10:2", tee="0:2")
    has = {(rank, error) for rank in (0, 1, 10) for error in (False, True)
           if streams.has_file(rank, error=error)}  # fmt: skip
    assert has == {(0, False), (0, True), (10, True)}
    assert not parsed().has_file(0, error=False)


def test_local_ranks_count_from_this_nodes_first_worker() -> None:
    """A group may be on several nodes."""
    streams = Streams(
        redirected={0: 3}, ranks=frozenset({0, 1}), template="${local_rank}/${rank} ", first=4
    )
    assert not streams.shows(4, error=False)
    assert streams.shows(5, error=False)
    assert not streams.shows(6, error=False)
    assert streams.has_file(4, error=True)
    assert streams.label("0", 5) == "1/5 "
