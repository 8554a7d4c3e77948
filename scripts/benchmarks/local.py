"""Outer steps of DiLoCo, and quantised all-reduces: bytes and times, with and without a slow path.

Two replicas of 10 M parameters. Each form runs on ftrun and on torchft in turn; a sample is the
median of one job (local_worker.py).
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import jobs
from benchmarks.results import Result, Row

SCRIPT = jobs.HERE / "local_worker.py"
REPLICAS = 2
TIMEOUT_S = 300.0
RATES = {"slow": 125_000_000, "fast": 0}
PATHS = {"slow": "at 1 Gbit/s", "fast": "on loopback"}


@dataclass(frozen=True)
class Form:
    """One form: its name, its arguments, and the peers that run it."""

    key: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    peers: tuple[str, ...] = ("ftrun", "torchft")


BUCKETS = {"use_bucketization": True, "bucket_cap_mb": 32}
FORMS = (
    Form("plain", "DiLoCo"),
    Form("buckets", "DiLoCo, buckets", BUCKETS),
    Form("streaming", "DiLoCo, 2 fragments, delay 3", {"fragments": 2, "fragment_sync_delay": 3}),
    Form("quantised", "DiLoCo, buckets, quantised", {**BUCKETS, "should_quantize": True}),
    Form("float32", "all-reduce, float32", {"allreduce": False}),
    Form("int8", "all-reduce, int8", {"allreduce": "int8"}, ("ftrun",)),
    Form("fp8", "all-reduce, fp8", {"allreduce": "fp8"}, ("ftrun",)),
)


def measure(starts: int, steps: int, only: str = "") -> Result:
    """Each form ``starts`` times on each path; or one form only, as a separate result."""
    rows = []
    for form in FORMS:
        if only and form.key != only:
            continue
        sent: dict[str, list[float]] = {peer: [] for peer in form.peers}
        for key, rate in RATES.items():
            held: dict[str, list[float]] = {peer: [] for peer in form.peers}
            for start in range(starts):
                for peer in form.peers if start % 2 == 0 else reversed(form.peers):
                    seen = _run(peer, form, rate, steps)
                    held[peer].append(1e3 * statistics.median(h for h, _ in seen["times"]))
                    sent[peer].append(seen["bytes"] / 1e6)
            what = "time" if "allreduce" in form.arguments else "training thread held"
            name = f"{form.name}: {what} {PATHS[key]}"
            rows.append(Row(f"{form.key}_{key}_ms", name, "ms", held))
        rows.append(Row(f"{form.key}_mb", f"{form.name}: sent by a replica", "MB", sent))
    return Result(
        f"local-{only}" if only else "local",
        f"Outer steps of {REPLICAS} replicas of 10 M parameters, {starts} starts each"
        + (f": {only} alone" if only else ""),
        rows,
        notes=[
            "Per outer step, or per all-reduce of as many values. Held: within `inner.step()`, "
            "which is the inner optimizer's own time and the outer step's. A fragment has half "
            "of the parameters.",
            "1 Gbit/s: the kernel paces each connection (SO_MAX_PACING_RATE); two replicas have "
            "one. Bytes are those that TCP has acknowledged, of all connections of the process.",
            "torchft quantises only where Triton and CUDA are; here it sends float32 instead.",
        ],
    )


def _run(peer: str, form: Form, rate: int, steps: int) -> dict[str, Any]:
    out = Path(tempfile.mkdtemp(prefix=f"bench-local-{peer}-"))
    environment = {
        "BENCH_OUT": str(out),
        "BENCH_FORM": json.dumps(form.arguments),
        "BENCH_RATE": str(rate),
        "BENCH_STEPS": str(steps),
        "OMP_NUM_THREADS": "1",
        "XDG_STATE_HOME": str(out),
    }
    try:
        jobs.run_alone(peer, SCRIPT, REPLICAS, out, environment, TIMEOUT_S, "--device", "cpu")
        seen: dict[str, Any] = json.loads((out / "seen.0.json").read_text())
        return seen
    finally:
        shutil.rmtree(out, ignore_errors=True)
