"""Snapshots: how long the training thread is stopped, beside torch's ``async_save``.

Each peer runs the same loop of short steps beside the same state (snapshot_worker.py). The first
snapshot of each start has a separate row, because peers prepare threads, processes and memory in
it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.results import Result, Row, Samples

WORKER = Path(__file__).with_name("snapshot_worker.py")
WAYS = {"ftrun": "ftrun", "async_save, thread": "thread", "async_save, process": "process"}
TIMEOUT_S = 600.0
EVERY_S = 10.0
KINDS = ("held", "beyond", "own", "first", "other", "written")


def measure(parameters: int, snapshots: int, rounds: int) -> Result:
    """Every way in turn, ``rounds`` times, each with ``snapshots`` snapshots after the first."""
    rows: dict[str, Samples] = {name: {} for name in KINDS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            for key, values in _figures(_run(way, parameters, snapshots + 1)).items():
                if values:
                    rows[key].setdefault(name, []).extend(values)
    return Result(
        "snapshot",
        f"Snapshots of {parameters / 1e6:g} M parameters with Adam's moments "
        f"({12 * parameters / 1e6:g} MB)",
        [
            Row("held_ms", "training thread held, a snapshot", "ms", rows["held"]),
            Row("beyond_ms", "… beyond a plain copy of the state", "ms", rows["beyond"]),
            Row("own_ms", "… beyond its own copy", "ms", rows["own"]),
            Row("first_ms", "the first one, beyond a plain copy", "ms", rows["first"]),
            Row("other_ms", "longest other step until it is written, over the median", "ms",
                rows["other"]),
            Row("written_s", "until it is written and synced", "s", rows["written"], digits=2),
        ],
        notes=[
            "Held: the step with the snapshot, less the median step. A plain copy: of the same "
            "tensors into memory that was used before, in the same process; below 0 the snapshot's "
            "own copy was faster. Its own copy: as ftrun measures it; torch does not tell.",
            "async_save does not sync its files' directory, and keeps no hashes.",
        ],
    )  # fmt: skip


def _run(way: str, parameters: int, count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out.json"
        words = [str(WORKER), way, str(parameters), str(count), f"{EVERY_S:g}", str(out)]
        command = [sys.executable, *words]
        if way == "ftrun":
            command = [
                *(sys.executable, "-m", "ftrun", "--device", "cpu", "--log-dir", directory),
                *("--snapshot", str(out.with_suffix(".snapshots")), "--snapshot-keep", "1"),
                *("--snapshot-every", f"{EVERY_S:g}s", *words),
            ]
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, "XDG_STATE_HOME": directory},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{way}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def _figures(run: dict[str, Any]) -> dict[str, list[float]]:
    steps, copy_s = run["steps"], run["copy_s"]
    median_s = statistics.median(duration for _, duration in steps)
    found: dict[str, list[float]] = {name: [] for name in KINDS}
    for index, (at, began, ended, own_s) in enumerate(run["snapshots"]):
        held_s = steps[at][1] - median_s
        if index == 0:
            found["first"].append(1000 * (held_s - copy_s))
            continue
        until = [d for i, (when, d) in enumerate(steps) if began <= when <= ended and i != at]
        found["held"].append(1000 * held_s)
        found["beyond"].append(1000 * (held_s - copy_s))
        if own_s is not None:
            found["own"].append(1000 * (held_s - own_s))
        found["other"].append(1000 * (max(until, default=median_s) - median_s))
        found["written"].append(ended - began)
    return found
