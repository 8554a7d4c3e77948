"""What ``ftrun status`` shows."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from status_sample import sample

from ftrun.status.view import duration, plain, render


def shown(status: dict[str, Any], width: int = 160) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(render(status))
    return console.export_text()


def test_all_that_matters_is_there() -> None:
    lines = shown(sample()).splitlines()
    assert lines[0].split("  ") == [
        "digits",
        "steady for 12.3 s",
        "quorum 5.2 (2 of 3 replicas)",
        "step 1234",
        "2 restarts",
    ]
    assert lines[1] == "lighthouse 0.1.0  epoch 5  up 1 h 02 min  1 agent"
    table = [" ".join(line.split()) for line in lines[3:]]
    killed = "250 ms ago Replica 1 lost: killed by SIGKILL."
    assert table[0] == "replica state step phase incarnation agent restarts last event"
    assert table[1] == "0 member 1234 forward abcdefgh node-a 0 -"
    assert table[2] == f"1 joining - - mnopqrst node-a 2 {killed}"
    assert table[3] == "2 absent - - - - 0 -"
    assert table[5] == "changed what took step members reason"
    assert table[6] == "1 h 06 min ago form 12 ms 0 0 1 2 all 3 replicas are ready"
    assert table[7].startswith("250 ms ago shrink under way")


def test_a_lighthouse_without_a_job_says_so() -> None:
    status = sample()
    status |= {"replicas": [], "history": [], "quorum": None}
    status["job"]["job_id"] = ""
    assert shown(status).startswith("no job yet")


def test_who_is_waited_for_and_how_it_ended_is_said() -> None:
    status = sample()
    status |= {"phase": "rejoin", "waiting_for": ["0", "2"], "quorum": None}
    assert "rejoin for 12.3 s, waiting for 0, 2" in shown(status)
    status |= {"phase": "ended", "outcome": {"exit_code": 72, "reason": "crash loop"}}
    assert "exit code 72: crash loop" in shown(status)


def test_words_from_the_network_cannot_drive_the_terminal() -> None:
    status = sample()
    evil = "[red]x[/red] \x1b]0;title\x07 \x9b31m\nnext"
    status["job"]["job_id"] = evil
    status["replicas"][1]["last_event"]["text"] = evil
    status["history"][0]["reason"] = evil
    text = shown(status, width=250)
    assert text.count("[red]x[/red]") == 3
    assert not {"\x1b", "\x07", "\x9b"} & set(text)
    assert len(plain("x" * 10_000)) < 400


def test_a_narrow_terminal_loses_nothing_of_an_event() -> None:
    words = shown(sample(), width=80).split()
    assert {"Replica", "1", "lost:", "killed", "by", "SIGKILL."} <= set(words)


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
