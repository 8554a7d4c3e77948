"""A worker of one of two replicas dies, and is replaced in its group: nobody leaves the quorum."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.jobs import Job, was_late

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import hashlib, json, os, signal, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import ftrun

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
replica, rank = int(os.environ["REPLICA_GROUP_ID"]), dist.get_rank()
lives = Path(f"lives.{replica}.{rank}")
life = lives.stat().st_size if lives.exists() else 0
with lives.open("a") as file:
    file.write("x")
deaths = [tuple(x) for x in json.loads(sys.argv[1])]
step = 0


def at(place):
    if (replica, rank, life, step, place) in deaths:
        os.kill(os.getpid(), signal.SIGKILL)


torch.manual_seed(1)
def layer():
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1))


model = nn.Sequential(layer(), layer(), layer())
for number, part in enumerate(model):
    part.register_forward_hook(lambda *_, number=number: at(f"forward {number}"))
    part.register_full_backward_hook(lambda *_, number=number: at(f"backward {number}"))
    fully_shard(part, mesh=mesh)
fully_shard(model, mesh=mesh)
adam = torch.optim.AdamW(model.parameters(), lr=0.01)
manager = ftrun.manager()
manager.register_state_dict_fn("model", model.load_state_dict, model.state_dict)
manager.register_state_dict_fn("adam", adam.load_state_dict, adam.state_dict)
optimizer = ftrun.Optimizer(manager, adam)
ftrun.replicate(manager, model)
torch.manual_seed(10 * replica + rank)
total = 0.0
while manager.current_step() < 40 or manager.num_participants() < 2:
    step = manager.current_step()
    at("head")
    optimizer.zero_grad()
    step = manager.current_step()
    at("begun")
    seed = 100 * step + 10 * replica + rank
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(seed))
    loss = model(x).square().mean()
    at("loss")
    loss.backward()
    at("reduced")
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    at("told")
    optimizer.step()
    seen = manager.session.machine.quorums.seen
    quorum = seen.quorum_id & 0xFFFFFFFF
    print(f"step {step} of {manager.num_participants()} in quorum {quorum}", flush=True)
    at("stepped")
    time.sleep(0.02)
step = 40
at("over")
whole = [p.full_tensor().detach() for p in model.parameters()]
at("gathered")
digest = hashlib.sha256(b"".join(p.numpy().tobytes() for p in whole)).hexdigest()[:12]
print(f"end {digest}", flush=True)
"""
OPTIONS = ("--replicas", "2", "-w", "2", "--device", "cpu", "--inject", "explicit")


def ends(job: Job) -> list[str]:
    """What each worker has printed at its end."""
    return sorted(re.findall(r"^\[\d\.\d\] end .+$", job.output, re.MULTILINE))


def run(
    directory: Path, deaths: list[list[object]], *options: str, script: str = SCRIPT
) -> tuple[list[str], str]:
    directory.mkdir()
    args = (json.dumps(deaths),)
    with Job(directory, script, *OPTIONS, *options, args=args) as job:
        assert job.end() == 0
        assert not job.left()
        return ends(job), job.output


ENDS = 4
DEATHS: dict[str, list[list[object]]] = {
    "in a pass, and beside its replacement": [
        [1, 0, 0, 12, "backward 0"],
        [1, 1, 0, 12, "told"],
    ],
    "all of a group, and a worker of the other": [
        [0, 0, 0, 20, "reduced"],
        [0, 1, 0, 20, "told"],
        [1, 1, 0, 20, "begun"],
    ],
    "between steps, and at the end": [[0, 1, 0, 9, "stepped"], [1, 1, 0, 40, "over"]],
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    found, _ = run(tmp_path_factory.mktemp("job") / "quiet", [])
    assert len(found) == ENDS
    return found


@pytest.mark.parametrize(
    "deaths",
    [pytest.param(x, marks=[] if x.startswith("all") else [pytest.mark.slow]) for x in DEATHS],
)
def test_no_sample_is_lost_and_nobody_leaves(
    tmp_path: Path, undisturbed: list[str], deaths: str
) -> None:
    """The ends are equal to the bit, and all steps are of both, in the job's first quorum."""
    given = DEATHS[deaths]
    found, output = run(tmp_path / "killed", given, "--memory-snapshots", "auto")
    if was_late(output):
        pytest.skip("this machine starts a process so slowly that the others go on without it")
    assert found == undisturbed
    steps = re.findall(r"^\[\d\.\d\] step \d+ (.+)$", output, re.MULTILINE)
    assert set(steps) == {"of 2 in quorum 1"}
    told = re.findall(r"All continued after \S+ s, and no step was lost\. Restart", output)
    assert len(told) == len({(replica, rank) for replica, rank, *_ in given})


def test_a_script_with_a_manager_is_asked_first(tmp_path: Path) -> None:
    """Under ``--inject auto`` it turns out to be one: its replica restarts, without a word."""
    found, output = run(tmp_path / "killed", [[1, 0, 0, 12, "loss"]], "--inject", "auto")
    assert len(found) == ENDS and len({line.split()[-1] for line in found}) == 1, output
    assert "emory snapshots" not in output and "replaced alone" not in output, output
    assert "worker 0 (pid" in output and "died: SIGKILL. Restart 1 of 10 now." in output, output


LOADS = """
from ftrun.inject.zero_edit.in_place import InPlace

loads = InPlace._load
InPlace._load = lambda keeper: (at("loads"), loads(keeper))
torch.manual_seed(1)
"""


@pytest.mark.slow
def test_when_no_replica_is_left_all_go_on_from_what_one_has_in_memory(tmp_path: Path) -> None:
    """In each replica a worker dies, and its replacements do before they have caught up."""
    seed = "\ntorch.manual_seed(1)\n"
    assert seed in SCRIPT
    script = SCRIPT.replace(seed, LOADS, 1)
    dies: list[list[object]] = [
        [*who, life, 0 if life else 20, "loads" if life else "told"]
        for who in ((0, 1), (1, 0))
        for life in range(4)
    ]
    options = "--memory-snapshots", "auto"
    found, output = run(tmp_path / "killed", dies, *options, script=script)
    assert len(found) == ENDS and len({line.split()[-1] for line in found}) == 1, output
    told = re.findall(r"resumes from step (\d+)\. Its agent kept that state", output)
    assert len(told) in (1, 2) and 0 < int(told[0]) <= 20, output
    assert f"Training restarts at step {told[0]}, " in output
