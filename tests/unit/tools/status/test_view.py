"""The terminal view of ``ftrun status``."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from ftrun.tools.status.view import LINES_MAX, render
from tests.unit.tools.status.status_sample import sample


def shown(status: Any, width: int = 160) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(render(status))
    return console.export_text()


def test_it_shows_what_the_screen_shows() -> None:
    lines = [" ".join(line.split()) for line in shown(sample()).splitlines()]
    assert lines[0] == "digits ● training ftrun 0.1.0"
    assert lines[1].startswith("step 1,234 now 0.50 /s") and "goodput 64.8 %" in lines[1]
    assert lines[2].startswith("replicas 2 of 3 run") and lines[3].startswith("quorum 5.2 12 s up")
    table = lines[lines.index("") :]
    assert table[1] == "" and table[2].startswith("replica state step step time")
    assert table[3].startswith("0 ● training 66 min 1,234 500 ms")
    assert table[4].startswith("1 ○ no quorum 1.5 s - - - 2/10")
    assert table[5].startswith("2 ✖ absent 67 min")
    assert table[7:10] == [
        "ago change took cost step members cause",
        "0.2 s shrink 250 ms … 250 ms - - replica 1: killed by SIGKILL",
        "67 min form 12 ms - 0 0-2 all 3 replicas are ready",
    ]
    assert table[11] == "ago no replica cost verdict node first cause"
    assert table[12] == "0.2 s 1 1 500 ms under way node-a killed by SIGKILL"


def test_spare_nodes_are_counted_if_the_job_wants_any() -> None:
    status = sample()
    status["job"]["spare_nodes"] = 2
    agents = [("a", True, ["0"]), ("b", True, []), ("c", False, [])]
    status["agents"] = [
        {"agent_id": x, "host": x, "capacity": 1, "attached": on, "silent_s": 0.0, "slots": slots}
        for x, on, slots in agents
    ]
    assert "1 of 2 spare nodes" in shown(status).splitlines()[0]
    status["idle_nodes"] = ["n3 (10.0.0.3)"]
    assert "1 idle node" in shown(status).splitlines()[0]


def test_a_lighthouse_without_a_job_says_so() -> None:
    status = sample()
    status |= {"replicas": [], "history": [], "incidents": [], "quorum": None, "phase": "empty"}
    status["job"]["job_id"] = ""
    text = shown(status)
    assert text.startswith(" no job yet") and "waits for replicas" in text
    assert "replica " not in text and "cause" not in text


def test_a_job_without_a_quorum_runs_if_its_replicas_do() -> None:
    status = sample()
    status |= {"quorum": None, "phase": "empty"}
    assert "waits for replicas" in shown(status)
    status["replicas"][0]["use"] = "running"
    lines = [" ".join(line.split()) for line in shown(status).splitlines()]
    assert lines[0] == "digits ● running ftrun 0.1.0"
    assert lines[2].startswith("replicas 1 of 3")


def test_who_is_waited_for_and_how_it_ended_is_said() -> None:
    status = sample()
    words = "replica 0 waits for replica 2 (it heals)"
    wait = {"for": words, "whom": ["2"], "since_s": 4.2, "at_most_s": 55.8}
    assert f"{words.capitalize()}, since 4.2 s, for 55.8 s at most" in shown(
        status | {"waiting": wait}
    )
    text = shown(status | {"outcome": {"exit_code": 72, "reason": "crash loop"}})
    assert "ended with exit code 72" in text and "crash loop" in text


def test_words_from_the_network_cannot_drive_the_terminal() -> None:
    status = sample()
    evil = "[red]x[/red] \x1b]0;title\x07 \x9b31m\nnext"
    status["job"]["job_id"] = evil
    status["events"] = [{**status["replicas"][1]["last_event"], "text": evil}]
    status["history"][0]["reason"] = evil
    status["incidents"][0]["words"] = evil
    for width in (80, 250):
        text = shown(status, width)
        assert text.count("[red]x[/red]") == 4
        assert not {"\x1b", "\x07", "\x9b"} & set(text)


def test_no_line_is_longer_than_the_terminal_and_long_lists_are_cut() -> None:
    status = sample()
    status["job"]["job_id"] = "train_digits-20261122-185102-3ad5"
    change = {**status["history"][0], "reason": "what has happened " * 20}
    status["history"] = [{**change, "step": step} for step in range(LINES_MAX + 5)]
    for width in (40, 80, 200):
        lines = shown(status, width).splitlines()
        assert all(len(line) <= width for line in lines)
    assert sum("what has happened" in line for line in lines) == LINES_MAX
    assert any(line.endswith("…") for line in lines)
