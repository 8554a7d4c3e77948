"""torchrun's command on machines of their own: the same under both launchers, and without power.

Each machine gives its own name an address of the loopback interface, as Debian's do.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.base.errors import ExitCode
from tests.chaos.network import NODE_ADDRESS
from tests.engines.machines import Machines
from tests.jobs import Job
from tests.jobs.job import FTRUN, THIS_TREE
from tests.jobs.process import START_S, Process

NODES = 3
END_S = 100.0
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
PARITY = """
import os, torch, torch.distributed as dist
names = ["RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE",
         "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS",
         "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS",
         "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"]
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
words = [f"{name}={os.environ[name]}" for name in names]
said = " ".join(["said", *words, "sum", str(one.item())])
os.write(1, f"{said}\\n".encode())  # whole, whatever its neighbour prints
dist.barrier()
dist.destroy_process_group()
"""
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
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Machines on one network."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("machines of their own need root and iproute2")
    directory = tmp_path_factory.mktemp("machines")
    found = Machines(directory, NODES)
    try:
        for index in range(NODES):
            found.start(index, ":")
        yield found
    finally:
        found.close()


def said_under(
    launcher: tuple[str, ...], machines: Machines, directory: Path, *options: str
) -> list[str]:
    """What the workers of two nodes have said, in a job that ends well."""
    script = directory / "script.py"
    script.write_text(PARITY)
    words = ("--nnodes", "2", "--nproc-per-node", "2", "--role", "trainer", *options)
    environment = {**os.environ, **THIS_TREE, "TMPDIR": str(directory), "HOME": str(directory)}
    if launcher == TORCHRUN:  # its workers would meet at the loopback addresses of their names
        environment["GLOO_SOCKET_IFNAME"] = "eth0"
    running = []
    for index in (0, 1):
        own = ["--node-rank", str(index)]
        if launcher == TORCHRUN:
            own += ["--local-addr", machines.addresses[index]]
        inside = machines.nodes[index].inside()
        line = [*inside, *launcher, *words, *own, str(script)]
        running.append(Process(line, directory, environment))
    try:
        assert [process.end(END_S) for process in running] == [0, 0]
        found = [line for process in running for line in process.expect(r"said (.*)", 2)]
    finally:
        for index in (0, 1):
            for pid in machines.nodes[index].processes():
                os.kill(pid, signal.SIGKILL)
        for process in running:
            process.close()
    return sorted(found)


@pytest.mark.parametrize(
    "options",
    [
        ("--rdzv-backend", "c10d", "--rdzv-endpoint", "n0:29400"),
        ("--master-addr", NODE_ADDRESS.format(10), "--master-port", "29511"),
    ],
    ids=["c10d", "static"],
)
def test_the_same_command_is_the_same_job(
    machines: Machines, tmp_path: Path, options: tuple[str, ...]
) -> None:
    options = (*options, "--rdzv-id", "job")
    theirs = said_under(TORCHRUN, machines, tmp_path, *options)
    own = (*FTRUN, "--device", "cpu", "--log-dir", str(tmp_path / "logs"))
    ours = said_under(own, machines, tmp_path, *options)
    assert ours == theirs
    assert len(ours) == 4


def test_a_node_without_power_is_replaced_by_one_that_stands_by(
    machines: Machines, tmp_path: Path
) -> None:
    """No packet tells the lead, nor, when its own power goes, its hand: nothing is left there."""
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "1", "--device", "cpu")
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "n0:29400", "--grace", "1")
    wait = ("--rdzv-conf", "join_timeout=5")
    jobs = []
    try:
        for index in range(NODES):
            directory = tmp_path / f"n{index}"
            directory.mkdir()
            inside = machines.nodes[index].inside()
            environment = {"HOME": str(directory)}
            job = Job(
                directory,
                TRAINS,
                *options,
                *meeting,
                *wait,
                within=inside,
                environment=environment,
                fresh=True,
            )
            jobs.append(job)
            if index == 0:
                job.expect("nodes meet at")
            elif index == 1:
                job.expect("number 1 of 2")
        lead, lost, spare = jobs
        lead.expect("trains 0")
        lead.expect("n2 .* stands by")
        machines.power_off(1)
        lead.expect("Node n1 .* is lost")
        lead.expect("n2 .*takes its place")
        spare.expect("trains 1")
        assert lead.expect(r"up 0 (\d)", 2) == ["2", "2"]
        assert lost.left() == []
        machines.power_off(0)
        spare.expect("The first node is lost", timeout_s=START_S)
        assert spare.end() == ExitCode.LIGHTHOUSE_UNREACHABLE
        assert lead.left() == spare.left() == []
    finally:
        for job in jobs:
            job.close()
