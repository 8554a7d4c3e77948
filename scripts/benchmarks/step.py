"""The cost of a step over plain DDP's on the same Gloo: two replicas, nothing but training.

In every start plain DDP and a peer take turns in the same two processes (step_worker.py), and each
ratio is of two neighbouring blocks. malloc is set to keep its memory for all peers. Otherwise
returning memory to the system causes page faults, whose random number changes a large model's step
by a tenth.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import jobs
from benchmarks.results import Result, Row

PLAIN = "ddp"
SCRIPT = jobs.HERE / "step_worker.py"
REPLICAS = 2
TIMEOUT_S = 180.0
PARTS = (
    "zero_grad: ftrun begins the step",
    "forward",
    "backward, until the last gradient",
    "waiting for results, copying them to .grad",
    "step: ftrun decides, then the optimizer",
)

Block = dict[str, Any]
Seen = dict[str, list[Block]]


@dataclass(frozen=True)
class Model:
    """A stack of square layers; the number of blocks, and of steps in each."""

    key: str
    name: str
    width: int
    layers: int
    batch: int
    blocks: int
    steps: int
    warm_up: int


MODELS = (
    Model("small", "0.1 M parameters", 158, 4, 32, 8, 50, 150),
    Model("large", "50 M parameters", 2236, 10, 16, 4, 5, 3),
)


def measure(starts: int) -> Result:
    """ftrun and torchft beside plain DDP, ``starts`` times in turn, for each model."""
    rows = []
    for model in MODELS:
        seen: dict[str, list[Seen]] = {"ftrun": [], "torchft": []}
        for start in range(starts):
            for peer, found in seen.items():
                found.append(_run(peer, model, start))
        rows += _rows(model, seen)
    return Result(
        "step",
        f"A step of {REPLICAS} replicas beside plain DDP, {starts} starts each",
        rows,
        notes=[
            "A sample is the median of one start, in which plain DDP and the peer take turns in "
            "the same processes; a ratio is that of neighbouring blocks of steps.",
            "Processor time is that of all threads of one worker.",
        ],
    )


def profile(starts: int) -> Result:
    """A profile of a step, in plain DDP and in ftrun."""
    rows = []
    for model in MODELS:
        found = [_run("ftrun", model, start, marks=True) for start in range(starts)]
        rows += [
            _profile_row(model, found, f"part_{index}", what, "ms", _part(index))
            for index, what in enumerate(PARTS)
        ]
        for key, what, unit, digits in (
            ("main_thread_s", "processor time of the training thread", "ms", 2),
            ("processor_s", "processor time of all threads", "ms", 2),
            ("switches", "times a thread waited", "", 1),
            ("faults", "page faults", "", 1),
        ):
            row = _profile_row(model, found, key, what, unit, _of_block(key), digits)
            rows.append(row)
    return Result(
        "step-profile",
        f"Where a step's time goes, {starts} starts",
        rows,
        notes=["Plain DDP and ftrun took turns in the same processes; medians of blocks."],
    )


def _rows(model: Model, seen: dict[str, list[Seen]]) -> list[Row]:
    times: dict[str, list[float]] = {peer: [] for peer in ("ftrun", PLAIN, "torchft")}
    ratios: dict[str, list[float]] = {peer: [] for peer in ("ftrun", "torchft")}
    costs: dict[str, list[float]] = {peer: [] for peer in ("ftrun", "torchft")}
    for peer, starts in seen.items():
        for start in starts:
            times[peer].append(_median(start[peer], _step_ms))
            times[PLAIN].append(_median(start[PLAIN], _step_ms))
            ratios[peer].append(_ratio(start, peer, _step_ms))
            costs[peer].append(_ratio(start, peer, _of_block("processor_s")))
    key, name = model.key, model.name
    return [
        Row(f"{key}_ms", f"step, {name}", "ms", times, digits=2),
        Row(f"{key}_ratio", f"… over plain DDP, {name}", "×", ratios, digits=2),
        Row(f"{key}_processor", f"… in processor time, {name}", "×", costs, digits=2),
    ]


def _profile_row(
    model: Model,
    starts: list[Seen],
    key: str,
    what: str,
    unit: str,
    value: Callable[[Block], float],
    digits: int = 2,
) -> Row:
    samples = {
        peer: [value(block) for start in starts for block in start[peer]]
        for peer in ("ftrun", PLAIN)
    }
    return Row(f"{model.key}_{key}", f"{model.name}: {what}", unit, samples, digits=digits)


def _ratio(start: Seen, peer: str, value: Callable[[Block], float]) -> float:
    pairs = zip(start[peer], start[PLAIN], strict=True)
    return statistics.median(value(ours) / value(plain) for ours, plain in pairs)


def _median(blocks: list[Block], value: Callable[[Block], float]) -> float:
    return statistics.median(value(block) for block in blocks)


def _step_ms(block: Block) -> float:
    return 1000 * statistics.median(block["steps_s"])


def _part(index: int) -> Callable[[Block], float]:
    return lambda block: 1000 * statistics.median(parts[index] for parts in block["parts_s"])


def _of_block(key: str) -> Callable[[Block], float]:
    factor = 1000 if key.endswith("_s") else 1
    return lambda block: factor * float(block[key])


def _run(peer: str, model: Model, start: int, marks: bool = False) -> Seen:
    out = Path(tempfile.mkdtemp(prefix=f"bench-step-{peer}-"))
    names = (PLAIN, peer) if start % 2 == 0 else (peer, PLAIN)
    environment = {
        "BENCH_PEER": peer,
        "BENCH_OUT": str(out),
        "BENCH_ORDER": ",".join(names),
        "BENCH_WIDTH": str(model.width),
        "BENCH_LAYERS": str(model.layers),
        "BENCH_BATCH": str(model.batch),
        "BENCH_BLOCKS": str(model.blocks),
        "BENCH_STEPS": str(model.steps),
        "BENCH_WARM_UP": str(model.warm_up),
        "BENCH_MARKS": "1" if marks else "",
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    }
    try:
        jobs.run_alone(peer, SCRIPT, REPLICAS, out, environment, TIMEOUT_S)
        seen: Seen = json.loads((out / "seen.json").read_text())
        return seen
    finally:
        shutil.rmtree(out, ignore_errors=True)
