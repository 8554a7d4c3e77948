"""A plugin's answer is taken as it is meant, or refused with what is wrong in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.agent.plugins import NoPlaces, StreamPlace, has_logs_plugin, parse_places, wants_plugins
from tests.unit.run_settings import run_settings

HIDDEN, SHOWN = StreamPlace(None, is_shown=False), StreamPlace(None, is_shown=True)


def answer(**changes: Any) -> dict[str, Any]:
    return {
        "stdouts": {"0": "/l/out", "1": ""},
        "stderrs": {"0": "/l/err", "1": "/dev/null"},
        "tee_stdouts": {"0": "/l/out"},
        "tee_stderrs": {},
        "filtered_stdout": "/l/filtered",
        "filtered_stderr": "",
        "envs": {"0": {"A": "1"}, "1": {"A": 2}},
        **changes,
    }


def test_a_stream_goes_to_a_file_the_terminal_both_or_neither() -> None:
    places = parse_places(answer(), 2)
    assert places.out == {0: StreamPlace(Path("/l/out"), is_shown=True), 1: SHOWN}
    assert places.err == {0: StreamPlace(Path("/l/err"), is_shown=False), 1: HIDDEN}
    assert places.environments == {0: {"A": "1"}, 1: {"A": "2"}}
    assert places.filtered == (Path("/l/filtered"), None)


def test_what_torch_answers_for_no_log_directory_is_shown() -> None:
    """DefaultLogsSpecs tees /dev/null then."""
    places = parse_places(answer(stdouts={"0": "", "1": ""}, tee_stdouts={"0": "/dev/null"}), 2)
    assert places.out == {0: SHOWN, 1: SHOWN}
    assert parse_places(answer(filtered_stdout="/dev/null"), 2).filtered == (None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stdouts": {"0": "/l/out"}}, "its stdouts lack local rank 1"),
        (
            {"tee_stderrs": {"0": "/other"}},
            r"it tees /other, which is not where local rank 0 writes",
        ),
        ({"envs": {"0": {}}}, "it has removed the variables of a worker"),
        ({"envs": None}, "its answer is no LogsDest"),
        ({"stdouts": 3}, "its answer is no LogsDest"),
        ({"stderrs": {"0": 3, "1": ""}}, "its answer is no LogsDest"),
    ],
)
def test_an_answer_that_cannot_be_followed_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(NoPlaces, match=message):
        parse_places(answer(**changes), 2)


def test_only_plugins_of_torchs_need_a_process() -> None:
    for logs_specs, handler in ((None, "null"), ("default", "console")):
        assert not wants_plugins(run_settings(logs_specs=logs_specs, event_log_handler=handler))
    handled = run_settings(event_log_handler="mine")
    assert wants_plugins(handled) and not has_logs_plugin(handled)
    assert wants_plugins(run_settings(logs_specs="mine"))
