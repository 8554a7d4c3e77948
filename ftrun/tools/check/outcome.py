"""Reads the files that the workers of a run have left, and derives the run's facts.

Not here: the run (command.py), its meaning (verdict.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ftrun.base.files import read_object
from ftrun.tools.check.launching import Heard
from ftrun.tools.check.losing import LOST
from ftrun.tools.check.plan import Kill
from ftrun.tools.check.runs import Loss, Run

REFUSED = "refused.json"
"""As in inject/zero_edit/trial.py, which imports torch."""
REPORT_BYTES_MAX = 1 << 30


def run_of(
    directory: Path,
    logs: Path,
    heard: Heard,
    files: dict[str, Path],
    kills: Sequence[Kill],
    replicas: int,
    *,
    is_group: bool,
) -> Run:
    """All facts of a run that is over. ``kills``: the planned deaths."""
    reports = {
        index: found
        for index in range(replicas)
        if (found := read_object(directory / f"report-{index}.json", REPORT_BYTES_MAX)) is not None
    }
    joins = [
        (int(replica), read_object(path) or {})
        for path in sorted(directory.glob("join-*.json"), key=lambda path: path.stat().st_mtime_ns)
        if (replica := path.stem.split("-")[1])
    ]
    struck = {
        x: path.stat().st_mtime
        for n, x in enumerate(kills)
        if (path := directory / f"killed-{n}").exists()
    }
    steps = {index: _steps(directory / f"steps-{index}") for index in range(replicas)}
    since = taken_since(steps)
    return Run(
        heard.exit_code,
        heard.is_late,
        read_object(directory / REFUSED),
        reports,
        joins,
        tuple(struck),
        differences_of(logs),
        files,
        frozenset(name for name, path in files.items() if path.stat().st_mtime < since),
        taken_again(struck, steps) if is_group else (),
        tuple(line for _, line in heard.told),
        {kill: line for kill in struck for line in told_after(struck, kill, heard.told)[:1]},
        loss=_loss(directory / LOST, steps),
    )


def _loss(path: Path, steps: Mapping[int, Sequence[tuple[float, int]]]) -> Loss | None:
    """The loss of a node, with the steps that the others repeated after it."""
    found = read_object(path)
    if found is None:
        return None
    return lost_at(Loss(**found), path.stat().st_mtime, steps)


def lost_at(loss: Loss, at: float, steps: Mapping[int, Sequence[tuple[float, int]]]) -> Loss:
    """``loss`` with the repeated steps. ``steps``: when each worker began each step."""
    again = (sum(when > at and x < loss.step for when, x in known) for known in steps.values())
    return replace(loss, again=max(again, default=0))


def _steps(path: Path) -> list[tuple[float, int]]:
    """When a replica began each step, over all of its restarts."""
    if not path.exists():
        return []
    lines = (line.split() for line in path.read_text().splitlines())
    return [(float(at), int(step)) for at, step in lines]


def taken_since(steps: Mapping[int, Sequence[tuple[float, int]]]) -> float:
    """When the first worker had taken its first step. ``steps``: when each began which step."""
    later = (at for known in steps.values() for at, step in known if step > known[0][1])
    return min(later, default=math.inf)


def taken_again(
    struck: Mapping[Kill, float], steps: Mapping[int, Sequence[tuple[float, int]]]
) -> tuple[tuple[int, int], ...]:
    """By death: the most steps that another worker repeated, and how many the replacement repeated.

    ``struck``: when each death was. ``steps``: when each worker began each step.
    """
    found = []
    for kill, at in struck.items():
        until = _next(struck, at)
        again = {
            index: sum(
                at < when <= until and step <= max((x for y, x in known if y <= at), default=-1)
                for when, step in known
            )
            for index, known in steps.items()
        }
        its = again.pop(kill.victim, 0)
        found.append((max(again.values(), default=0), its))
    return tuple(found)


def told_after(
    struck: Mapping[Kill, float], kill: Kill, told: Sequence[tuple[float, str]]
) -> list[str]:
    """The lines after a death and before the next one. ``told``: lines with their times."""
    at = struck[kill]
    return [line for when, line in told if at < when <= _next(struck, at)]


def _next(struck: Mapping[Kill, float], at: float) -> float:
    return min((x for x in struck.values() if x > at), default=math.inf)


def differences_of(logs: Path) -> list[str]:
    """The differences between replicas that the lighthouse has found, from the job's events."""
    found: list[str] = []
    for path in logs.glob("**/events.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event.get("event") == "notice" and event.get("kind") == "diverged":
                found.append(str(event["text"]).rstrip("."))
    return found
