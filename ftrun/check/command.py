"""Runs a trial of a script as an ordinary job of its own, and prints the verdict.

Not here: what is said about the reports (verdict.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftrun import own_process
from ftrun.check.verdict import Trial, lines_of
from ftrun.errors import naming

VARIABLE, PLAN, REFUSED = "FTRUN_CHECK", "plan.json", "refused.json"
"""As in inject/zero_edit/trial.py, which imports torch."""
VICTIM = "1"
END_S = 30.0


def check_script(
    words: Sequence[str],
    options: Sequence[str],
    replicas: int,
    steps: int,
    timeout_s: float,
    workers: int = 1,
) -> int:
    """Try the script ``words``; the exit code: 0 if it heals, else 1.

    Args:
        words: the script with its arguments.
        options: for ``ftrun run``.
        replicas: how many; one of them dies once. ``workers``: of each; the last one dies.
        steps: the trial ends after so many, if the script does not end before.
        timeout_s: the trial is ended then.
    """
    with tempfile.TemporaryDirectory(prefix="ftrun-check-") as name:
        directory = Path(name)
        plan = {"victim": VICTIM, "kill_at": max(1, steps // 3), "steps": steps}
        with naming(directory / PLAN):
            (directory / PLAN).write_text(json.dumps(plan))
        several = ["--workers-per-replica", str(workers)] if workers > 1 else []
        code, is_late = _run(words, [*several, *options], replicas, directory, timeout_s)
        refused = _read(directory / REFUSED)
        reports = {
            index: found
            for index in range(replicas)
            if (found := _read(directory / f"report-{index}.json")) is not None
        }
        differences = differences_of(directory / "logs")
    trial = Trial(
        *(replicas, int(VICTIM), code, is_late, timeout_s, refused, reports, workers, differences)
    )
    lines, is_well = lines_of(trial)
    for line in lines:
        print(f"ftrun check: {line}")
    return 0 if is_well else 1


def _run(
    words: Sequence[str],
    options: Sequence[str],
    replicas: int,
    directory: Path,
    timeout_s: float,
) -> tuple[int, bool]:
    """The run's exit code, and whether it was ended because it took too long."""
    command = ["run", "--replicas", str(replicas), "--prefix"]
    command += ["--log-dir", str(directory / "logs"), "--inject", "auto", *options, *words]
    process = own_process.start(
        "ftrun.cli",
        command,
        acts_on_signals=True,
        env={**os.environ, VARIABLE: str(directory)},
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
    has_stopped = False
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if not has_stopped and (directory / REFUSED).exists():
            has_stopped = True  # the rest would only be the script under torchrun's rules
            process.send_signal(signal.SIGTERM)
    timer.cancel()
    try:
        return process.wait(END_S), late.is_set()
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(), True


def differences_of(logs: Path) -> list[str]:
    """What the lighthouse has found to differ between replicas, by the job's events."""
    found: list[str] = []
    for path in logs.glob("*/events.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event.get("event") == "notice" and event.get("kind") == "diverged":
                found.append(str(event["text"]).rstrip("."))
    return found


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return found if isinstance(found, dict) else None
