"""An unmodified script under ``--replicas 2 -w 2``, or ``--replicas 4 --memory-snapshots auto``: a
worker dies, and is replaced in its group. No other replica shrinks or restarts, and the end is
equal to the bit to that of a run that nobody disturbs."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.jobs import LIGHTHOUSE, Job, was_late

pytestmark = pytest.mark.timeout(300)

MODELS = {
    "ddp": """
model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0004)
""",
    "accumulated": """
model = nn.parallel.DistributedDataParallel(model)
""",
    "local": """
model = nn.parallel.DistributedDataParallel(model)
""",
    "summed": """
model = nn.parallel.DistributedDataParallel(model)
""",
    "plain": """
model = nn.parallel.DistributedDataParallel(model)
""",
    "held": """
model = nn.parallel.DistributedDataParallel(model)
""",
    "unused": """
model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
""",
    "fsdp": """
from torch.distributed.fsdp import fully_shard
for part in (model[0], model[3]):
    fully_shard(part)
fully_shard(model)
""",
    "shards": """
from torch.distributed.fsdp import fully_shard
for part in (model[0], model[2]):
    fully_shard(part)
fully_shard(model)
""",
    "hsdp": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
for part in (model[0], model[3]):
    fully_shard(part, mesh=mesh)
fully_shard(model, mesh=mesh)
""",
}
SCRIPT = """
import contextlib, hashlib, json, os, signal, sys, threading, time
if os.environ.get("OVER_NCCL"):
    from tests.zero_edit.scripts.over import nccl
    nccl()
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
deaths = json.loads(sys.argv[1])


def at(place):
    for number, (*death, after_s, names) in enumerate(deaths):
        if death == [rank, step, place] and not os.path.lexists(f"died.{number}"):
            os.close(os.open(f"died.{number}", os.O_CREAT))
            if after_s:
                threading.Thread(target=die, args=(after_s, names), daemon=True).start()
            else:
                die(0, names)


def die(after_s, names):
    time.sleep(after_s)
    for name in names:
        kill(name)
    os.kill(os.getpid(), signal.SIGKILL)


def kill(name):
    for found in (x for x in os.listdir("/proc") if x.isdecimal()):
        try:
            is_here = os.path.samefile(f"/proc/{found}/cwd", ".")
            if is_here and open(f"/proc/{found}/cmdline").read().startswith(name):
                os.kill(int(found), signal.SIGKILL)
        except OSError:
            pass


def dies_before_the_note(notes):
    def patched(*given):
        at("unnoted")
        notes(*given)

    return patched


def dies_around(ends):
    def patched(*given):
        at("parted")
        ends(*given)
        at("left")

    return patched


if any(place == "unnoted" for _, _, place, *_ in deaths):
    from ftrun.inject.zero_edit.in_place import InPlace

    InPlace.hands_out = dies_before_the_note(InPlace.hands_out)
if any(place in ("parted", "left") for _, _, place, *_ in deaths):
    from ftrun.inject.zero_edit.in_place import InPlace

    InPlace.ends = dies_around(InPlace.ends)
if TAKES_NONE:
    from ftrun.inject.zero_edit.results import Results

    Results.of_others = lambda *_: None
if FALLS:
    from ftrun.core.replay.falls import Fall
    from ftrun.inject.zero_edit.in_place import InPlace
    from ftrun.inject.zero_edit.world.replayed import stay

    def falls(keeper):
        keeper.world.falls(Fall[FALLS])
        stay()

    InPlace._load = falls


def scales():
    number = 0
    while True:
        number += 1
        yield 1.0 + number % 7


step = 0
torch.manual_seed(1)
x = torch.randn(160, 16)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
names = [f"run of {world}" if rank == 0 else None]
dist.broadcast_object_list(names, src=0)
row = dist.new_group([0, 2])
layers = [nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)]
if KIND in ("plain", "shards", "held"):
    del layers[2]
if KIND in ("ddp", "unused", "accumulated", "summed"):
    layers.insert(1, nn.BatchNorm1d(16))
model = nn.Sequential(*layers)
for part in model:
    part.register_forward_hook(lambda *_: at("pass"))
    part.register_full_backward_hook(lambda *_: at("back"))
MODEL
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(10 + rank)
own, held = torch.Generator().manual_seed(rank), scales()
lost, means, log = 0.0, [], open(f"log.{rank}", "a")
for epoch in range(5):
    sampler.set_epoch(epoch)
    for bx, by in loader:
        at("draw")
        if KIND == "held":
            bx = bx + 0.01 * next(held) * torch.randn(bx.shape, generator=own)
        if KIND != "summed" or step % 3 == 0:
            optimizer.zero_grad()
        if KIND == "accumulated":
            with model.no_sync():
                nn.functional.mse_loss(model(bx[:2]), by[:2]).backward()
            at("half")
        is_local = KIND == "local" and step % 3
        with model.no_sync() if is_local else contextlib.nullcontext():
            loss = nn.functional.mse_loss(model(bx), by)
            at("loss")
            loss.backward()
        at("reduced")
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        at("told")
        means.append(mean.item())
        if step % 5 == 2:
            given = [mean.item() if rank == 1 else None]
            dist.broadcast_object_list(given, src=1)
            at("given")
            large = torch.full((100_000,), mean.item())
            dist.all_reduce(large)
            at("large")
            if rank in (0, 2):
                dist.all_reduce(mean, group=row)
            every = [None] * world
            dist.all_gather_object(every, (rank, given[0], large[7].item(), mean.item()))
            lost += sum(x[2] for x in every)
        at("before")
        if KIND != "summed" or step % 3 == 2:
            optimizer.step()
        at("stepped")
        lost += loss.item()
        step += 1
        print(f"step {step}", flush=True)
        log.write(f"{step}\\n")
        log.flush()
        time.sleep(0.02)
    model.eval()
    at("evaluates")
    with torch.no_grad():
        score = nn.functional.mse_loss(model(x[:8]), x[:8].sum(1, keepdim=True))
    dist.all_reduce(score)
    at("evaluated")
    model.train()
at("over")
whole = [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]
dist.barrier()
at("end")
raw = b"".join(p.numpy().tobytes() for p in whole)
print("end", hashlib.sha256(raw).hexdigest()[:12], lost, means[-3:], names, torch.rand(1).item())
"""
Death: TypeAlias = tuple[int, int, str, float, tuple[str, ...]]
"""Of a rank in a step, so many seconds after a place; and who dies with it, by its title."""
STEPS = [str(number) for number in range(1, 51)]


def death(rank: int, step: int, place: str, after_s: float = 0.0, *others: str) -> Death:
    return rank, step, place, after_s, others


def run(
    directory: Path,
    kind: str,
    deaths: Sequence[Death],
    *options: str,
    workers: int = 2,
    takes_none: bool = False,
    falls: str = "",
) -> tuple[list[str], str]:
    """What the workers have printed at their ends, and all output.

    ``workers``: of each replica; there are four in all. ``takes_none``: a replacement does not look
    into the logs of other replicas. ``falls``: for this reason none comes to its predecessor's
    place.
    """
    sizes = "--replicas", str(4 // workers), "-w", str(workers), "--device", "cpu"
    directory.mkdir()
    source = SCRIPT.replace("MODEL\n", MODELS[kind].lstrip()).replace("KIND", repr(kind))
    source = source.replace("TAKES_NONE", repr(takes_none)).replace("FALLS", repr(falls))
    with Job(directory, source, *sizes, *options, args=(json.dumps(deaths),)) as job:
        assert job.end() == 0, job.output
        assert not job.left()
        found = re.findall(r"^\[\d\.\d\] end .+$", job.output, re.MULTILINE)
        assert len(found) == 4, job.output
        return sorted(found), job.output


DEATHS: dict[str, tuple[str, list[Death]]] = {
    "in a pass, and beside its replacement": ("ddp", [death(2, 12, "pass"), death(3, 12, "loss")]),
    "in calls across": (
        "ddp",
        [death(1, 12, "told"), death(3, 22, "given"), death(0, 32, "large")],
    ),
    "in the vote, and in an evaluation": (
        "ddp",
        [death(2, 14, "before"), death(1, 20, "evaluates")],
    ),
    "of both replicas at once": ("ddp", [death(0, 17, "reduced"), death(3, 17, "back")]),
    "all of a replica": ("unused", [death(2, 17, "told"), death(3, 17, "draw")]),
    "sharded": (
        "fsdp",
        [death(1, 12, "pass"), death(2, 22, "given"), death(3, 35, "stepped")],
    ),
    "sharded in two ways": ("hsdp", [death(3, 12, "back"), death(0, 22, "large")]),
    "when only others have an average": (
        "ddp",
        [death(1, 12, "unnoted"), death(2, 25, "unnoted"), death(3, 38, "unnoted")],
    ),
    "when only others have an average of shards": ("fsdp", [death(3, 14, "unnoted")]),
    "at the end": ("ddp", [death(1, 50, "over"), death(2, 50, "end")]),
    "when all may leave": ("fsdp", [death(1, 50, "parted")]),
    "when all leave": ("fsdp", [death(0, 50, "left"), death(3, 50, "left")]),
    "between gradients that are summed over turns": (
        "summed",
        [death(2, 13, "loss"), death(1, 22, "told"), death(3, 35, "stepped")],
    ),
    "where each rank steps by itself": (
        "local",
        [death(2, 13, "loss"), death(1, 22, "told"), death(3, 36, "stepped")],
    ),
    "with the lighthouse": ("ddp", [death(2, 12, "back", 0, LIGHTHOUSE)]),
    "with the lighthouse, sharded": ("hsdp", [death(1, 22, "reduced", 0, LIGHTHOUSE)]),
}
"""By name, the model, and the deaths by rank, step and place."""
OF_ONE: dict[str, tuple[str, list[Death]]] = {
    "alone": ("ddp", [death(0, 12, "pass"), death(2, 22, "given"), death(1, 35, "unnoted")]),
    "alone, all at once": ("ddp", [death(x, 17, "reduced", 0.005 * x) for x in range(4)]),
    "alone, between summed gradients": ("summed", [death(3, 13, "loss"), death(0, 22, "told")]),
    "alone, with the lighthouse": ("unused", [death(2, 12, "back", 0, LIGHTHOUSE)]),
    "alone, at the end": ("ddp", [death(1, 50, "over"), death(2, 50, "end")]),
}
"""The same of replicas of one worker each."""
DEATHS |= OF_ONE
LAST = ("at the end", "when all may leave", "when all leave", "alone, at the end")
QUICK = ("in calls across", "sharded", "with the lighthouse", "alone")
_UNDISTURBED: dict[tuple[str, int], list[str]] = {}


@pytest.mark.parametrize(
    "deaths",
    [pytest.param(x, marks=[] if x in QUICK else [pytest.mark.slow]) for x in DEATHS],
)
def test_nothing_edited_and_nobody_leaves(tmp_path: Path, deaths: str) -> None:
    check(tmp_path, deaths)


@pytest.mark.slow
@pytest.mark.parametrize("deaths", ["in calls across", "sharded in two ways", "alone"])
def test_so_it_is_over_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: str) -> None:
    """With a double that behaves as NCCL: between replicas and, beside Gloo, within them."""
    monkeypatch.setenv("OVER_NCCL", "both")
    check(tmp_path, deaths)


def check(tmp_path: Path, deaths: str) -> None:
    """The workers that die are replaced in their groups, at no cost."""
    (kind, given), workers = DEATHS[deaths], 1 if deaths in OF_ONE else 2
    found, output = runs(tmp_path, kind, given, workers)
    if was_late(output):
        pytest.skip("this machine starts a process so slowly that the others go on without it")
    told = are_equal(tmp_path / "killed", output, found, kind, workers)
    assert len(told) >= len({rank for rank, *_ in given}), output
    unknown = {"the group ended before it was known whether a step was lost"}
    assert set(told) <= {"no step was lost"} | (unknown if deaths in LAST else set()), output


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        # Replica 1 loses step 5, and while it heals a worker of its donor dies.
        [death(3, 5, "unnoted"), death(1, 5, "told", 0.009)],
        # The others evaluate when it needs their state.
        [death(1, 11, "told"), death(1, 19, "unnoted")],
    ],
    ids=["a donor's worker dies", "at the end of an epoch"],
)
def test_a_lost_step_is_told_and_nobody_stands_still(
    tmp_path: Path, given: Sequence[Death]
) -> None:
    found, output = run(tmp_path / "killed", "hsdp", given, takes_none=True)
    if was_late(output):
        pytest.skip("this machine starts a process so slowly that the others go on without it")
    assert "stands still" not in output and "restarts the job" not in output, output
    assert len({line.split()[2] for line in found}) == 1, output  # all have the same parameters
    assert "1 step was not committed" in output


def runs(
    directory: Path, kind: str, deaths: Sequence[Death], workers: int = 2, falls: str = ""
) -> tuple[list[str], str]:
    """A run with deaths, beside an undisturbed one of its kind."""
    if (kind, workers) not in _UNDISTURBED:
        _UNDISTURBED[kind, workers], _ = run(directory / "quiet", kind, [], workers=workers)
    options = ("--memory-snapshots", "auto") if workers == 1 else ()
    return run(directory / "killed", kind, deaths, *options, workers=workers, falls=falls)


ALL_FALL: dict[str, tuple[str, list[Death], str]] = {
    "at once": ("plain", [death(1, 25, "loss"), death(2, 25, "loss")], "OTHER_INPUT"),
    "at once, sharded": ("shards", [death(0, 25, "told"), death(3, 25, "pass")], "SLOW"),
    "with a generator that the script holds": (
        "held",
        [death(1, 25, "loss"), death(2, 25, "loss")],
        "OTHER_INPUT",
    ),
    "the last one too": ("plain", [death(1, 25, "loss"), death(2, 28, "loss")], "SLOW"),
    "by another collective": ("plain", [death(1, 25, "loss"), death(2, 25, "loss")], "OTHER_CALL"),
}
"""By name, the model, the deaths, and why no worker can be replaced alone."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(x, marks=[] if x == "at once" else [pytest.mark.slow]) for x in ALL_FALL],
)
def test_all_replicas_fall_and_the_job_goes_on_from_what_one_has_left(
    tmp_path: Path, case: str
) -> None:
    kind, given, why = ALL_FALL[case]
    found, output = runs(tmp_path, kind, given, falls=why)
    from_memory = re.findall(r"replica (\d) resumes from step (\d+)\. Its agent", output)
    again = re.findall(r"Training restarts at step (\d+)", output)
    ends = {line.split()[2] for line in found}
    assert len(ends) == 1, output  # all have the same parameters
    if case == "by another collective":
        assert from_memory == [] and again == ["0"], output
    else:
        assert {step for _, step in from_memory} == set(again), output
        assert int(again[0]) > 0, output
    if kind == "held" and len(from_memory) == 1:  # the other one heals from it
        assert "the place of the generator held of script.py:scales" in output, output
        return
    if case == "the last one too":
        assert from_memory[0][0] == "1", output
        return  # it has trained some steps alone
    assert ends == {line.split()[2] for line in _UNDISTURBED[kind, 2]}, output


def are_equal(directory: Path, output: str, found: list[str], kind: str, workers: int) -> list[str]:
    """The end is that of the undisturbed run. Returns what each mend has cost."""
    assert found == _UNDISTURBED[kind, workers], output
    for rank in range(4):
        assert (directory / f"log.{rank}").read_text().split() == STEPS, output
        who = rf"{rank // workers}\.{rank % workers}"
        printed = re.findall(rf"^\[{who}\] step (\d+)$", output, re.MULTILINE)
        assert printed == STEPS, output
    assert "joined at" not in output
    return re.findall(r"All continued after \S+ s, and (.*)\. Restart", output)


def at_random(seed: int) -> tuple[str, int, list[Death]]:
    """A model, the workers of a replica, and up to six deaths: of one rank or two at once, in a
    repair, with a lighthouse."""
    rng = random.Random(seed)
    kind, deaths = rng.choice(RANDOM), list[Death]()
    for step in sorted(rng.sample(range(3, 49), rng.choice([2, 3, 3, 4]))):
        ranks = rng.sample(range(4), 1 if rng.random() < 0.7 else 2)
        others = (LIGHTHOUSE,) if rng.random() < 0.12 else ()
        deaths += [death(x, step, rng.choice(PLACES), moment(rng), *others) for x in ranks]
        if len(deaths) < DEATHS_MAX and rng.random() < 0.25 and ranks[0] ^ 1 not in ranks:
            later_s = rng.choice([0.0, 0.1, 0.3]) + moment(rng)
            deaths.append(death(ranks[0] ^ 1, step, rng.choice(["draw", "told"]), later_s))
    workers = 2 if kind in ("fsdp", "hsdp") else rng.choice([1, 2])
    return kind, workers, deaths[:DEATHS_MAX]


def moment(rng: random.Random) -> float:
    """So long after a place."""
    return rng.choice([0.0, 0.0, 1e-4, 1e-3, 1e-2, 0.03]) * rng.random()


RANDOM, DEATHS_MAX = ("ddp", "accumulated", "fsdp", "hsdp"), 6
PLACES = ("draw", "pass", "loss", "back", "reduced", "told", "before", "stepped")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("DEATHS", "8"))))
def test_deaths_at_random(tmp_path: Path, seed: int) -> None:
    kind, workers, given = at_random(seed)
    found, output = runs(tmp_path, kind, given, workers)
    assert "Traceback" not in output, output
    if was_late(output):
        pytest.skip("this machine starts a process so slowly that the others go on without it")
    if "cannot be replaced alone" in output:
        pytest.skip("a replica was restarted, by a rule that its line names")
    told = are_equal(tmp_path / "killed", output, found, kind, workers)
    assert set(told) == {"no step was lost"}, output
