"""torchrun's command on several nodes: one group of workers, led by one agent, with hands.

Both nodes are agents of this host, with directories and logs of their own. tests/engines has nodes
with networks of their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.base.errors import ExitCode
from tests.jobs import Job, free_port
from tests.jobs.etcd import needs_etcd, running_etcd

WORLD = """
import os, sys, torch, torch.distributed as dist
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
         "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"]
print("world", *[os.environ[name] for name in names], flush=True)
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print("sum", one.item(), flush=True)
dist.destroy_process_group()
"""
FAILS = """
import os, pathlib, sys, time
rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print("try", rank, restart, flush=True)
told = pathlib.Path(DIRECTORY, f"rank 0 of try {restart}")
if rank == "1":
    while not told.exists():
        time.sleep(0.01)
    sys.exit(3)
told.touch()
time.sleep(600)
"""
TRAINS = """
import os, time, torch, torch.distributed as dist
print("up", os.environ["RANK"], os.environ["WORLD_SIZE"],
      os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
for step in range(100000):
    model(torch.ones(1, 2)).sum().backward()
    if step == 3:
        print("trains", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
    time.sleep(0.05)
    is_over = torch.tensor(float(os.path.exists("end")))  # all leave the loop at one step
    dist.all_reduce(is_over)
    if is_over:
        break
"""


class Node(Job):
    """``ftrun --nnodes …`` as node ``number``, in a directory of its own."""

    def __init__(
        self, base: Path, number: int, port: int, script: str, *options: str, **variables: str
    ) -> None:
        directory = base / f"n{number}"
        directory.mkdir(exist_ok=True)
        self.port = port
        at = () if variables else ("--rdzv-endpoint", f"127.0.0.1:{port}")
        own = ("--device", "cpu", *options)
        super().__init__(directory, script, *at, *own, environment=variables)


@contextlib.contextmanager
def nodes(base: Path, script: str, *options: str) -> Iterator[tuple[Node, Node]]:
    """Two nodes of one group."""
    port = free_port()
    with (
        Node(base, 0, port, script, "--node-rank", "0", *options) as lead,
        Node(base, 1, port, script, "--node-rank", "1", *options) as hand,
    ):
        yield lead, hand


def gone(*jobs: Job) -> None:
    """No process of the job is left on any node."""
    for job in jobs:
        assert job.left() == []


def test_one_world_of_two_nodes_has_torchruns_variables(tmp_path: Path) -> None:
    """The second node has fewer workers, and its options from a cluster, as torchrun permits."""
    port = free_port()
    of_cluster = {
        "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port),
    }  # fmt: skip
    options = ("--nnodes", "2", "--node-rank", "0", "--nproc-per-node", "2")
    with (
        Node(tmp_path, 0, port, WORLD, *options) as lead,
        Node(tmp_path, 1, port, WORLD, **of_cluster) as hand,
    ):
        assert lead.end() == 0, lead.output + hand.output
        assert hand.end() == 0, hand.output
        assert sorted(lead.expect(r"world (.*)", 2)) == ["0 0 3 2 0 2 0 3 0", "1 1 3 2 0 2 1 3 0"]
        assert hand.expect(r"world (.*)") == ["2 0 3 1 1 2 2 3 0"]
        assert hand.expect(r"sum (.*)") == ["3.0"]
        assert "[0.2]" in hand.output
        assert "is lost" not in lead.output
        gone(lead, hand)


@needs_etcd
def test_an_etcd_names_the_node_where_all_meet(tmp_path: Path) -> None:
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "etcd-v2")
    (tmp_path / "etcd").mkdir()
    with running_etcd(tmp_path / "etcd") as etcd:
        port = int(etcd.address.rpartition(":")[2])
        for _ in range(2):  # the second job finds the register given back
            with (
                Node(tmp_path, 0, port, WORLD, *options) as one,
                Node(tmp_path, 1, port, WORLD, *options) as other,
            ):
                assert [one.end(), other.end()] == [0, 0], one.output + other.output
                places = [job.expect(r"The etcd at \S+ names (\S+) to") for job in (one, other)]
                assert places[0] == places[1]
                worlds = [job.expect(r"world (.*)")[0] for job in (one, other)]
                assert sorted(worlds) == ["0 0 2 1 0 2 0 2 0", "1 0 2 1 1 2 1 2 0"]
                gone(one, other)
        etcd.process.kill()
        etcd.process.wait()
        with Node(tmp_path, 0, port, WORLD, *options, "--rdzv-conf", "read_timeout=1") as job:
            assert job.end() == ExitCode.LIGHTHOUSE_UNREACHABLE
            job.expect("named no node within 1 s: etcd at .* Nothing was started")


def test_a_failure_on_the_second_node_is_counted_and_its_code_is_the_jobs(tmp_path: Path) -> None:
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "1", "--grace", "1")
    script = FAILS.replace("DIRECTORY", repr(str(tmp_path)))
    with nodes(tmp_path, script, *options) as (lead, hand):
        assert hand.end() == 3, hand.output
        assert lead.end() == 3
        assert lead.expect(r"try 0 (\d)", 2) == ["0", "1"]
        assert hand.expect(r"try 1 (\d)", 2) == ["0", "1"]
        assert "replica 0, worker 1" in lead.output
        assert f"Log on {socket.gethostname()}: " in lead.output
        gone(lead, hand)


def test_workers_and_hands_that_are_killed_begin_again_as_one_world(tmp_path: Path) -> None:
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3")
    with nodes(tmp_path, TRAINS, *options) as (lead, hand):
        hand.expect("trains 1")
        os.kill(hand.worker(0, 1), signal.SIGKILL)
        assert lead.expect(r"up 0 2 (\d)", 2) == ["0", "1"]
        assert hand.expect(r"trains 1 of (\d)", 2) == ["2", "2"]
        hand.signal(signal.SIGKILL)
        gone(hand)
        lead.expect("Node .* is lost")
        again = Node(tmp_path, 1, hand.port, TRAINS, "--node-rank", "1", *options)
        with again:
            again.expect("trains 1 of 2")
            assert lead.expect(r"up 0 2 (\d)", 3)[-1] == "2"
            for node in (lead, again):
                (node.directory / "end").touch()
            assert again.end() == 0
            assert lead.end() == 0
            gone(lead, again)


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_a_lead_that_is_killed_leaves_nothing_on_any_node(tmp_path: Path, restarts: str) -> None:
    """Without a restart left the second node ends soon; with one it waits for another lead."""
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", restarts)
    with nodes(tmp_path, TRAINS, *options) as (lead, hand):
        hand.expect("trains 1")
        lead.signal(signal.SIGKILL)
        hand.expect("The first node is lost")
        gone(lead)
        if restarts == "0":
            assert hand.end() == ExitCode.LIGHTHOUSE_UNREACHABLE
            assert "the first node of the group is gone" in hand.output
            gone(hand)
            return
        with Node(tmp_path, 0, hand.port, TRAINS, "--node-rank", "0", *options) as again:
            assert hand.expect(r"trains 1 of (\d)", 2) == ["2", "2"]
            hand.signal(signal.SIGTERM)
            assert hand.end() == again.end() == ExitCode.PREEMPTED
            assert "SIGTERM at" in again.output
            gone(again, hand)


def test_a_node_that_comes_late_makes_the_world_larger(tmp_path: Path) -> None:
    """No restart is counted, and places follow the order of arrival, without --node-rank."""
    options = ("--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "1")
    more = ("--rdzv-backend", "c10d", "--rdzv-conf", "last_call_timeout=1", "--grace", "2")
    port = free_port()
    with Node(tmp_path, 0, port, TRAINS, *options, *more) as lead:
        lead.expect("trains 0 of 1")
        with Node(tmp_path, 1, port, TRAINS, *options, *more) as hand:
            hand.expect("trains 1 of 2")
            assert lead.expect(r"up 0 2 (\d)") == ["0"]
            hand.signal(signal.SIGKILL)
            lead.expect("trains 0 of 1", 2)
            assert lead.expect(r"up 0 1 (\d)", 2) == ["0", "1"]
            gone(hand)
        (lead.directory / "end").touch()
        assert lead.end() == 0
        gone(lead)


def test_nodes_that_do_not_belong_together_are_told_so(tmp_path: Path) -> None:
    """The one that comes first waits for the node that serves the place."""
    options = ("--nnodes", "3", "--nproc-per-node", "1")
    port = free_port()
    with Node(tmp_path, 1, port, TRAINS, "--node-rank", "1", *options) as early:
        early.expect("No node answers at 127.0.0.1:")
        with Node(tmp_path, 0, port, TRAINS, "--node-rank", "0", *options) as lead:
            early.expect("The first node answers")
            two = ("--nnodes", "2", "--nproc-per-node", "1")
            with (
                Node(tmp_path, 2, port, TRAINS, "--node-rank", "1", *options) as alike,
                Node(tmp_path, 3, port, TRAINS, *options, "--job-id", "other") as other,
                Node(tmp_path, 4, port, TRAINS, *two) as smaller,
            ):
                refused = [node.end() for node in (alike, other, smaller)]
                assert refused == [ExitCode.REFUSED] * 3
                assert "--node-rank 1 is" in alike.output
                assert "belongs to another job" in other.output
                assert "its --nnodes is 2" in smaller.output
            lead.signal(signal.SIGTERM)
            assert lead.end() == early.end() == ExitCode.PREEMPTED
            gone(lead, early)


def test_nodes_that_wait_in_vain_end_with_torchruns_timeouts(tmp_path: Path) -> None:
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-conf", "timeout=2")
    with (
        Node(tmp_path, 0, free_port(), TRAINS, "--node-rank", "0", *options) as lead,
        Node(tmp_path, 1, free_port(), TRAINS, "--node-rank", "1", *options) as hand,
    ):
        assert lead.end() == ExitCode.NO_QUORUM
        assert "1 of 2 nodes have come: " in lead.output
        assert "no node has come with --node-rank 1 within 2 s" in lead.output
        assert hand.end() == ExitCode.LIGHTHOUSE_UNREACHABLE
        assert "(--rdzv-endpoint) within 2 s (Connection refused)" in hand.output
        gone(lead, hand)
