"""Ranks die in the script's own collectives: no error, and all survivors are given the same."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from tests.jobs import Job, ask

SCRIPT = (Path(__file__).parent / "scripts" / "collectives.py").read_text()
FIRST = "from __future__ import annotations\n"
OVER_NCCL = f"{FIRST}from tests.unit.process_groups import nccl_double; nccl_double.install()\n"
"""Gradients over a double of NCCL, as on a machine with GPUs."""
CALLS_PER_STEP = 11
STEPS = 40
ENDS = ["SIGKILL"] * 4 + ["SIGSTOP"]


def check(job: Job, size: int) -> None:
    """All ranks have come to the end with the same parameters; survivors were given the same."""
    assert job.end() == 0, job.output
    assert "restarts the job" not in job.output, job.output
    assert "Traceback" not in job.output, job.output
    pattern = r"END (\d) life (\d) (\w+) parameters (\w+) seen (\w+)"
    ends = re.findall(pattern, job.output)
    assert len(ends) == size, job.output
    assert len({parameters for *_, parameters, _ in ends}) == 1, job.output
    for group in ("ends", "between"):
        seen = {digest for _, life, which, _, digest in ends if (life, which) == ("0", group)}
        assert len(seen) <= 1, job.output


def options(replicas: int, *more: str) -> tuple[str, ...]:
    return "--device", "cpu", "--replicas", str(replicas), *more


@pytest.mark.parametrize(
    ("kills", "replicas"),
    [
        ("1:60:0", 3),  # before an all_reduce
        ("0:125:300", 3),  # the root of broadcasts, in one of them or just after it
        ("2:100:1000,0:200:100", 4),  # two ranks one after the other
        ("1:150:0,2:150:0", 4),  # two at once
    ],
)
@pytest.mark.timeout(300)
def test_a_death_is_nothing_to_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: str, replicas: int
) -> None:
    monkeypatch.setenv("KILLS", kills)
    with Job(tmp_path, SCRIPT, *options(replicas)) as job:
        check(job, replicas)
        assert job.output.count("died: SIGKILL") == kills.count(":") / 2, job.output


@pytest.mark.parametrize("kills", ["1:121:14000", "0:125:300,2:200:0"])
@pytest.mark.timeout(300)
def test_so_it_is_with_gradients_over_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: str
) -> None:
    """Its Works end before their time, its errors are aborts, and its communicators die."""
    monkeypatch.setenv("KILLS", kills)
    with Job(tmp_path, SCRIPT.replace(FIRST, OVER_NCCL), *options(3)) as job:
        check(job, 3)
        assert job.output.count("died: SIGKILL") == kills.count(":") / 2, job.output


@pytest.mark.timeout(300)
def test_a_worker_of_several_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILLS", "2:120:300")
    with Job(tmp_path, SCRIPT, *options(2, "--workers-per-replica", "2")) as job:
        check(job, 4)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(int(os.environ.get("DEATHS", "40"))))
def test_deaths_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """One or two ranks, of which some are stopped; at once, or one after the other."""
    rng = random.Random(seed)
    replicas = rng.choice([3, 3, 4])
    ranks = rng.sample(range(replicas), rng.choice([1, 1, 2]))
    at_once = rng.random() < 0.3
    large = rng.choice(["1", "1", "0.5,1,4,16,0.1", "1,8,0.2,64,2,0.3"])
    kills: list[str] = []
    for rank in ranks:
        if not kills or not at_once:
            at = rng.randrange(3, CALLS_PER_STEP * STEPS)
        after, number = rng.choice([0, 100, 300, 1000, 3000, 30000]), rng.choice(ENDS)
        kills.append(f"{rank}:{at}:{after}:{number}")
    monkeypatch.setenv("KILLS", ",".join(kills))
    monkeypatch.setenv("LARGE", large)
    script = SCRIPT.replace(FIRST, OVER_NCCL) if os.environ.get("OVER_NCCL") else SCRIPT
    with Job(tmp_path, script, *options(replicas, "--hang-timeout", "3")) as job:
        check(job, replicas)


IN_SET_UP = """
import os, signal, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
total = torch.ones(1)
dist.all_reduce(total)
if rank == 1 and first:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("END", rank, total.item(), flush=True)
"""


@pytest.mark.timeout(300)
def test_a_death_before_the_first_step_begins_all_again(tmp_path: Path) -> None:
    with Job(tmp_path, IN_SET_UP, *options(3)) as job:
        assert job.end() == 0, job.output
        again = r"replica \d restarts with replica 1, which ended before the first step\. Restart"
        assert len(re.findall(again, job.output)) == 2, job.output
        assert sorted(re.findall(r"END (\d) 3\.0", job.output)) == ["0", "1", "2"], job.output


BY_RANK = """
import os, signal, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
parts = []
if rank == 1 and NOTES_EACH_STEP:
    from ftrun.inject.zero_edit.sparing import Sparing
    Sparing.notes = lambda self, *, must=False: True
for step in range(5):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    is_last = first and step == 3
    while is_last and rank == 2 and not os.path.exists("given"):
        time.sleep(0.01)
    given = [torch.full((1,), 10.0 * step + other) for other in range(3)]
    part = torch.zeros(1)
    work = dist.scatter(part, given if rank == 0 else None, async_op=True)
    if is_last and rank == 0:
        time.sleep(600)
    work.wait()
    parts.append(int(part))
    if is_last and rank == 1:
        os.kill(int(open("root").read()), signal.SIGKILL)
        open("given", "w").close()
    if rank == 0 and first:
        with open("root", "w") as root:
            root.write(str(os.getpid()))
print("END", rank, parts, flush=True)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("notes_each_step", [False, True])
def test_a_result_of_one_rank_alone_is_given_to_no_other(
    tmp_path: Path, notes_each_step: bool
) -> None:
    """The root of an asynchronous scatter dies when one of two has its part, and has begun its next
    step. Seen: that one was noted in that step, and all went on from there, without the others'
    parts."""
    script = BY_RANK.replace("NOTES_EACH_STEP", repr(notes_each_step))
    with Job(tmp_path, script, *options(3)) as job:
        assert job.end() == 0, job.output
        assert "died in the middle of scatter, which no other rank can make again" in job.output
        alone = "replica 2 has the state in memory, and the others take it from there"
        both = "replicas 1 and 2 have the state in memory"
        assert alone in job.output or (both in job.output and not notes_each_step), job.output
        found = dict(re.findall(r"END (\d) \[(.*)\]", job.output))
        ends = [", ".join(str(10 * x + rank) for x in range(5)) for rank in range(3)]
        assert [found["1"], found["2"]] == ends[1:]  # one of them waited in a backward pass
        assert found["0"].split(", ")[2:] == ends[0].split(", ")[2:]


CHOSEN = """
import os, signal, uuid, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if rank == 0:  # "rank 0 first": one barrier at two lines
    dist.barrier()
else:
    dist.barrier()
box = [uuid.uuid4().hex[: 4 if first else 12] if rank == 0 else None]
dist.broadcast_object_list(box, 0)
seed = torch.randint(1 << 30, (1,))
dist.broadcast(seed, 0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while True:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    step += 1
    if rank == 0 and first and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    back = torch.tensor([float(not first)])
    dist.all_reduce(back, op=dist.ReduceOp.MAX)
    if back.item():
        break
print("END", rank, box[0], seed.item(), flush=True)
"""


@pytest.mark.timeout(300)
def test_a_newcomer_has_what_its_predecessor_was_given(tmp_path: Path) -> None:
    """A name that rank 0 drew, and a seed; the barriers are at lines of their own."""
    with Job(tmp_path, CHOSEN, *options(2)) as job:
        assert job.end() == 0, job.output
        ends = re.findall(r"END \d (\w+) (\d+)", job.output)
        assert len(ends) == 2 and len(set(ends)) == 1, job.output
        assert len(ends[0][0]) == 4, job.output
        assert "rank 0 has other objects to broadcast than its predecessor had" in job.output


LEAVES = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if rank == 1 and step == 10:
        sys.exit(0)
    total = torch.ones(1)
    dist.all_reduce(total)
print("END", rank, step, total.item(), flush=True)
"""


@pytest.mark.timeout(300)
def test_a_rank_ends_while_the_other_waits_for_it_in_a_collective(tmp_path: Path) -> None:
    """It leaves at once; the other one goes on with the sum of both, by its deputy."""
    with Job(tmp_path, LEAVES, *options(2)) as job:
        assert job.end() == 77, job.output
        assert "Replica 1 left the training loop early at step 11" in job.output
        assert re.findall(r"END (\d) (\d+) (\S+)", job.output) == [("0", "29", "2.0")], job.output


DRAINED = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
is_over = torch.zeros(1)
while not is_over:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    total = torch.ones(1)
    dist.all_reduce(total)
    is_over = torch.tensor([float(os.path.exists("over"))])
    dist.all_reduce(is_over)
print("END", dist.get_rank(), total.item(), flush=True)
"""


@pytest.mark.timeout(300)
def test_a_rank_that_is_drained_leaves_the_others_groups(tmp_path: Path) -> None:
    with Job(tmp_path, DRAINED, *options(3)) as job:
        job.expect("in quorum")
        done = ask(tmp_path, "drain", "1")
        assert done.returncode == 0, done.stdout
        (tmp_path / "over").touch()
        assert job.end() == 0, job.output
        ends = re.findall(r"END (\d) (\S+)", job.output)
        assert sorted(ends) == [("0", "3.0"), ("2", "3.0")], job.output
        assert "failed" not in job.output, job.output


SHARDED = """
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
given = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
dcp.save({"given": given}, checkpoint_id="saved")
found = distribute_tensor(torch.zeros(8), mesh, [Shard(0)])
dcp.load({"given": found}, checkpoint_id="saved")
print("LOADED", found.full_tensor().tolist() == list(range(8)), flush=True)
"""


@pytest.mark.timeout(300)
def test_a_checkpoint_of_tensors_sharded_over_replicas_is_whole(tmp_path: Path) -> None:
    with Job(tmp_path, SHARDED, *options(2)) as job:
        assert job.end() == 0, job.output
        assert job.output.count("LOADED True") == 2, job.output


APART = """
import os, signal, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
turn, is_back = 0, {dies} == 0
while turn < {end}:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    turn += turn < 5 or is_back  # no further turns before the newcomer trains
    if {dies} and rank == 1 and first and turn == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    back = torch.tensor([float(not first)])
    dist.all_reduce(back, op=dist.ReduceOp.MAX)
    is_back = is_back or bool(back.item())
total = torch.ones(1)
dist.all_reduce(total)
print("END", rank, turn, total.item(), flush=True)
"""


@pytest.mark.timeout(300)
def test_a_newcomer_trains_on_while_the_others_are_in_a_collective(tmp_path: Path) -> None:
    """It is given up for this try; the others end, and its next life cannot follow them."""
    script = APART.format(end="(10 if first else 15)", dies=1)
    with Job(tmp_path, script, *options(3, "--hang-timeout", "3")) as job:
        job.expect("replica 1 was given up: waits in the reductions of step")
        assert job.end() == 77, job.output
    told = r"while replicas 0 and 2 reached allreduce at \S+py:\d+: they have waited for each other"
    assert re.search(told, job.output), job.output
    ends = re.findall(r"END (\d) (\d+) 3\.0", job.output)
    assert sorted(ends) == [("0", "10"), ("2", "10")], job.output


@pytest.mark.timeout(300)
def test_ranks_that_leave_the_loop_at_unlike_steps_end_the_job(tmp_path: Path) -> None:
    """Nobody was started again, so nobody can tell which of them is wrong."""
    script = APART.format(end="10 + rank", dies=0)
    with Job(tmp_path, script, *options(2, "--hang-timeout", "3")) as job:
        job.expect("have waited for each other for")
        assert job.end() == 1, job.output
    places = r"in allreduce at \S+py:\d+ and in the reductions of step 10"
    assert re.search(r"replicas? 0 and replica 1 have .*" + places, job.output), job.output
