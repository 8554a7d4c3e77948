"""The terminal view of ``ftrun status``."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from ftrun.tools.status.view import render
from tests.unit.tools.status.status_sample import sample


def shown(status: Any, width: int = 160) -> str:
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
    killed = "0.2 s ago Replica 1 lost: killed by SIGKILL."
    assert table[0] == "replica state step phase incarnation agent restarts last event"
    assert table[1] == "0 member 1234 forward abcdefgh node-a 0 -"
    assert table[2] == f"1 joining - - mnopqrst node-a 2 {killed}"
    assert table[3] == "2 absent - - - - 0 -"
    assert table[5] == "ago changed took step members reason"
    assert table[6] == "67 min form 12 ms 0 0-2 all 3 replicas are ready"
    assert table[7].startswith("0.2 s shrink under way")


def test_spare_nodes_are_counted_if_the_job_wants_any() -> None:
    status = sample()
    status["job"]["spare_nodes"] = 2
    agents = [("a", True, ["0"]), ("b", True, []), ("c", False, [])]
    status["agents"] = [
        {"agent_id": x, "host": x, "capacity": 1, "attached": on, "silent_s": 0.0, "slots": slots}
        for x, on, slots in agents
    ]
    assert "1 of 2 spare nodes" in shown(status).splitlines()[1]


def test_a_lighthouse_without_a_job_says_so() -> None:
    status = sample()
    status |= {"replicas": [], "history": [], "quorum": None}
    status["job"]["job_id"] = ""
    assert shown(status).startswith("no job yet")


def test_who_is_waited_for_and_how_it_ended_is_said() -> None:
    status = sample()
    status |= {"phase": "rejoin", "waiting_for": ["0", "2"], "quorum": None}
    assert "rejoin for 12.3 s, waiting for 0, 2" in shown(status)
    words = "replica 0 waits for replica 2 (it heals)"
    wait = {"for": words, "whom": ["2"], "since_s": 4.2, "at_most_s": None}
    assert f"{words}, since 4.2 s" in shown(status | {"waiting": wait})
    assert "waiting for 0" not in shown(status | {"waiting": wait})
    assert "for 55.8 s at most" in shown(status | {"waiting": wait | {"at_most_s": 55.8}})
    status |= {"phase": "ended", "outcome": {"exit_code": 72, "reason": "crash loop"}}
    assert "exit code 72: crash loop" in shown(status)


def test_words_from_the_network_cannot_drive_the_terminal() -> None:
    status = sample()
    evil = "[red]x[/red] \x1b]0;title\x07 \x9b31m\nnext"
    status["job"]["job_id"] = evil
    status["replicas"][1]["last_event"]["text"] = evil
    status["history"][0]["reason"] = evil
    for width in (80, 250):
        text = shown(status, width)
        assert text.count("[red]x[/red]") == 3
        assert not {"\x1b", "\x07", "\x9b"} & set(text)


def test_a_narrow_terminal_shows_the_events_of_replicas_below_them() -> None:
    status = sample()
    lines = [" ".join(line.split()) for line in shown(status, width=80).splitlines()]
    assert lines[:2] == [
        "digits steady for 12.3 s quorum 5.2 (2 of 3 replicas) step 1234 2 restarts",
        "lighthouse 0.1.0 epoch 5 up 1 h 02 min 1 agent",
    ]
    assert lines[3:7] == [
        "replica state step phase incarnation agent restarts",
        "0 member 1234 forward abcdefgh node-a 0",
        "1 joining - - mnopqrst node-a 2",
        "2 absent - - - - 0",
    ]
    assert lines[8:10] == [
        "ago last events of the replicas",
        "0.2 s Replica 1 lost: killed by SIGKILL.",
    ]
    assert lines[11] == "ago changed took step members reason"


def crowded() -> dict[str, Any]:
    """Four replicas, each with a long event of its own."""
    status = sample()
    status["job"] |= {"job_id": "train_digits-20261122-185102-3ad5", "replicas": 4}
    status |= {"step": 12_345_678, "restarts": 1234, "phase_age_s": 100_000.0}
    status["quorum"] |= {"name": "28158349.123", "live": ["0", "1", "2", "3"]}
    status["replicas"] = [
        {
            **sample()["replicas"][1],
            "replica_id": str(index),
            "phase": "finished",
            "step": 12_345_678,
            "worker_phase": "backward",
            "pause": None,
            "pause_s": None,
            "incarnation": "0123456789abcdef",
            "agent_id": "a-host-of-a-long-name.example.org-0123456789abcdef",
            "last_event": {
                "text": f"Replica {index} has " + "seen things " * 30,
                "ago_s": 86_400.0 * index,
            },
        }
        for index in range(4)
    ]
    change = {**sample()["history"][0], "reason": "what has happened " * 20, "step": 12_345_678}
    change["members"] = [str(index) for index in range(0, 400, 2)]
    status["history"] = [{**change, "kind": f"change{index}"} for index in range(10)]
    return status


def test_four_replicas_and_the_last_changes_fit_on_80_by_24_with_a_prompt() -> None:
    lines = shown(crowded(), width=80).splitlines()
    assert len(lines) <= 23
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].startswith("train_digits-20261122-185102-3ad5  steady for 27 h 46 min")
    replicas = [" ".join(line.split()) for line in lines[5:9]]
    assert replicas == [
        f"{index} finished 12345678 backward 01234567 a-host-…org-0123 2" for index in range(4)
    ]
    events = [line for line in lines if " has seen things " in line]
    assert [line.split()[3] for line in events] == ["3", "2", "1", "0"]  # the newest last
    assert all(line.rstrip().endswith("…") for line in events)
    assert " change9 " in lines[-1]
    assert "what has" in lines[-1]


def test_an_event_of_several_replicas_is_told_once() -> None:
    status = crowded()
    for replica in status["replicas"]:
        replica["last_event"] = {"text": "Replicas 0 to 3 train.", "ago_s": 1.0}
    assert shown(status, width=80).count("Replicas 0 to 3 train.") == 1
    assert shown(status, width=200).count("Replicas 0 to 3 train.") == 4


def test_a_wide_terminal_cuts_nothing() -> None:
    status = crowded()
    text = " ".join(shown(status, width=200).split())
    for replica in status["replicas"]:
        assert replica["agent_id"] in text
    assert text.count("what has happened") > 10 * 15
    assert " 0 2 4 6 8 10 12 14 16 18 20 22 24 26 28… " in text


def test_a_job_and_its_end_take_a_line_more_where_there_is_no_room() -> None:
    status = sample()
    status |= {"phase": "ended", "outcome": {"exit_code": 72, "reason": "crash loop " * 9}}
    for width in (40, 80, 200):
        text = shown(status, width)
        assert all(len(line) <= width for line in text.splitlines())
        assert " ".join(text.split()).count("crash loop") == 9
