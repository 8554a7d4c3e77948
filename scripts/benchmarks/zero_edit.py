"""A step of an unmodified script beside that of the same script with a Manager of its own.

Two replicas of 0.1 M parameters, with a DataLoader, under ``ftrun --replicas 2``. The jobs of both
forms run at the same time and take turns: while one trains a block of steps, the workers of the
other wait for theirs. So whatever slows the machine down for a second slows both. A sample is one
block, and a ratio that of two neighbouring ones.
"""

from __future__ import annotations

import json
import socket
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.jobs import BIN
from benchmarks.results import Result, Row
from tests.jobs import Command

FORMS = ("ftrun", "explicit")
REPLICAS = 2
TIMEOUT_S = 60.0
BLOCK_STEPS, BLOCKS, WARM_UP = 500, 16, 1000

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
import json, os, pathlib, socket, sys, time, torch
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
turns = socket.socket(socket.AF_UNIX)
turns.settimeout(TIMEOUT)
turns.connect(str(pathlib.Path(sys.argv[4], "turns")))
turns.sendall(b"NAME"[:1])
times = []
for block in range(warm_up // steps + blocks):
    turns.sendall(b".")
    if not turns.recv(1):
        break
    began, used = time.perf_counter(), time.thread_time()
    for (x,) in loader:
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()
    whole, own = time.perf_counter() - began, time.thread_time() - used
    times.append((whole / steps * 1e3, own / steps * 1e3))
who = os.environ["FTRUN_REPLICA_ID"]
pathlib.Path(sys.argv[4], f"NAME{who}").write_text(json.dumps(times[-blocks:]))
turns.sendall(b".")
turns.recv(1)
"""


def measure(starts: int) -> Result:
    """Both jobs ``starts`` times."""
    times: dict[str, list[float]] = {form: [] for form in FORMS}
    own: dict[str, list[float]] = {form: [] for form in FORMS}
    for _ in range(starts):
        for form, blocks in _blocks().items():
            times[form] += [whole for whole, _ in blocks]
            own[form] += [used for _, used in blocks]
    return Result(
        "zero-edit",
        f"An unmodified script beside the explicit form, {starts} starts of both",
        [
            Row("step_ms", "step, 0.1 M parameters", "ms", times, digits=3),
            Row("ratio", "… over the explicit form", "×", _ratios(times), digits=3),
            Row("thread_ms", "processor time of the training thread", "ms", own, digits=3),
            Row("thread_ratio", "… over the explicit form", "×", _ratios(own), digits=3),
        ],
        notes=[
            "`ftrun` is the unmodified script; both forms draw from a DataLoader. A sample is the "
            f"mean of a block of {BLOCK_STEPS} steps, and both jobs take turns block by block."
        ],
    )


def _ratios(samples: dict[str, list[float]]) -> dict[str, list[float]]:
    pairs = zip(samples["ftrun"], samples["explicit"], strict=True)
    return {"ftrun": [unmodified / explicit for unmodified, explicit in pairs]}


def _blocks() -> dict[str, list[tuple[float, float]]]:
    """By form: the time of a step in each block, and the processor time of its training thread.

    Raises:
        TimeoutError: a worker did not come to its turn in time.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(str(directory / "turns"))
        server.listen()
        server.settimeout(TIMEOUT_S)
        jobs = [stack.enter_context(_job(form, directory)) for form in FORMS]
        workers: dict[str, list[socket.socket]] = {form: [] for form in FORMS}
        for _ in range(REPLICAS * len(FORMS)):
            worker = stack.enter_context(server.accept()[0])
            worker.settimeout(TIMEOUT_S)
            initial = worker.recv(1).decode()
            workers[next(form for form in FORMS if form[0] == initial)].append(worker)
        for block in range(WARM_UP // BLOCK_STEPS + BLOCKS + 1):
            for form in FORMS if block % 2 else reversed(FORMS):
                _await(workers[form])
                for worker in workers[form]:
                    worker.sendall(b".")
                if block < WARM_UP // BLOCK_STEPS + BLOCKS:
                    _await(workers[form], peek=True)
        for job in jobs:
            job.process.wait(TIMEOUT_S)
        return {form: _mean_of_replicas(directory, form) for form in FORMS}


def _job(form: str, directory: Path) -> Command:
    first, body = ("import ftrun", EXPLICIT) if form == "explicit" else ("", UNMODIFIED)
    source = SCRIPT.replace("FIRST", first).replace("FORM", body)
    script = directory / f"of_{form}.py"
    script.write_text(source.replace("NAME", form).replace("TIMEOUT", str(TIMEOUT_S)))
    numbers = [str(n) for n in (BLOCK_STEPS, WARM_UP, BLOCKS)]
    options = ("--device", "cpu", "--replicas", str(REPLICAS), "--log-dir", f"logs-{form}")
    words = (str(BIN / "ftrun"), *options, str(script), *numbers, str(directory))
    return Command(directory, words, {"XDG_STATE_HOME": str(directory / form)})


def _await(workers: list[socket.socket], *, peek: bool = False) -> None:
    """Wait until all of them have come to their next turn; ``peek``: and ask for it once more."""
    for worker in workers:
        if not worker.recv(1, socket.MSG_PEEK if peek else 0):
            raise RuntimeError("a worker has ended before its last turn")


def _mean_of_replicas(directory: Path, form: str) -> list[tuple[float, float]]:
    found = [json.loads((directory / f"{form}{x}").read_text()) for x in range(REPLICAS)]
    return [
        (statistics.fmean(whole), statistics.fmean(own))
        for whole, own in (zip(*block, strict=True) for block in zip(*found, strict=True))
    ]
