"""What follows a loop without a loader has the result of the last step, whoever has lost that or
has died in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import Job

SCRIPT = """
import itertools, os, signal, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

def interrupted():
    "Lose this step, which the other replica commits."
    from ftrun.training.manager import Manager
    plain, until = Manager.should_commit, time.monotonic() + 120.0
    def forgoes(manager):
        Manager.should_commit = plain
        while not os.path.exists(f"{form} {steps}"):
            assert time.monotonic() < until
            time.sleep(0.01)
        return plain(manager, forgoes="it was interrupted")
    Manager.should_commit = forgoes

def step(i):
    global steps
    x = torch.arange(24.0).reshape(6, 4) / 24 + (i * world + rank) / 50
    optimizer.zero_grad()
    loss = model(x).square().mean()
    if is_first and (rank, steps) in DEATHS:
        loss.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    loss.backward()
    is_last = steps == 11 or (form in ("nested", "epochs") and steps == 2)
    if is_last and rank == LOSER:
        interrupted()
    optimizer.step()
    if is_last and 1 - rank == LOSER:
        open(f"{form} {steps}", "w").close()
    steps += 1
    with torch.no_grad():
        for mine, its in zip(average, model.parameters()):
            mine.lerp_(its, 0.1)

def look(what):
    values = [x.sum().item() for x in (*model.parameters(), *average)]
    print("LOOK", rank, what, steps, *values, flush=True)
"""
TRAIN = """
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
average, steps, form = [x.detach().clone() for x in model.parameters()], 0, "NAME"
def train():
    BODY
train()
look("NAME")
mean = torch.tensor([float(steps)])
dist.all_reduce(mean, op=dist.ReduceOp.AVG)
scheduler.step()
with torch.no_grad():
    for x in model.parameters():
        x.mul_(0.5)
look(f"NAME-end {mean.item()} {optimizer.param_groups[0]['lr']}")
"""
FORMS = {
    "range": """for i in range(12):
        step(i)""",
    "list": """for i in list(range(12)):
        step(i)""",
    "while": """i = 0
    while i < 12:
        step(i)
        i += 1""",
    "break": """i = 0
    while True:
        step(i)
        i += 1
        if i == 12:
            break""",
    "return": """for i in itertools.count():
        step(i)
        if steps == 12:
            return""",
    "nested": """for i in range(4):
        for j in range(3):
            step(3 * i + j)""",
    "epochs": """for epoch in range(4):
        for x in torch.arange(12).split(4):
            step(int(x[epoch]))
        look(f"epoch-{epoch}")""",
}


def script_of(*forms: str, loser: int | None = None, deaths: str = "()") -> str:
    """It trains in these forms, one after the other."""
    parts = [TRAIN.replace("BODY", FORMS[x]).replace("NAME", x) for x in forms]
    return "".join((SCRIPT.replace("LOSER", str(loser)).replace("DEATHS", deaths), *parts))


def looks(directory: Path, script: str, *options: str) -> tuple[list[str], str]:
    """What the replicas have seen, and the whole output."""
    with Job(directory, script, "--memory-snapshots", "off", *options) as job:
        assert job.end() == 0, job.output
    return sorted(re.findall(r"\] LOOK (.*)", job.output)), job.output


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What two ranks see in all forms."""
    script = script_of(*FORMS)
    return looks(tmp_path_factory.mktemp("plain"), script, "--nproc-per-node", "2")[0]


@pytest.mark.parametrize("loser", [0, 1])
def test_who_has_lost_the_last_step_takes_its_result_before_it_goes_on(
    tmp_path: Path, loser: int, undisturbed: list[str]
) -> None:
    """Also that of the first inner loop."""
    script = script_of(*FORMS, loser=loser)
    found, output = looks(tmp_path, script, "--replicas", "2")
    assert found == undisturbed, output
    assert len(re.findall(rf"Replica {loser} healed from", output)) == len(FORMS) + 2, output


@pytest.mark.parametrize("form", [x for x in FORMS if x not in ("list", "return")])
@pytest.mark.timeout(300)
def test_who_dies_in_the_last_steps_comes_to_the_same_end(
    tmp_path: Path, form: str, undisturbed: list[str]
) -> None:
    """Also in a ``while``, which a newcomer joins where a turn begins."""
    script = script_of(form, deaths="((1, 10), (0, 11))")
    found, output = looks(tmp_path, script, "--replicas", "2", "--min-replicas", "2")
    assert output.count("healed from replica") == 2, output
    assert set(found) >= {x for x in undisturbed if f" {form}" in x}, output
