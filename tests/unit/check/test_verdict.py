"""What is said after a trial of ``ftrun check``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.check.command import differences_of
from ftrun.check.verdict import Trial, lines_of


def report(starts: int = 0, **changes: Any) -> dict[str, Any]:
    own: dict[str, Any] = {
        "starts": starts,
        "joined": "epoch 1" if starts else "",
        "set": [],
        "changes": [],
    }
    facts = {"parameters": "aa", "lost": 0, "carried": ["optimizers SGD (a.py:3)"], "loose": []}
    return {**own, **facts, **changes}


def trial(
    reports: dict[int, dict[str, Any]], code: int = 0, refused: dict[str, str] | None = None
) -> Trial:
    return Trial(2, 1, code, False, 60.0, refused, reports)


def test_a_script_that_heals() -> None:
    lines, is_well = lines_of(
        trial({0: report(changes=["history (list, a.py)"]), 1: report(1, set=["i 0→7"])})
    )
    assert is_well
    assert lines == [
        "carried: optimizers SGD (a.py:3)",
        "replica 1 was killed, and joined at epoch 1",
        "set there: i 0→7",
        "not carried, and the script changes it: history (list, a.py)",
        "not carried: random numbers; a newcomer draws with a seed of its own",
        "ok: the script heals",
    ]


def test_values_that_a_newcomer_lacks_are_named() -> None:
    def survey(steps: int, shared: int, own: float) -> dict[str, Any]:
        return {"a.py:main bar.n": steps, "a.py:main carried": shared, "a.py:main loss": own}

    peer = report(then=survey(20, 20, 0.5), now=survey(50, 50, 0.1))
    newcomer = report(1, then=survey(20, 20, 0.7), now=survey(30, 50, 0.2))
    lines, is_well = lines_of(trial({0: peer, 1: newcomer}))
    assert is_well
    assert (
        "equal on both replicas before, and not any more (not carried, or kept by each rank): "
        "bar.n (30, at its peer 50)"
    ) in lines


def test_one_of_several_workers_is_killed() -> None:
    lines, is_well = lines_of(replace(trial({0: report(), 1: report(1)}), workers=2))
    assert is_well
    assert "worker 1 of replica 1 was killed, and the replica joined at epoch 1" in lines


@pytest.mark.parametrize(
    ("reports", "code", "words"),
    [
        ({0: report(), 1: report(1, parameters="bb")}, 0, "the parameters differ at the end"),
        ({0: report()}, 1, "replica 1 did not come to the end"),
        ({0: report(), 1: report()}, 0, "before the trial could kill a replica"),
        ({0: report(), 1: report(1, joined="")}, 0, "did not join its peers"),
        ({0: report(lost=4), 1: report(1)}, 0, "4 steps were lost"),
        ({0: report(), 1: report(1)}, 9, "the job ended with exit code 9"),
    ],
)
def test_a_script_that_does_not(reports: dict[int, Any], code: int, words: str) -> None:
    lines, is_well = lines_of(trial(reports, code))
    assert not is_well
    assert any(line.startswith("FAILED: ") and words in line for line in lines)


@pytest.mark.parametrize(
    ("form", "words"), [("world", "one world, restarted"), ("explicit", "uses ftrun itself")]
)
def test_a_script_that_is_not_carried(form: str, words: str) -> None:
    lines, is_well = lines_of(trial({}, 1, {"form": form, "reason": "a.py:3: no"}))
    assert not is_well
    assert lines[0] == "not carried: a.py:3: no"
    assert words in lines[1]


def test_a_trial_without_reports() -> None:
    assert lines_of(trial({}))[0] == [
        "the script has ended without a step of torch's DistributedDataParallel"
    ]
    assert "exit code 1" in lines_of(trial({}, 1))[0][0]
    late = Trial(2, 1, 0, True, 60.0, None, {})
    assert lines_of(late) == (["the trial did not end within 60 s (--timeout)"], False)


def test_batches_that_differ_are_not_well() -> None:
    found = "Replica 1 was at epoch 1 at step 9, unlike replica 0 at epoch 2: its batches differ"
    lines, is_well = lines_of(
        replace(
            trial({0: report(), 1: report(1, lacking=["the batches of the loader at a.py:9"])}),
            differences=[found],
        )
    )
    assert not is_well and lines[-1] == f"FAILED: {found}"
    assert "the newcomer could not be given: the batches of the loader at a.py:9" in lines


def test_differences_are_read_from_the_events_of_the_job(tmp_path: Path) -> None:
    log = tmp_path / "a-job"
    log.mkdir()
    events = [
        {"event": "notice", "kind": "formed", "text": "Replicas 0 and 1 in quorum 1."},
        {"event": "notice", "kind": "diverged", "text": "Replica 1 is elsewhere."},
    ]
    (log / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert differences_of(tmp_path) == ["Replica 1 is elsewhere"]
