"""torchrun's command on two machines, under both launchers: the result on each machine.

Compared are each node's exit code and its workers' output, in any order. Each intended difference
has its reason here, in the words of docs/TORCHRUN_REFERENCE.md#several-nodes.

Not here: one node (scripts/parity.py, which prints this table too with ``--nodes``).
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.engines.machines import Machines
from tests.jobs.job import FTRUN, THIS_TREE
from tests.jobs.process import Process

END_S = 150.0
Outcome = tuple[str, str]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
LAUNCHERS = {"torchrun": TORCHRUN, "ftrun": (*FTRUN, "--device", "cpu")}
PRELUDE = """
import os, sys, time
name = os.environ.get
rank, count = name("RANK"), name("TORCHELASTIC_RESTART_COUNT")
def say(*words):  # one write, which no neighbour splits
    os.write(1, (" ".join(["said", *map(str, words)]) + os.linesep).encode())
here = os.path.dirname(os.path.abspath(__file__))
def count_of(begins):
    return sum(file.startswith(begins) for file in os.listdir(here))
def failures():
    return count_of("failed")
before = failures()
open(os.path.join(here, f"begun-{rank}-{time.time_ns()}"), "w").close()
def both_begin():  # of two workers, in this round
    while count_of("begun") < 2 * (before + 1):
        time.sleep(0.02)
def stay():  # until the launcher or the test ends it, or a peer fails, as in a collective
    while not os.path.exists(os.path.join(here, "end")):
        if failures() > before:
            time.sleep(4)  # the failed one's exit code is the first
            sys.exit(1)
        time.sleep(0.05)
def fail():
    both_begin()
    open(os.path.join(here, f"failed-{time.time_ns()}"), "w").close()
    sys.exit(3)
"""
VARIABLES = """
import torch, torch.distributed as dist
names = ["RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE",
         "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS",
         "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS",
         "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"]
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
say(*[f"{each}={name(each)}" for each in names], "sum", one.item())
dist.barrier()
dist.destroy_process_group()
"""
PORT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://10.99.0.10:29511", rank=int(rank),
                        world_size=int(name("WORLD_SIZE")))
one = torch.ones(1)
dist.all_reduce(one)
say(rank, name("MASTER_ADDR"), name("MASTER_PORT"), "sum", one.item())
dist.barrier()
dist.destroy_process_group()
"""
FAILS = """
say("try", rank, "restart", count)
fail() if rank == "1" else stay()
"""
FAILS_ONCE = """
say("try", rank, "of", name("WORLD_SIZE"), "restart", count)
if not before:
    fail() if rank == "1" else stay()
both_begin()
"""
SIZES = """
say("of", name("WORLD_SIZE"), "rank", rank)
stay()
"""


@dataclass(frozen=True)
class Case:
    """One command on two nodes.

    ``own``: the options of each node alone. ``late``: the output of the first node's workers at
    which the second node starts. ``then``: the signal that the second launcher gets, and the output
    of all workers before it. ``ends``: the output, by node, before which the job may not end.
    ``theirs``: the result under torchrun, if it is known; ``ours``: the result under ftrun, if it
    differs, with ``why``.
    """

    name: str
    options: str
    script: str
    own: tuple[str, str] = ("--node-rank 0", "--node-rank 1")
    late: str = ""
    then: tuple[int, str] | None = None
    ends: tuple[int, str] | None = None
    theirs: tuple[str, str] | None = None
    ours: tuple[str, str] | None = None
    why: str = ""


C10D = "--rdzv-backend c10d --rdzv-endpoint n0:29400"
STATIC = "--master-addr 10.99.0.10 --master-port 29511"
TWO = "--nnodes 2 --nproc-per-node 1"
MANY = "--nnodes 2 --nproc-per-node 2 --role trainer --rdzv-id job"
SIZED = f"--nnodes 1:2 --nproc-per-node 1 {C10D} --rdzv-conf last_call_timeout=2"
CODE = "the exit code is that of the first failure"
ONCE = (
    "0: try 0 of 2 restart 0; try 0 of 2 restart 1", "0: try 1 of 2 restart 0; try 1 of 2 restart 1"
)  # fmt: skip
CASES = (
    Case("variables, c10d", f"{MANY} {C10D}", VARIABLES),
    Case("variables, static", f"{MANY} {STATIC}", VARIABLES),
    Case(
        "the port of --master-port",
        f"{TWO} {STATIC}",
        PORT,
        theirs=("0: 0 10.99.0.10 29511 sum 2.0", "0: 1 10.99.0.10 29511 sum 2.0"),
    ),
    Case(
        "a worker fails, static",
        f"{TWO} {STATIC}",
        FAILS,
        theirs=("1: try 0 restart 0", "1: try 1 restart 0"),
        ours=("3: try 0 restart 0", "3: try 1 restart 0"),
        why=CODE,
    ),
    Case(
        "restarts are used up",
        f"{TWO} {C10D} --max-restarts 1",
        FAILS,
        theirs=("1: try 0 restart 0; try 0 restart 0", "1: try 1 restart 0; try 1 restart 1"),
        ours=("3: try 0 restart 0; try 0 restart 1", "3: try 1 restart 0; try 1 restart 1"),
        why=f"{CODE}; a restart counts on every node",
    ),
    Case(
        "a worker fails once",
        f"{TWO} {C10D} --max-restarts 2",
        FAILS_ONCE,
        theirs=("0: try 0 of 2 restart 0; try 0 of 2 restart 0", ONCE[1]),
        ours=ONCE,
        why="a restart counts on every node",
    ),
    Case(
        "a worker fails once, static", f"{TWO} {STATIC} --max-restarts 2", FAILS_ONCE, theirs=ONCE
    ),
    Case(
        "a late node",
        SIZED,
        SIZES,
        late="of 1",
        ends=(1, "of 2"),
        theirs=("0: of 1 rank 0; of 2 rank 0", "0: of 2 rank 1"),
    ),
    Case(
        "a node is killed",
        f"{SIZED} --max-restarts 1",
        SIZES,
        then=(signal.SIGKILL, "of 2"),
        ends=(0, "of 1"),
        theirs=("0: of 1 rank 0; of 2 rank 0", "-9: of 2 rank 1"),
    ),
    Case(
        "SIGTERM to a node",
        f"{TWO} {C10D}",
        SIZES,
        then=(signal.SIGTERM, "of 2"),
        theirs=("1: of 2 rank 0", "1: of 2 rank 1"),
        ours=("75: of 2 rank 0", "75: of 2 rank 1"),
        why="the whole group is asked to stop; 75: the job can go on later",
    ),
    Case(
        "etcd-v2",
        f"{TWO} --rdzv-backend etcd-v2 --rdzv-endpoint n0:2379 --rdzv-conf read_timeout=2",
        SIZES,
        theirs=("1: ", "1: "),
        ours=("71: ", "71: "),
        why="there is no etcd here, and torchrun has no client for one",
    ),
    Case(
        "etcd, standalone",
        "--standalone --nproc-per-node 1 --rdzv-backend etcd",
        SIZES,
        own=("", ""),
        ends=(1, "of 1"),
        theirs=("0: of 1 rank 0", "0: of 1 rank 0"),
    ),
)


def compared(
    cases: Sequence[Case], networks: Sequence[Machines], *, is_new: bool
) -> Iterator[tuple[Case, Outcome, Outcome]]:
    """Each case with its results under torchrun and under ftrun.

    Args:
        cases: they run side by side, because they mostly wait.
        networks: one for each running case, which uses its first two machines.
        is_new: run also the cases under torchrun whose result is known.
    """
    free: SimpleQueue[Machines] = SimpleQueue()
    for machines in networks:
        free.put(machines)

    def outcomes(number: int) -> tuple[Case, Outcome, Outcome]:
        case, machines = cases[number], free.get()
        try:
            theirs = case.theirs
            if theirs is None or is_new:
                theirs = run_case(case, "torchrun", machines, Path(directory, f"theirs-{number}"))
            ours = run_case(case, "ftrun", machines, Path(directory, f"ours-{number}"))
        finally:
            free.put(machines)
        return case, theirs, ours

    with (
        tempfile.TemporaryDirectory(prefix="launchers-") as directory,
        ThreadPoolExecutor(len(networks)) as pool,
    ):
        yield from pool.map(outcomes, range(len(cases)))


def run_case(case: Case, launcher: str, machines: Machines, directory: Path) -> Outcome:
    """The exit code and the workers' output of each node."""
    directory.mkdir()
    script = directory / "script.py"
    script.write_text(PRELUDE + case.script)
    environment = {**os.environ, **THIS_TREE, "TMPDIR": str(directory), "HOME": str(directory)}
    if launcher == "torchrun":  # its workers would meet at the loopback addresses of their names
        environment["GLOO_SOCKET_IFNAME"] = "eth0"
        if case.late or case.then:  # else no node of torch 2.13 finds the others in a second round
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    running: list[Process] = []
    try:
        for index in (0, 1):
            words = [*LAUNCHERS[launcher], *shlex.split(f"{case.options} {case.own[index]}")]
            if launcher == "torchrun":
                words += ["--local-addr", machines.addresses[index]]
            line = [*machines.nodes[index].inside(), *words, str(script)]
            running.append(Process(line, directory, environment, fresh=False))
            if index == 0 and case.late:
                running[0].expect(f"said .*{case.late}")
        if case.then:
            number, pattern = case.then
            for process in running:
                process.expect(f"said .*{pattern}")
            for pid, title in machines.nodes[1].processes().items():
                if "--nnodes" in title and "nsenter" not in title:
                    os.kill(pid, number)
            running[1].process.wait(END_S)  # its orphans keep its output open
            (directory / "failed").touch()
        if case.ends:
            at, pattern = case.ends
            running[at].expect(f"said .*{pattern}", timeout_s=END_S)
            (directory / "end").touch()
        first, second = map(_outcome, running)
        return first, second
    except AssertionError as error:
        raise AssertionError("\n".join(process.output for process in running)) from error
    finally:
        (directory / "end").touch()
        for index in (0, 1):
            for pid in machines.nodes[index].processes():
                os.kill(pid, signal.SIGKILL)
        for process in running:
            process.close()


def _outcome(process: Process) -> str:
    code = process.end(END_S)
    said = sorted(re.findall(r"^(?:\[[^\]]*\]:? ?)*said (.*)", process.output, re.MULTILINE))
    return f"{code}: {'; '.join(said)}"
