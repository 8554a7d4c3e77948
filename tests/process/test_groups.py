"""Replica groups that take several nodes each: placed by a lighthouse, led by their first nodes.

All nodes are agents of this host, with directories and logs of their own. tests/engines has nodes
with networks of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.base.errors import ExitCode
from tests.jobs import Job, Lighthouse, ask

TRAINS = """
import contextlib, hashlib, os, time, torch, ftrun
slot, rank = os.environ["REPLICA_GROUP_ID"], os.environ["RANK"]
torch.manual_seed(int(rank))
model = torch.nn.Linear(16, 4)
manager = ftrun.manager(model.load_state_dict, model.state_dict)
optimizer = ftrun.Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.01))
ddp = ftrun.DistributedDataParallel(manager, model)
print("up", slot, rank, flush=True)
def is_over():  # who sees the end first names a step that nobody has come to
    step = manager.current_step()
    if os.path.exists("../end") and not os.path.exists("../last"):
        with open(f"last.{rank}", "w") as draft:
            draft.write(str(step + 3))
        with contextlib.suppress(FileExistsError):
            os.link(draft.name, "../last")
    return os.path.exists("../last") and step >= int(open("../last").read())
seen = 0
while not is_over():
    optimizer.zero_grad()
    ddp(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    if manager.num_participants() != seen:
        seen = manager.num_participants()
        print("with", seen, "of", slot, rank, flush=True)
    time.sleep(0.05)
weights = b"".join(x.detach().numpy().tobytes() for x in model.parameters())
print("weights", rank, hashlib.sha256(weights).hexdigest()[:16], flush=True)
"""
ONE_WORLD = """
import os, time, torch, torch.distributed as dist
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
         "ROLE_RANK", "ROLE_WORLD_SIZE"]
print("world", *[os.environ[name] for name in names], flush=True)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100000):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    if step == 3:
        print("trains", os.environ["RANK"], flush=True)
    time.sleep(0.05)
    is_over = torch.tensor(float(os.path.exists("../end")))  # all leave the loop at one step
    dist.all_reduce(is_over)
    if is_over:
        break
print("weights", *next(model.parameters()).flatten().tolist(), flush=True)
dist.destroy_process_group()
"""
GROUPS = ("--replicas", "2", "-w", "2", "--nproc-per-node", "1", "--device", "cpu")


def node(lighthouse: Lighthouse, number: int, script: str, *options: str, life: str = "") -> Job:
    """``ftrun --replicas 2 …`` as node ``number``, in a directory of its own."""
    directory = lighthouse.directory / f"n{number}{life}"
    directory.mkdir()
    own = ("--node-rank", str(number), *(options or GROUPS))
    return Job(directory, script, *lighthouse.found_by, *own)


@contextlib.contextmanager
def nodes(lighthouse: Lighthouse, script: str, *options: str) -> Iterator[list[Job]]:
    """Four of them: two groups."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(node(lighthouse, number, script, *options)) for number in range(4)
        ]


def test_an_unmodified_script_is_one_world_of_all_nodes_and_heals(tmp_path: Path) -> None:
    with Lighthouse(tmp_path) as lighthouse, nodes(lighthouse, ONE_WORLD) as jobs:
        for number, job in enumerate(jobs):
            assert job.expect("world (.*)") == [f"{number} 0 4 1 {number} 4 {number} 4"]
            job.expect(f"trains {number}")
        here = socket.gethostname()

        def is_known() -> bool:
            asked = ask(jobs[0].directory, "status", "job", "--json")
            seen = json.loads(asked.stdout)["replicas"] if asked.returncode == 0 else []
            found = [[(x["group_rank"], x["node"]) for x in one["workers"]] for one in seen]
            return found == [[(0, ""), (1, here)]] * 2

        jobs[0].until(is_known, "in the status")
        os.kill(jobs[1].worker(0, 1), signal.SIGKILL)
        jobs[0].expect(rf"worker 1 \(pid \d+\) died: SIGKILL. Restart 1 .* Log on {here}: ")
        jobs[2].expect("Replica 0 joined")
        told = json.loads((jobs[0].logs / "job" / "incidents" / "0001.json").read_text())
        assert told["first_cause"]["worker"]["cause"] == f"died: SIGKILL, on {here}"
        (tmp_path / "end").touch()
        assert [job.end() for job in jobs] == [0, 0, 0, 0]
        assert len({job.expect("weights (.*)")[0] for job in jobs}) == 1
        assert [job.left() for job in jobs] == [[], [], [], []]


def test_lost_nodes_free_the_others_of_their_group_and_others_complete_it(tmp_path: Path) -> None:
    options = (*GROUPS, "--spare-nodes", "1")
    with contextlib.ExitStack() as stack:
        lighthouse = stack.enter_context(Lighthouse(tmp_path))
        first, second, third, fourth = stack.enter_context(nodes(lighthouse, TRAINS, *options))
        third.expect("with 2 of 1 0")
        assert second.expect("up (.*)") == ["0 1"]
        spare = stack.enter_context(node(lighthouse, 4, TRAINS, *options))
        spare.expect("1 of 1 spare nodes .* stand by")
        fourth.signal(signal.SIGKILL)
        assert spare.expect("up (.*)") == ["1 1"]
        first.expect("Replica 1 joined")
        assert fourth.left() == []

        third.signal(signal.SIGKILL)
        spare.expect("1 of 2 replica groups have their 2 nodes. The next one waits for 1 more")
        first.expect("Replica 1 lost")
        assert third.left() == []
        again = stack.enter_context(node(lighthouse, 2, TRAINS, *options, life="again"))
        again.expect("with 2 of 1 0")
        assert spare.expect("up (.*)", 2) == ["1 1", "1 1"]

        spare.signal(signal.SIGTERM)
        assert spare.end() == ExitCode.PREEMPTED
        again.expect("The next one waits for 1 more beside")
        last = stack.enter_context(node(lighthouse, 3, TRAINS, *options, life="again"))
        last.expect("with 2 of 1 1")
        (tmp_path / "end").touch()
        here = [first, second, again, last]
        assert [job.end() for job in here] == [0, 0, 0, 0]
        weights = [job.expect(r"weights (\d) (\w+)")[0] for job in here]
        assert weights[0] == weights[2] != weights[1] == weights[3]
        assert [job.left() for job in here] == [[], [], [], []]


def test_a_lighthouse_that_comes_back_takes_the_groups_over_as_they_are(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        lighthouse = stack.enter_context(Lighthouse(tmp_path))
        jobs = stack.enter_context(nodes(lighthouse, TRAINS))
        jobs[0].expect("with 2 of 0 0")
        pids = [jobs[1].worker(0, 1), jobs[3].worker(1, 1)]
        address = lighthouse.address
        lighthouse.kill()
        jobs[0].expect("The connection to the lighthouse has ended")
        back = stack.enter_context(Lighthouse(tmp_path, bind=address))
        back.expect(r"node \S+ \(.*\) has come, in its team", 4)
        jobs[0].expect("leads again and knows of")
        with node(lighthouse, 0, TRAINS, *GROUPS[:3], "4", *GROUPS[4:], life="other") as other:
            assert other.end() == ExitCode.REFUSED
            assert "its options are not those of the job's other nodes" in other.output
        assert [jobs[1].worker(0, 1), jobs[3].worker(1, 1)] == pids
        (tmp_path / "end").touch()
        assert [job.end() for job in jobs] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--replicas", "2", "-w", "2", "--nproc-per-node", "1"), "nodes find each other by a"),
        (("--replicas", "2", "-w", "3", "--nproc-per-node", "2"), "two names of one thing"),
        (("--replicas", "2", "-w", "2", "--topology", "r1"), "--topology is for replica groups"),
    ],
)
def test_what_contradicts_itself_is_refused(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    with Job(tmp_path, TRAINS, "--device", "cpu", *options) as job:
        assert job.end() == ExitCode.USAGE
        assert words in job.output
