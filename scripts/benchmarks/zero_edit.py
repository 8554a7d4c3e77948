"""An unmodified script beside the same script in another form, or under another launcher.

- A step of two replicas, under ``ftrun --replicas 2``, beside the script with a Manager.
- An all_reduce by the script between two steps, under ``ftrun --replicas 2`` and torchrun.
- A step of two workers of one group, with memory snapshots and without.

The jobs of both forms run at the same time and take turns: while one trains a block of steps, the
workers of the other wait. So anything that slows the machine down for a second affects both. A
sample is one block, and a ratio compares two neighbouring blocks. Earlier blocks are a warm-up.
With memory snapshots it lasts until these allocate no new memory; the cost of that is a separate
row. The cost of memory snapshots is less than the variation of the machine's speed within seconds.
So those blocks are short and many, and the figure is the mean of their ratios with its standard
error. They have at least two steps, because no copy is made while a worker waits for its turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import statistics
import struct
import tempfile
import textwrap
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.jobs import BIN
from benchmarks.results import Result, Row, trimmed
from tests.jobs import Command

WORKERS = 2
TIMEOUT_S = 180.0

INNER = """
inner = torch.optim.SGD(model.parameters(), lr=1e-4)
"""
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
VALUE = """
value = torch.zeros(values)
"""
ONE_GROUP = """
torch.distributed.init_process_group("gloo")
SHARDED
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5)
"""
DDP = """
from torch.nn.parallel import DistributedDataParallel
network = DistributedDataParallel(model)
"""
FSDP = """
from torch.distributed.fsdp import fully_shard
network = model
for part in (*model, model):
    fully_shard(part)
"""
TRAIN = """
for (x,) in loader:
    optimizer.zero_grad()
    network(x).square().mean().backward()
    optimizer.step()
"""
CALL = """
for _ in range(calls):
    torch.distributed.all_reduce(value)
"""
SCRIPT = """
import json, os, pathlib, socket, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
FIRST
torch.manual_seed(0)
torch.set_num_threads(1)
width, layers, batch, steps, calls, values = map(int, sys.argv[1:7])
model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
FORM
loader = DataLoader(TensorDataset(torch.randn(batch * steps, width)), batch)
turns = socket.socket(socket.AF_UNIX)
turns.settimeout(TIMEOUT)
turns.connect(str(pathlib.Path(sys.argv[7], "turns")))
turns.sendall(b"NAME"[:1])
times = []
while True:
BEFORE
    turns.sendall(b".")
    if turns.recv(1) != b".":
        break
    began, used = time.perf_counter(), time.CLOCK()
TIMED
    whole, own = time.perf_counter() - began, time.CLOCK() - used
    times.append((whole / (calls or steps) * 1e3, own / (calls or steps) * 1e3))
who = "-".join((os.environ.get("FTRUN_REPLICA_ID", "0"), os.environ["RANK"]))
pathlib.Path(sys.argv[7], f"NAME{who}").write_text(json.dumps(times))
turns.sendall(b".")
turns.recv(1)
"""


@dataclass(frozen=True)
class Plan:
    """A model of ``layers`` square layers, and blocks of steps of it.

    Attributes:
        warm_up: at least this number of blocks do not count, and at most ``LONGEST`` times as many.
            With memory snapshots the warm-up is over when this number of blocks have taken no new
            memory.
        calls: the number of calls in a block after the steps, each of ``values`` values; 0: the
            steps are timed.
    """

    width: int
    layers: int
    batch: int
    steps: int
    warm_up: int
    blocks: int
    calls: int = 0
    values: int = 0

    def words(self) -> tuple[str, ...]:
        """The plan as the script's arguments."""
        model = self.width, self.layers, self.batch, self.steps
        return tuple(map(str, (*model, self.calls, self.values)))


@dataclass(frozen=True)
class Measured:
    """The measurements by form.

    Attributes:
        blocks: the step time and CPU time of each block, as means of both workers, in ms.
        warm: the number of blocks that do not count.
        others: during the blocks that count, the CPU time of the job's other processes, per step.
        held: bytes of the snapshots after each block.
    """

    blocks: dict[str, list[tuple[float, float]]]
    warm: int
    others: dict[str, float]
    held: list[int]

    def of(self, form: str, which: int) -> list[float]:
        """The blocks that count. ``which``: 0: time, 1: CPU time."""
        return [block[which] for block in self.blocks[form][self.warm :]]


PLAN = Plan(158, 4, 112, 320, 2, 16)
CALLS = {
    "4B": ("4 bytes", "µs", Plan(8, 1, 8, 2, 2, 16, calls=2000, values=1)),
    "64MiB": ("64 MiB", "ms", Plan(8, 1, 8, 2, 2, 16, calls=6, values=16 << 20)),
}
"""By name: what the script's own all_reduce reduces, and the unit of its time."""
GROUPS = {
    "ddp-8M-short": ("DDP, 8 MB a worker, short steps", DDP, Plan(295, 8, 360, 20, 12, 150)),
    "ddp-8M": ("DDP, 8 MB a worker", DDP, Plan(295, 8, 3600, 2, 16, 180)),
    "ddp-1G": ("DDP, 1 GB a worker", DDP, Plan(3340, 8, 1536, 2, 4, 9)),
    "fsdp-8M-short": ("FSDP2, 8 MB a worker, short steps", FSDP, Plan(418, 8, 200, 20, 12, 150)),
    "fsdp-8M": ("FSDP2, 8 MB a worker", FSDP, Plan(418, 8, 2000, 2, 16, 180)),
    "fsdp-1G": ("FSDP2, 1 GB a worker", FSDP, Plan(4720, 8, 768, 2, 4, 9)),
}
"""By name: models of one group of two workers. AdamW's state is three times the parameters. With
FSDP2 each worker has half of it."""
LONG_STEPS = ("ddp-8M", "fsdp-8M", "ddp-1G", "fsdp-1G")
LONGEST = 4
TOLD = re.compile(r"ftrun: (Memory snapshots: .*)")
Start = tuple[str, tuple[str, ...]]
"""The source of a script, and the words of the command before it."""


def measure(starts: int) -> Result:
    """Both forms ``starts`` times, and then both launchers."""
    unmodified = _source("ftrun", "", INNER + UNMODIFIED, "thread_time")
    explicit = _source("explicit", "import ftrun", INNER + EXPLICIT, "thread_time")
    replicas = ("--replicas", str(WORKERS))
    forms = {
        "ftrun": (unmodified, _ftrun("ftrun", *replicas)),
        "explicit": (explicit, _ftrun("explicit", *replicas)),
    }
    rows = _rows("", "step, 0.1 M parameters", "ms", forms, PLAN, starts)
    body = INNER + UNMODIFIED + VALUE
    launchers = {
        "ftrun": (_source("ftrun", "", body, "thread_time", CALL), _ftrun("ftrun", *replicas)),
        "torchrun": (
            _source("torchrun", "", body, "thread_time", CALL),
            (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(WORKERS)),
        ),
    }
    for name, (what, unit, plan) in CALLS.items():
        named = f"all_reduce of {what} between steps"
        rows += _rows(f"{name}_", named, unit, launchers, plan, starts)
    return Result(
        "zero-edit",
        f"An unmodified script beside the explicit form and under torchrun, {starts} starts each",
        rows,
        notes=[
            "`ftrun` is the unmodified script. Both forms draw from a DataLoader. Two jobs take "
            f"turns block by block, and a sample is the mean of a block: of {PLAN.steps} steps, or "
            f"of {' and '.join(f'{x.calls} calls of {what}' for what, _, x in CALLS.values())}.",
        ],
    )


def _rows(
    key: str, what: str, unit: str, jobs: Mapping[str, Start], plan: Plan, starts: int
) -> list[Row]:
    """The script under both launchers, or both of its forms: ``ftrun``, and another one."""
    factor = 1e3 if unit == "µs" else 1.0
    times: dict[str, list[float]] = {form: [] for form in jobs}
    own: dict[str, list[float]] = {form: [] for form in jobs}
    for _ in range(starts):
        found = _measure(jobs, plan)
        for form in jobs:
            times[form] += [whole * factor for whole in found.of(form, 0)]
            own[form] += [used * factor for used in found.of(form, 1)]
    other = next(form for form in jobs if form != "ftrun")
    over = "the explicit form" if other == "explicit" else other
    thread = f"… in processor time of the {'training' if not key else 'calling'} thread"
    return [
        Row(f"{key}step_{unit}", what, unit, times, digits=3),
        Row(f"{key}ratio", f"… over {over}", "×", _ratios(times, other), digits=3),
        Row(f"{key}thread_{unit}", thread, unit, own, digits=3),
        Row(f"{key}thread_ratio", f"… over {over}", "×", _ratios(own, other), digits=3),
    ]


def measure_memory(starts: int, names: Sequence[str]) -> Result:
    """One group with and without memory snapshots, ``starts`` times for each of ``GROUPS``."""
    rows, told = list[Row](), list[str]()
    for name in names:
        what, sharded, plan = GROUPS[name]
        body = ONE_GROUP.replace("SHARDED", sharded)
        given = ("--workers-per-replica", str(WORKERS), "--memory-snapshots")
        jobs = {
            form: (_source(form, "", body, "process_time"), _ftrun(form, *given, value))
            for form, value in (("ftrun", "auto"), ("off", "off"))
        }
        found = [_measure(jobs, plan, told) for _ in range(starts)]
        rows += _rows_of_memory(name, what, found, plan)
    return Result(
        "memory-snapshots",
        f"A step of one group with memory snapshots and without, {starts} starts of both",
        rows,
        notes=[
            "`ftrun` is with memory snapshots. A sample is the mean of a block of steps of both "
            "workers, and both jobs take turns block by block.",
            "Copies of the state take a share of the steps' time and come every few steps. The "
            "mean is of the ratios of neighbouring blocks, without a tenth of them at each end.",
            "Part of FSDP2's ratio is a saving: with snapshots its large gathers go by all-to-all, "
            "which takes less of the processor than Gloo's own.",
            "First steps: what the blocks take more that do not count. Snapshots take new memory "
            "there, 0.6 s for 1 GB.",
            *(f"ftrun's own line: {text}" for text in told),
        ],
    )


def _rows_of_memory(name: str, what: str, found: Sequence[Measured], plan: Plan) -> list[Row]:
    forms = ("ftrun", "off")
    times, own = (
        {form: [x for one in found for x in one.of(form, which)] for form in forms}
        for which in (0, 1)
    )
    ratios, ratios_own = _ratios(times, "off"), _ratios(own, "off")
    (mean, error), (mean_own, error_own) = (trimmed(x["ftrun"]) for x in (ratios, ratios_own))
    turns = {form: sum(times[form]) / sum(map(sum, times.values())) for form in forms}
    # They run in the other job's turns, too.
    others = {form: [one.others[form] * turns[form] for one in found] for form in forms}
    first, late, held = list[float](), list[float](), list[float]()
    for one in found:
        mine, plain = ([used for _, used in one.blocks[form][: one.warm]] for form in forms)
        first.append((sum(mine) - sum(plain)) * plan.steps / 1e3)
        late.append((one.held[-1] - one.held[one.warm - 1]) / WORKERS / 1e6)
        held.append(one.held[-1] / WORKERS / 1e6)
    return [
        Row(f"{name}_ms", f"step, {what}", "ms", times),
        Row(f"{name}_ratio", "… over that without", "×", ratios, digits=4),
        Row(f"{name}_mean", "… mean", "×", {"ftrun": [mean]}, digits=4),
        Row(f"{name}_error", "… standard error of the mean", "×", {"ftrun": [error]}, digits=4),
        Row(f"{name}_cpu", "processor time of all threads", "ms", own),
        Row(f"{name}_cpu_ratio", "… over that without", "×", ratios_own, digits=4),
        Row(f"{name}_cpu_mean", "… mean", "×", {"ftrun": [mean_own]}, digits=4),
        Row(f"{name}_cpu_error", "… standard error of the mean", "×", {"ftrun": [error_own]},
            digits=4),
        Row(f"{name}_others", "processor time of the launcher and its helpers, a step", "ms",
            others, digits=2),
        Row(f"{name}_first", "first steps: processor time more than without, a worker", "s",
            {"ftrun": first}, digits=2),
        Row(f"{name}_held", "memory of the snapshots, a worker", "MB", {"ftrun": held}, digits=0),
        Row(f"{name}_late", "… of it taken in the blocks that count", "MB", {"ftrun": late},
            digits=0),
    ]  # fmt: skip


def _held_bytes(pid: int) -> int:
    """The memory of an agent's anonymous files. The agent may hold a file twice."""
    held = dict[int, int]()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if "memfd" in os.readlink(path):
                about = path.stat()
                held[about.st_ino] = about.st_blocks * 512
    return sum(held.values())


def _others_s(pid: int, workers: Collection[int]) -> dict[int, float]:
    """The CPU time of each process of a job except its workers."""
    agent, found = psutil.Process(pid), {}
    for process in (agent, *agent.children(recursive=True)):
        if process.pid not in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found[process.pid] = times.user + times.system
    return found


def _ratios(samples: dict[str, list[float]], over: str) -> dict[str, list[float]]:
    pairs = zip(samples["ftrun"], samples[over], strict=True)
    return {"ftrun": [unmodified / other for unmodified, other in pairs]}


def _ftrun(form: str, *given: str) -> tuple[str, ...]:
    return (str(BIN / "ftrun"), "--device", "cpu", *given, "--log-dir", f"logs-{form}")


def _source(form: str, first: str, body: str, clock: str, call: str = "") -> str:
    """``call``: the call after a block's steps that is timed; "": the steps are timed."""
    before = textwrap.indent(TRAIN, "    ") if call else ""
    source = SCRIPT.replace("BEFORE", before).replace(
        "TIMED", textwrap.indent(call or TRAIN, "    ")
    )
    source = source.replace("FIRST", first).replace("FORM", body).replace("CLOCK", clock)
    return source.replace("NAME", form).replace("TIMEOUT", str(TIMEOUT_S))


def _measure(jobs: Mapping[str, Start], plan: Plan, told: list[str] | None = None) -> Measured:
    """Both forms in turns.

    Args:
        jobs: by form, the script's source and the words before it.
        told: gets what ftrun tells of its memory snapshots; None: the script has none.

    Raises:
        TimeoutError: a worker did not come to its turn in time.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(str(directory / "turns"))
        server.listen()
        server.settimeout(TIMEOUT_S)
        started = {
            form: stack.enter_context(_job(form, source, launcher, plan, directory))
            for form, (source, launcher) in jobs.items()
        }
        workers: dict[str, list[socket.socket]] = {form: [] for form in jobs}
        for _ in range(WORKERS * len(jobs)):
            worker = stack.enter_context(server.accept()[0])
            worker.settimeout(TIMEOUT_S)
            initial = worker.recv(1).decode()
            workers[next(form for form in jobs if form[0] == initial)].append(worker)
        pids = {form: job.process.pid for form, job in started.items()}
        warm, others, held = _take_turns(workers, pids, plan, has_memory=told is not None)
        for job in started.values():
            job.process.wait(TIMEOUT_S)
            if told is not None:
                told += TOLD.findall(job.output)
        return Measured({form: _means(directory, form) for form in jobs}, warm, others, held)


def _take_turns(
    workers: Mapping[str, list[socket.socket]],
    pids: Mapping[str, int],
    plan: Plan,
    *,
    has_memory: bool,
) -> tuple[int, dict[str, float], list[int]]:
    """``warm``, ``others`` and ``held`` of ``Measured``. ``pids``: of the launchers."""
    held, warm, block, before = list[int](), 0, 0, dict[str, dict[int, float]]()
    while not warm or block < warm + plan.blocks:
        for form in list(workers)[:: 1 if block % 2 else -1]:
            _await(workers[form])
            for worker in workers[form]:
                worker.sendall(b".")
            _await(workers[form], peek=True)
        block += 1
        held.append(_held_bytes(pids["ftrun"]) if has_memory else 0)
        is_still = len(held) > plan.warm_up and held[-1] == held[-1 - plan.warm_up]
        may_end = block >= plan.warm_up and (is_still or not has_memory)
        if not warm and (may_end or block >= LONGEST * plan.warm_up):
            warm, before = block, {form: _others_of(form, workers, pids) for form in workers}
    after = {form: _others_of(form, workers, pids) for form in workers}
    others = {
        form: sum(used - before[form].get(pid, 0.0) for pid, used in own.items()) * 1e3
        for form, own in after.items()
    }
    for word in (b"e", b"."):
        for form in workers:
            _await(workers[form])
            for worker in workers[form]:
                worker.sendall(word)
    return warm, {form: used / plan.blocks / plan.steps for form, used in others.items()}, held


def _others_of(
    form: str, workers: Mapping[str, list[socket.socket]], pids: Mapping[str, int]
) -> dict[int, float]:
    known = (x.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12) for x in workers[form])
    return _others_s(pids[form], {struct.unpack("3i", x)[0] for x in known})


def _job(form: str, source: str, launcher: Sequence[str], plan: Plan, directory: Path) -> Command:
    script = directory / f"of_{form}.py"
    script.write_text(source)
    words = (*launcher, str(script), *plan.words(), str(directory))
    return Command(directory, words, {"XDG_STATE_HOME": str(directory / form)})


def _await(workers: list[socket.socket], *, peek: bool = False) -> None:
    """Wait until all of them have reached their next turn. ``peek``: leave the message in the
    socket."""
    for worker in workers:
        if not worker.recv(1, socket.MSG_PEEK if peek else 0):
            raise RuntimeError("a worker has ended before its last turn")


def _means(directory: Path, form: str) -> list[tuple[float, float]]:
    found = [json.loads(path.read_text()) for path in directory.glob(f"{form}[0-9]*")]
    assert len(found) == WORKERS, directory
    return [
        (statistics.fmean(whole), statistics.fmean(own))
        for whole, own in (zip(*block, strict=True) for block in zip(*found, strict=True))
    ]
