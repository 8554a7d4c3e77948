"""torchrun's command on machines of their own: the same under both launchers, and without power.

Each machine gives its own name an address of the loopback interface, as Debian's do.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ftrun.base.errors import ExitCode
from tests.engines.launchers import CASES, compared
from tests.engines.machines import Machines
from tests.jobs import Job
from tests.jobs.process import START_S
from tests.process.test_team_memory import SCRIPT as KEPT

NODES = 3
NETWORKS = 3
TRAINS = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
print("up", os.environ["RANK"], dist.get_world_size(), flush=True)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
for step in range(100000):
    model(torch.ones(1, 2)).sum().backward()
    if step == 3:
        print("trains", os.environ["RANK"], flush=True)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Machines]]:
    """Networks with machines on each, which know nothing of each other."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("machines of their own need root and iproute2")
    with ExitStack() as stack:
        found = []
        for _ in range(NETWORKS):
            machines = Machines(tmp_path_factory.mktemp("machines"), NODES)
            stack.callback(machines.close)
            for index in range(NODES):
                machines.start(index, ":")
            found.append(machines)
        yield found


def test_the_same_command_is_the_same_job(networks: list[Machines]) -> None:
    """What torchrun does is known of most cases; `scripts/parity.py --nodes` runs it in all."""
    unlike = []
    for case, theirs, ours in compared(CASES, networks, is_new=False):
        if ours != (case.ours or theirs):
            unlike.append((case.name, theirs, ours))
    assert unlike == []


class Team:
    """torchrun's command on ``size`` of several machines. ``options``: more of ftrun's."""

    def __init__(
        self, machines: Machines, base: Path, script: str, *options: str, size: int = 2
    ) -> None:
        self._machines, self._base, self._script = machines, base, script
        self._options = (*options, "--device", "cpu", "--nnodes", str(size), "--grace", "1")
        self.jobs: list[Job] = []

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self.jobs:
            job.close()

    def start(self, index: int) -> Job:
        directory = self._base / f"n{index}"
        directory.mkdir()
        job = Job(
            directory,
            self._script,
            *self._options,
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "n0:29400"),
            *("--rdzv-conf", "join_timeout=10"),
            within=self._machines.nodes[index].inside(directory),
            environment={"HOME": str(directory)},
        )
        self.jobs.append(job)
        return job


@pytest.mark.slow
def test_a_group_goes_on_from_memory_when_a_node_has_no_power(
    networks: list[Machines], tmp_path: Path
) -> None:
    """One of its workers has died just before. Nothing is left on it, and no bit is another one."""
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "over").touch()
    alone = ("--workers-per-replica", "4", "--memory-snapshots", "off", "--device", "cpu")
    with Job(tmp_path / "alone", KEPT, *alone) as job:
        assert job.end() == 0
        undisturbed = ends(job)
    options = ("--nproc-per-node", "2", "--max-restarts", "9", "--memory-snapshots", "auto")
    machines = networks[1]
    with Team(machines, tmp_path, KEPT, *options) as team:
        lead, lost = team.start(0), team.start(1)
        lead.expect("Memory snapshots are kept on each node")
        spare = team.start(2)
        lead.expect("n2 .* stands by")
        os.kill(lost.worker(0, 3), signal.SIGKILL)
        machines.power_off(1)
        lead.expect("n2 .*takes its place")
        lead.expect(r"The lost node's states of step \d+ come from n0")
        lead.expect(r"all resumed from step \d+")
        for job in (lead, spare):
            (job.directory / "over").touch()
        assert lead.end() == spare.end() == 0
        assert sorted(ends(lead) + ends(spare)) == undisturbed
        assert lead.left() == spare.left() == lost.left() == []


def ends(job: Job) -> list[tuple[str, str]]:
    """What each worker has at the end, by rank."""
    return sorted(re.findall(r"^\[0\.(\d)\] end (\w+)$", job.output, re.MULTILINE))


def test_a_node_that_is_cut_off_comes_again_and_one_without_power_is_replaced(
    networks: list[Machines], tmp_path: Path
) -> None:
    """No packet tells the lead, nor, when its own power goes, its hand: nothing is left there."""
    machines = networks[0]
    options = ("--nproc-per-node", "1", "--max-restarts", "2")
    with Team(machines, tmp_path, TRAINS, *options) as team:
        lead = team.start(0)
        lead.expect("nodes meet at")
        lost = team.start(1)
        lead.expect("trains 0")
        machines.cut(1)
        lost.expect("The first node is lost")
        machines.mend(1)
        lead.expect("Node n1 .* is lost")
        lost.expect("number 1 of 2", 2)
        lead.expect("trains 0", 2)
        spare = team.start(2)
        lead.expect("n2 .* stands by")
        machines.power_off(1)
        lead.expect("Node n1 .* is lost", 2)
        lead.expect("n2 .*takes its place")
        spare.expect("trains 1")
        assert lead.expect(r"up 0 (\d)", 3) == ["2", "2", "2"]
        assert lost.left() == []
        machines.power_off(0)
        spare.expect("The first node is lost", timeout_s=START_S)
        assert spare.end() == ExitCode.LIGHTHOUSE_UNREACHABLE
        assert lead.left() == spare.left() == []
