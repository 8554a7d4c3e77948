"""Runs a script undisturbed and with deaths, each as an ordinary job of its own; prints a verdict.

In the first run nothing dies. In the second, replicas die in training and while a file is written,
and their peers wait for the newcomers: it must end as the first one. In the third they die in an
evaluation. Of several workers per replica one dies once, and the peers train on. If there is one
replica, or with memory snapshots, workers die one by one, and each is replaced in its group.

Not here: where they die (plan.py), the verdict about the runs (verdict.py).
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftrun.base import own_process
from ftrun.base.errors import naming
from ftrun.base.files import read_object
from ftrun.tools.check.place import Due, Place, compare, due_after
from ftrun.tools.check.plan import WRITING, Kill, plan_of
from ftrun.tools.check.verdict import Run, Trial, lines_of, may_vary

VARIABLE, PLAN, REFUSED, UNEVEN = "FTRUN_CHECK", "plan.json", "refused.json", "uneven"
"""As in inject/zero_edit/trial.py, which imports torch."""
INJECT = "auto"
END_S = 30.0
REPORT_BYTES_MAX = 1 << 30
NO_SNAPSHOTS = "ftrun: No memory snapshots"
NOT_MENDED = re.compile(rf"^({NO_SNAPSHOTS}|ftrun: .*cannot be replaced alone)")


def check_script(
    words: Sequence[str],
    options: Sequence[str],
    replicas: int,
    steps: int,
    timeout_s: float,
    workers: int = 1,
    *,
    is_group: bool = False,
) -> int:
    """Try the script ``words``; the exit code: 0 if it heals, else 1.

    Args:
        words: the script with its arguments.
        options: for ``ftrun run``.
        replicas: how many. ``workers``: of each; the last one dies. Of one replica all may.
        steps: the number of steps after which each run ends, if the script does not end before.
        timeout_s: a run is ended then.
        is_group: there are memory snapshots, so that workers are replaced one by one.

    Raises:
        UserError: the current directory cannot be copied.
    """
    with tempfile.TemporaryDirectory(prefix="ftrun-check-") as name:
        directory = Path(name)
        place = Place(directory, Path.cwd())
        several = ["--workers-per-replica", str(workers)] if workers > 1 else []
        # Of several workers the step of a death is computed again under a quorum that needs the
        # newcomer, with the next batches, and one of them may be a batch further.
        waits = [] if workers > 1 else ["--min-replicas", str(replicas)]
        command = ["run", "--replicas", str(replicas)]
        if is_group:  # each worker is seen as a replica
            waits, replicas = [], replicas * workers
        command += ["--prefix", "--inject", INJECT, *waits, *several, *options]
        command += _from_copy(words, options)

        def run(kind: str, kills: Sequence[Kill], clock: str = "") -> Run:
            together = replicas if kills and workers > 1 and not is_group else 0
            plan = {"steps": steps, "together": together, "is_group": is_group, "clock": clock}
            return _run(command, directory / kind, place, kills, plan, replicas, timeout_s)

        _say("runs undisturbed")
        undisturbed = run("undisturbed", ())
        trial = Trial(replicas, workers, timeout_s, undisturbed, is_group=is_group)
        if undisturbed.is_whole(replicas):
            once = workers > 1 and not is_group
            trial.plan = plan_of(undisturbed.reports, once=once, is_group=is_group)
            if trial.plan.exact:
                _say(
                    "runs with deaths in training"
                    + " and while a file is written" * trial.plan.writes
                )
                trial.exact = run("exact", trial.plan.exact)
                due = _due(undisturbed, trial.exact.kills)
                files = undisturbed.files
                starts = _starts(undisturbed) if is_group else {}
                trial.files = compare(files, trial.exact.files, due, trial.exact.early, starts)
                if trial.exact.is_whole(replicas) and may_vary(trial, trial.exact):
                    _say("runs undisturbed again, to see what is other in each run")
                    trial.again = run("again", (), UNEVEN)
                    trial.vary = compare(files, trial.again.files, {}, trial.again.early)
            if trial.plan.counted:
                _say("runs with deaths in evaluations")
                trial.counted = run("counted", trial.plan.counted)
        lines, is_well = lines_of(trial)
    for line in lines:
        _say(line)
    return 0 if is_well else 1


def _due(undisturbed: Run, kills: Sequence[Kill]) -> Due:
    """The parts of files that a replica which died in a write would have written until the join."""
    writing = [kill for kill in kills if kill.phase == WRITING]
    return {
        name: span
        for kill in writing
        for name, span in due_after(undisturbed.reports[kill.victim]["sizes"], kill.step).items()
    }


def _starts(undisturbed: Run) -> dict[str, int]:
    """How large each file was before the first step."""
    known = (report["sizes"].items() for report in undisturbed.reports.values())
    return {name: sizes["0"] for each in known for name, sizes in each if "0" in sizes}


def _say(line: str) -> None:
    print(f"ftrun check: {line}", flush=True)


def _from_copy(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """The script's words, as they are right in a copy of the current directory."""
    script = Path(words[0])
    if "--module" in options or not script.exists():
        return [*words]
    whole, here = script.absolute(), Path.cwd()
    named = whole.relative_to(here) if whole.is_relative_to(here) else whole
    return [str(named), *words[1:]]


def _run(
    command: Sequence[str],
    directory: Path,
    place: Place,
    kills: Sequence[Kill],
    plan: dict[str, Any],
    replicas: int,
    timeout_s: float,
) -> Run:
    directory.mkdir()
    whole = {**plan, "kills": [{**asdict(kill), "victim": str(kill.victim)} for kill in kills]}
    with naming(directory / PLAN):
        (directory / PLAN).write_text(json.dumps(whole))
    place.begin()
    logs = directory / "logs"
    words = [command[0], "--log-dir", str(logs), *command[1:]]
    code, is_late, told = _watched(words, place.path, directory, timeout_s)
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
    files = place.end(f"files-{directory.name}")
    since = taken_since(steps)
    return Run(
        code,
        is_late,
        read_object(directory / REFUSED),
        reports,
        joins,
        tuple(struck),
        differences_of(logs),
        files,
        frozenset(name for name, path in files.items() if path.stat().st_mtime < since),
        taken_again(struck, steps) if plan["is_group"] else (),
        tuple(line for _, line in told),
        {kill: line for kill in struck for line in told_after(struck, kill, told)[:1]},
    )


def _steps(path: Path) -> list[tuple[float, int]]:
    """When a replica has begun each step, in all of its lives."""
    if not path.exists():
        return []
    lines = (line.split() for line in path.read_text().splitlines())
    return [(float(at), int(step)) for at, step in lines]


def taken_since(steps: Mapping[int, Sequence[tuple[float, int]]]) -> float:
    """When some worker had taken its first step. ``steps``: when each has begun which."""
    later = (at for known in steps.values() for at, step in known if step > known[0][1])
    return min(later, default=math.inf)


def taken_again(
    struck: Mapping[Kill, float], steps: Mapping[int, Sequence[tuple[float, int]]]
) -> tuple[tuple[int, int], ...]:
    """By death, how many steps others took again after it, and how many the replacement.

    ``struck``: when each was. ``steps``: when each worker began each step.
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
    """What was told after a death, and before the next one. ``told``: with the times."""
    at = struck[kill]
    return [line for when, line in told if at < when <= _next(struck, at)]


def _next(struck: Mapping[Kill, float], at: float) -> float:
    return min((x for x in struck.values() if x > at), default=math.inf)


def _watched(
    command: Sequence[str], here: Path, directory: Path, timeout_s: float
) -> tuple[int, bool, list[tuple[float, str]]]:
    """The run's exit code, whether it took too long and was ended, and what was told when."""
    process = own_process.start(
        "ftrun.cli",
        list(command),
        acts_on_signals=True,
        cwd=here,
        env={**os.environ, VARIABLE: str(directory), "PYTHONHASHSEED": "0", "PWD": str(here)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    late = threading.Event()

    def end() -> None:
        late.set()
        process.send_signal(signal.SIGTERM)

    timer = threading.Timer(timeout_s, end)
    timer.start()
    has_stopped, told = False, list[tuple[float, str]]()
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if NOT_MENDED.search(line):
            told.append((time.time(), line.removeprefix("ftrun: ").strip().rstrip(".")))
        is_over = (directory / REFUSED).exists() or line.startswith(NO_SNAPSHOTS)
        if is_over and not has_stopped:
            has_stopped = True  # the rest would only be the script under torchrun's rules
            process.send_signal(signal.SIGTERM)
    timer.cancel()
    try:
        return process.wait(END_S), late.is_set(), told
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(), True, told


def differences_of(logs: Path) -> list[str]:
    """The differences between replicas that the lighthouse has found, by the job's events."""
    found: list[str] = []
    for path in logs.glob("*/events.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event.get("event") == "notice" and event.get("kind") == "diverged":
                found.append(str(event["text"]).rstrip("."))
    return found
