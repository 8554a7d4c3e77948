"""The story that events tell, and the page about it."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ftrun.base.errors import UserError
from ftrun.tools.report.command import report
from ftrun.tools.report.page import render
from ftrun.tools.report.story import POINTS_MAX, read_story

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
HOSTILE = '</script><script>alert(1)</script>\x1b[31m"&'


def event(name: str, at_s: float, /, **facts: Any) -> str:
    time = (BEGAN + timedelta(seconds=at_s)).isoformat()
    return json.dumps({"schema": "ftrun.event/1", "time": time, "event": name, **facts})


def job(name: str = "a", at_s: float = 0.0) -> str:
    return event("job", at_s, job_id=name, replicas=2, workers_per_replica=1, nodes=1)


def incident(number: int, at_s: float, back_s: float | None, cause: str = "died") -> str:
    facts: dict[str, Any] = {
        "is_open": back_s is None,
        "replica": "1",
        "host": "h",
        "kind": "signal",
    }
    facts |= {"cause": cause, "back_after_s": back_s, "verdict": "restarted", "step": 3}
    return event(
        "incident", at_s, number=number, cost={"steps": 1, "replica_seconds": 2.0}, **facts
    )


def account(at_s: float, step: int, **more: Any) -> str:
    seconds = {"training": 1.5 * at_s, "starting": 0.5 * at_s}
    facts = {"wall_s": at_s, "total_s": 2 * at_s, "seconds": seconds, "goodput": 0.75}
    return event("account", at_s, step=step, steps=step, members=2, lost_s=1.0, **facts, **more)


def test_an_incident_is_told_once_by_its_last_version() -> None:
    story = read_story([job(), incident(1, 3.0, None), incident(1, 5.0, 2.0)], "a")
    assert story is not None
    ((at_s, last),) = story.incidents.values()
    assert (at_s, last["back_after_s"]) == (3.0, 2.0)
    assert story.recoveries() == [2.0]


def test_durations_of_steps_are_a_curve_and_a_table() -> None:
    told = [(0.010, 0.004, "0"), (0.030, 0.021, "1"), (0.020, 0.009, "1")]
    lines = [job()]
    for at, (step_s, own_s, slowest) in enumerate(told):
        lines.append(account(10.0 * at, at, step_s=step_s, own_s=own_s, slowest=slowest))
    lines.append(account(30.0, 3, step_s=None, own_s=None, slowest=None))
    story = read_story(lines, "a")
    assert story is not None
    page = render(story, BEGAN, "1")
    assert [value for _, value in story.step_times] == [0.010, 0.030, 0.020]
    for words in ("10 ms", "20 ms", "30 ms", "21 ms", "Duration of a step, in ms"):
        assert words in page, words
    assert "Replica 1 had the longest own part in 67 % of them." in page


def test_a_job_without_known_steps_has_no_durations() -> None:
    story = read_story([job(), account(10.0, 0)], "a")
    assert story is not None and "How long a step took" not in render(story, BEGAN, "1")


def test_another_job_of_the_same_lighthouse_is_left_out() -> None:
    lines = [job("b"), incident(1, 1.0, 1.0), job("a", 5.0), account(8.0, 4), job("c", 9.0)]
    lines.append(incident(1, 10.0, 1.0))
    story = read_story(lines, "a")
    assert story is not None
    assert (story.incidents, story.account["step"], story.last_s) == (
        {},
        4,
        8.0,
    )  # since the account began
    assert read_story(lines, "d") is None


def test_half_a_line_and_foreign_lines_are_counted() -> None:
    story = read_story([job(), '{"schema": "ftr', "[]", '{"time": 3}', account(1.0, 1)], "a")
    assert story is not None and story.unread == 3


def test_a_long_job_keeps_a_bounded_number_of_points_and_the_last() -> None:
    lines = [job(), *(account(float(at), at) for at in range(1, 5 * POINTS_MAX))]
    story = read_story(lines, "a")
    assert story is not None and len(story.points) <= POINTS_MAX
    assert story.points[-1] == (5 * POINTS_MAX - 1.0, 5 * POINTS_MAX - 1.0)


def test_hostile_text_stays_text() -> None:
    lines = [job(HOSTILE), incident(1, 1.0, 2.0, HOSTILE), account(9.0, 1)]
    lines.append(event("change", 2.0, kind=HOSTILE, reason=HOSTILE, members=[HOSTILE]))
    lines.append(event("ended", 9.0, exit_code=1, reason=HOSTILE))
    story = read_story(lines, HOSTILE)
    assert story is not None
    page = render(story, BEGAN, "1")
    assert page.count("<script") == 1 == page.count("</script>")
    assert "alert(1)</" not in page and "\x1b" not in page
    _, _, data = page.partition('id="data">')
    found = json.loads(data.partition("</script>")[0])
    assert found["incidents"][0]["cause"] == HOSTILE


def test_the_page_has_the_sums_and_needs_nothing_else() -> None:
    bands = {"width_s": 5.0, "last_s": 4.0, "steps": [2, 2]}
    bands["seconds"] = {"training": [7.0, 6.5], "starting": [3.0, 1.5]}
    lines = [job(), event("change", 0.5, kind="form", reason="ready", members=["0", "1"])]
    lines += [account(4.0, 1), account(9.0, 4, bands=bands)]
    story = read_story(lines, "a")
    assert story is not None
    page = render(story, BEGAN, "1")
    assert (
        "The sum over all uses is 18.000 replica-seconds: 9.000 s for each of 2 replicas." in page
    )
    assert "75.0 %" in page and page.count("<svg") == 3
    assert "http" not in page.replace("http-equiv", "") and "url(" not in page


def test_what_is_not_known_is_left_out() -> None:
    story = read_story([job()], "a")
    assert story is not None
    page = render(story, BEGAN, "1")
    assert "no account of this job" in page and "Nothing has failed." in page


def test_a_directory_without_events_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # other jobs of this user's
    monkeypatch.chdir(tmp_path)
    (tmp_path / "j").mkdir()
    with pytest.raises(UserError, match=r"has no events of job j"):
        report("j", tmp_path, tmp_path / "r.html")
    with pytest.raises(UserError, match=r"none in .* has events"):
        report(None, tmp_path, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_the_latest_job_is_taken_and_the_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").write_text(f"{job(name)}\n{account(3.0, 1)}\n")
    os.utime(tmp_path / "old" / "events.jsonl", (1, 1))
    assert report(None, tmp_path, tmp_path / "r.html") == 0
    assert "Job new" in (tmp_path / "r.html").read_text()
    assert "Other jobs: old." in capsys.readouterr().out
