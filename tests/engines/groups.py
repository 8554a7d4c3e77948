"""The cost of faults to two replica groups of two nodes each, with spare nodes.

Each worker notes when it has committed a step and with how many groups. Not here: the list of
faults (test_groups.py, scripts/large_groups.py), the machines (machines.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.chaos.network import HUB_ADDRESS
from tests.engines.machines import Machines
from tests.jobs import Job, Lighthouse
from tests.jobs.process import LOOK_S, START_S, write_at_once

AGENT = r"-m ftrun | acts ftrun\.cli "
NODES = 5
SETTLED_S = 1.0
TO_THE_END_S = 2.0
SCRIPT = """
import hashlib, os, socket, time, torch, ftrun
torch.set_num_threads(1)
torch.manual_seed(int(os.environ["RANK"]))
name = os.environ["REPLICA_GROUP_ID"] + "." + os.environ["RANK"]
model = torch.nn.Linear(16, 4)
manager = ftrun.manager(model.load_state_dict, model.state_dict)
optimizer = ftrun.Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.01))
ddp = ftrun.DistributedDataParallel(manager, model)
print("up", name, socket.gethostname(), flush=True)
notes = open(os.path.join(os.environ["NOTES"], name), "a", buffering=1)
end = os.path.join(os.environ["NOTES"], "end")
while not os.path.exists(end) or manager.current_step() < int(open(end).read()):
    optimizer.zero_grad()
    ddp(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    step = f"{time.monotonic():.4f} {manager.current_step()} {manager.num_participants()}"
    notes.write(f"{step} {socket.gethostname()}\\n")
    time.sleep(float(os.environ["PAUSE_S"]))
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
print("done", name, manager.current_step(), digest.hexdigest()[:16], flush=True)
"""


class Step(NamedTuple):
    """A worker's committed step: with how many groups, and on which node."""

    at: float
    number: int
    groups: int
    node: str


@dataclass
class Cost:
    """``stall_ms``: the other group's longest step, minus its usual length. ``back_s``: the time
    until the groups train together again."""

    stall_ms: float
    back_s: float


class TwoGroups:
    """The job, from the first step of both groups, in a ``with``.

    ``pause_s``: the pause between two steps. Short pauses measure a stall to the millisecond, and
    use a whole core.
    """

    def __init__(self, directory: Path, nodes: int = NODES, pause_s: float = 0.01) -> None:
        self._directory = directory
        self._pause_s = pause_s
        self._stack = contextlib.ExitStack()
        (directory / "machines").mkdir()
        self.machines = Machines(directory / "machines", nodes)
        self._stack.callback(self.machines.close)
        self.jobs: dict[int, Job] = {}
        self._started = 0

    def __enter__(self) -> TwoGroups:
        with contextlib.ExitStack() as stack:
            stack.push(self._stack)
            self._begin()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        hub = self.machines.start_hub(":")
        for index in range(len(self.machines.addresses)):
            self.machines.start(index, ":")
        at = f"{HUB_ADDRESS}:29510"
        self.lighthouse = self._stack.enter_context(
            Lighthouse(self._directory, "--insecure-plaintext", "--http", f"{HUB_ADDRESS}:29511",
                       bind=at, within=hub.inside())
        )  # fmt: skip
        for index in self.machines.nodes:
            self.start(index)
        self.await_groups()

    def start(self, index: int) -> Job:
        """Start a node's ftrun, perhaps again."""
        self._started += 1
        directory = self._directory / f"{self._started}-n{index}"
        directory.mkdir()
        nodes = len(self.machines.addresses)
        self.jobs[index] = self._stack.enter_context(
            Job(
                directory, SCRIPT, *self.lighthouse.found_by, "--replicas", "2", "-w", "2",
                "--nproc-per-node", "1", "--device", "cpu", "--nodes", str(nodes),
                "--spare-nodes", str(nodes - 4), "--node-rank", str(index),
                within=self.machines.nodes[index].inside(),
                environment={
                    "NOTES": str(self._directory), "HOME": str(directory),
                    "PAUSE_S": str(self._pause_s),
                },
            )
        )  # fmt: skip
        return self.jobs[index]

    # ------------------------------------------------------------ what has happened

    def steps(self, worker: str) -> list[Step]:
        """All steps of ``0.1`` and the like."""
        path = self._directory / worker
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [Step(float(at), int(step), int(groups), node) for at, step, groups, node in lines]

    def node_of(self, worker: str) -> int:
        """The node that runs it."""
        return int(self.steps(worker)[-1].node[1:])

    def spare(self) -> int:
        """A node that stands by; waits until its spawner has imported all modules."""
        busy = {self.node_of(f"{group}.{rank}") for group in (0, 1) for rank in (0, 1)}
        index = next(index for index in self.jobs if index not in busy)
        self.jobs[index].expect_process("ftrun spawner")
        return index

    def await_groups(self, after: float = 0.0) -> float:
        """Wait until all four workers train with both groups; returns the time of the last one."""
        end = time.monotonic() + START_S
        while True:
            firsts = [self._first(f"{group}.{rank}", after) for group in (0, 1) for rank in (0, 1)]
            found = [at for at in firsts if at is not None]
            if len(found) == len(firsts):
                return max(found)
            outputs = "\n".join(job.output for job in self.jobs.values())
            assert time.monotonic() < end, f"the groups do not train together:\n{outputs}"
            time.sleep(LOOK_S)

    def _first(self, worker: str, after: float) -> float | None:
        return next((x.at for x in self.steps(worker) if x.at > after and x.groups == 2), None)

    def cost(self, group: int, act: Callable[[], object]) -> Cost:
        """The cost of ``act``, by which this group is lost, to it and to the other one."""
        time.sleep(SETTLED_S)  # so that the usual length of a step is known
        began = time.monotonic()
        act()
        self._await_alone(1 - group, began)
        back = self.await_groups(self._alone_at)
        time.sleep(SETTLED_S)
        at = [step.at for step in self.steps(f"{1 - group}.0") if step.at > began - SETTLED_S]
        gaps = [(later, later - earlier) for earlier, later in itertools.pairwise(at)]
        usual = statistics.median(gap for later, gap in gaps if later < began)
        longest = max(gap for later, gap in gaps if later >= began)
        return Cost((longest - usual) * 1e3, back - began)

    def _await_alone(self, group: int, after: float) -> None:
        """Wait until a group has committed a step without the other one."""
        end = time.monotonic() + START_S
        while True:
            found = [x.at for x in self.steps(f"{group}.0") if x.at > after and x.groups == 1]
            if found:
                self._alone_at = found[0]
                return
            assert time.monotonic() < end, "the other group is not missed"
            time.sleep(LOOK_S)

    # ------------------------------------------------------------ faults

    def kill_worker(self, worker: str) -> None:
        """SIGKILL to one worker."""
        job = self.jobs[self.node_of(worker)]
        os.kill(job.titled(f"ftrun worker {worker}: "), signal.SIGKILL)

    def signal_agent(self, index: int, number: signal.Signals) -> None:
        """Send a signal to a node's ftrun."""
        processes = self.machines.nodes[index].processes()
        (pid,) = [pid for pid, line in processes.items() if re.search(AGENT, line)]
        os.kill(pid, number)
        if number == signal.SIGCONT:  # nsenter has stopped with it
            self.jobs[index].signal(number)

    def end(self) -> dict[str, set[str]]:
        """End all workers at one step; returns the digests of the states by rank and step."""
        found_at = max(step.number for group in "01" for step in self.steps(f"{group}.0")[-1:])
        write_at_once(self._directory / "end", str(found_at + int(TO_THE_END_S / self._pause_s)))
        found: dict[str, set[str]] = {}
        for job in self.jobs.values():
            job.end()
            for rank, digest in re.findall(r"done \d\.(\d \d+) (\w+)", job.output):
                found.setdefault(rank, set()).add(digest)
        return found
