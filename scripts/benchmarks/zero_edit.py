"""A step of an unmodified script beside that of the same script with a Manager of its own.

Two replicas of 0.1 M parameters, with a DataLoader, under ``ftrun --replicas 2``. The two forms
take turns, one job each. A sample is the median of one job's blocks of steps, and a ratio that of
neighbouring jobs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.jobs import BIN
from benchmarks.results import Result, Row

FORMS = ("ftrun", "explicit")
REPLICAS = 2
TIMEOUT_S = 180.0
BLOCK_STEPS, BLOCKS, WARM_UP = 100, 12, 300

EXPLICIT = """
manager = ftrun.manager(
    load_state_dict=lambda s: (model.load_state_dict(s["m"]), inner.load_state_dict(s["o"])),
    state_dict=lambda: {"m": model.state_dict(), "o": inner.state_dict()},
    use_async_quorum=False,
)
optimizer = ftrun.Optimizer(manager, inner)
network = ftrun.DistributedDataParallel(manager, model)
"""
UNMODIFIED = """
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
optimizer = inner
network = DistributedDataParallel(model)
"""
SCRIPT = """
import json, os, pathlib, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
FIRST
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(158, 158, bias=False) for _ in range(4)))
inner = torch.optim.SGD(model.parameters(), lr=1e-4)
FORM
steps, warm_up, blocks = (int(word) for word in sys.argv[1:4])
loader = DataLoader(TensorDataset(torch.randn(32 * steps, 158)), 32)
times = []
for block in range(warm_up // steps + blocks):
    began, used = time.perf_counter(), time.thread_time()
    for (x,) in loader:
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()
    whole, own = time.perf_counter() - began, time.thread_time() - used
    times.append((whole / steps * 1e3, own / steps * 1e3))
who = os.environ["FTRUN_REPLICA_ID"]
pathlib.Path(sys.argv[4], who).write_text(json.dumps(times[-blocks:]))
"""


def measure(starts: int) -> Result:
    """Each form ``starts`` times, in turn."""
    times: dict[str, list[float]] = {form: [] for form in FORMS}
    own: dict[str, list[float]] = {form: [] for form in FORMS}
    for start in range(starts):
        for form in FORMS if start % 2 else reversed(FORMS):
            whole_ms, own_ms = _step_ms(form)
            times[form].append(whole_ms)
            own[form].append(own_ms)
    return Result(
        "zero-edit",
        f"An unmodified script beside the explicit form, {starts} starts each",
        [
            Row("step_ms", "step, 0.1 M parameters", "ms", times, digits=3),
            Row("ratio", "… over the explicit form", "×", _ratios(times), digits=3),
            Row("thread_ms", "processor time of the training thread", "ms", own, digits=3),
            Row("thread_ratio", "… over the explicit form", "×", _ratios(own), digits=3),
        ],
        notes=[
            "`ftrun` is the unmodified script; both forms draw from a DataLoader. A sample is the "
            "median of one job's blocks; the two forms take turns, one job each."
        ],
    )


def _ratios(samples: dict[str, list[float]]) -> dict[str, list[float]]:
    pairs = zip(samples["ftrun"], samples["explicit"], strict=True)
    return {"ftrun": [unmodified / explicit for unmodified, explicit in pairs]}


def _step_ms(form: str) -> tuple[float, float]:
    """The median time of a step, and the median processor time of its training thread."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        first, body = ("import ftrun", EXPLICIT) if form == "explicit" else ("", UNMODIFIED)
        source = SCRIPT.replace("FIRST", first).replace("FORM", body)
        (directory / "script.py").write_text(source)
        numbers = [str(n) for n in (BLOCK_STEPS, WARM_UP, BLOCKS)]
        subprocess.run(
            [
                *(BIN / "ftrun", "--device", "cpu", "--replicas", str(REPLICAS)),
                *("--log-dir", directory / "logs", directory / "script.py", *numbers, name),
            ],
            env={**os.environ, "XDG_STATE_HOME": name},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        found = [json.loads((directory / str(index)).read_text()) for index in range(REPLICAS)]
    whole, own = zip(*(block for blocks in found for block in blocks), strict=True)
    return statistics.median(whole), statistics.median(own)
