"""The content of a report from a job's events: its end, account, curves, failures, changes.

Pure: lines in, records out. Facts that a line lacks are left out, because a report may be needed
after a crash. Not here: files (command.py), the layout (page.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

SCHEMA = "ftrun.event/1"
POINTS_MAX = 600
CHANGES_MAX = 60
REPLICAS_MAX = 1_000
Record = dict[str, Any]


@dataclass(slots=True)
class Story:
    """The content of the events. Times are seconds since ``began``: the account's beginning.

    Attributes:
        job: its last ``job`` event.
        account: its last account.
        bands: of the last account that has bands.
        points: time and step of each account.
        step_times: time, and duration of a step then.
        own_times: time, and the longest own part of a step then, without waits.
        slowest: how often each replica's own part was the longest.
        sizes: time and number of members of each quorum.
        incidents: the last version of each, by number.
        unread: lines that are no event.
        unwritten: events that the lighthouse could not write.
    """

    began: datetime
    job: Record = field(default_factory=dict)
    account: Record = field(default_factory=dict)
    bands: Record = field(default_factory=dict)
    ended: Record | None = None
    last_s: float = 0.0
    points: list[tuple[float, float]] = field(default_factory=list)
    step_times: list[tuple[float, float]] = field(default_factory=list)
    own_times: list[tuple[float, float]] = field(default_factory=list)
    slowest: Counter[str] = field(default_factory=Counter)
    sizes: list[tuple[float, float]] = field(default_factory=list)
    incidents: dict[int, tuple[float, Record]] = field(default_factory=dict)
    changes: list[tuple[float, Record]] = field(default_factory=list)
    lighthouses: int = 0
    unread: int = 0
    unwritten: int = 0

    def recoveries(self) -> list[float]:
        """The times from each failure until its replica trained again, shortest first."""
        backs = [record.get("back_after_s") for _, record in self.incidents.values()]
        return sorted(float(back) for back in backs if isinstance(back, int | float))

    def by_kind(self) -> list[tuple[str, list[Record]]]:
        """Incidents by their first cause, the most frequent kind first."""
        kinds: dict[str, list[Record]] = {}
        for _, record in self.incidents.values():
            kinds.setdefault(str(record.get("kind", "")), []).append(record)
        return sorted(kinds.items(), key=lambda item: -len(item[1]))


def read_story(lines: Iterable[str], job_id: str) -> Story | None:
    """The story of the job with this id; None: there is no event of it.

    A lighthouse's own file may contain several jobs: a ``job`` event begins each.
    """
    story, is_ours, unread = None, False, 0
    for line in lines:
        event, when = _event(line)
        if event is None or when is None:
            unread += bool(line.strip())
            continue
        if event["event"] == "job":
            is_ours = event.get("job_id") == job_id
        if not is_ours:
            continue
        if story is None:
            story = Story(when)
        story.last_s = max(story.last_s, (when - story.began).total_seconds())
        _take(story, event, (when - story.began).total_seconds())
    if story is not None:
        story.unread = unread
        del story.changes[:-CHANGES_MAX]
        _count_from_the_account(story)
    return story


def _count_from_the_account(story: Story) -> None:
    """Shift times to the account's beginning, which precedes the first event: the first agent's
    start."""
    _, when = _event(json.dumps(story.account)) if story.account else (None, None)
    wall_s = story.account.get("wall_s")
    if when is None or not isinstance(wall_s, int | float):
        return
    began = when - timedelta(seconds=wall_s)
    earlier_s = (story.began - began).total_seconds()
    if earlier_s <= 0:
        return  # the log lost its beginning
    story.began = began
    story.last_s += earlier_s
    story.points = [(at + earlier_s, value) for at, value in story.points]
    story.step_times = [(at + earlier_s, value) for at, value in story.step_times]
    story.own_times = [(at + earlier_s, value) for at, value in story.own_times]
    story.sizes = [(at + earlier_s, value) for at, value in story.sizes]
    story.changes = [(at + earlier_s, change) for at, change in story.changes]
    story.incidents = {n: (at + earlier_s, x) for n, (at, x) in story.incidents.items()}


def _event(line: str) -> tuple[Record | None, datetime | None]:
    try:
        found = json.loads(line)
        when = datetime.fromisoformat(found["time"])
    except (ValueError, KeyError, TypeError):
        return None, None
    is_event = found.get("schema") == SCHEMA and isinstance(found.get("event"), str)
    return (found, when) if is_event else (None, None)


def _take(story: Story, event: Record, at_s: float) -> None:
    unwritten = event.get("unwritten", 0)
    story.unwritten += unwritten if isinstance(unwritten, int) else 0
    match event["event"]:
        case "job":
            story.job, story.ended = event, None
            story.lighthouses += 1
        case "account":
            story.account = event
            story.bands = event.get("bands") or story.bands
            story.points = _thinned([*story.points, (at_s, float(event.get("step", 0)))])
            _take_step_times(story, event, at_s)
        case "incident":
            number = event.get("number")
            if isinstance(number, int):
                first = story.incidents.get(number)
                story.incidents[number] = (first[0] if first else at_s, event)
        case "change":
            story.changes.append((at_s, event))
            story.sizes = _thinned([*story.sizes, (at_s, float(len(event.get("members", ()))))])
            del story.changes[: -2 * CHANGES_MAX]
        case "ended":
            story.ended = event


def _take_step_times(story: Story, event: Record, at_s: float) -> None:
    step_s, own_s = event.get("step_s"), event.get("own_s")
    if isinstance(step_s, int | float):
        story.step_times = _thinned([*story.step_times, (at_s, float(step_s))])
    if isinstance(own_s, int | float):
        story.own_times = _thinned([*story.own_times, (at_s, float(own_s))])
        if len(story.slowest) < REPLICAS_MAX or event.get("slowest") in story.slowest:
            story.slowest[str(event.get("slowest"))] += 1


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Limit the number of points: every second one and the last, if there are too many."""
    return points if len(points) <= POINTS_MAX else [*points[:-1:2], points[-1]]
