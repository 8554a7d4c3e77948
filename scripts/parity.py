#!/usr/bin/env python3
"""Run the same command lines under torchrun and under ftrun and compare what came out.

Compared are the workers' lines, without prefixes and in any order, the files that they wrote, and
whether the command succeeded. Exit code 1 if a pair differs. ``--write-docs`` puts the table into
docs/TORCHRUN_REFERENCE.md. ``--nodes`` does the same with commands on two machines of their own
(tests/engines/launchers.py), which needs root. Not here: the flags one by one
(test_torchrun_parser.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "ftrun": [sys.executable, "-m", "ftrun"],
}
TIMEOUT_S = 180.0
MARKS = "<!-- {}: begin -->", "<!-- {}: end -->"
NOT_THEIRS = ("ftrun:", "W1", "E1", "I1", "W0", "E0", "I0", "  ", "*", "Setting OMP_NUM_THREADS")
"""Prefixes of a launcher's own lines."""
PREFIX = re.compile(r"^(\[[^\]]*\]:?\s?)+")

PRELUDE = """
import os
def say(*words, fd=1):  # one write for a line: workers share a terminal under torchrun
    os.write(fd, (" ".join(map(str, words)) + os.linesep).encode())
"""
RANKS = """
import os
say("rank", os.environ["RANK"], "local", os.environ["LOCAL_RANK"], "of", os.environ["WORLD_SIZE"])
"""
VARIABLES = """
import os
names = ["LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE",
         "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT",
         "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE",
         "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS"]
say(" ".join(f"{name}={os.environ[name]}" for name in names))
say(all(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE")))
"""
REDUCE = """
import sys, torch, torch.distributed as dist
method = sys.argv[1] if len(sys.argv) > 1 else "env://"
import os
dist.init_process_group("gloo", init_method=method, rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]))
one = torch.ones(1)
dist.all_reduce(one)
say("sum", one.item(), dist.is_torchelastic_launched())
dist.destroy_process_group()
"""
ARGUMENTS = "import sys; say(*sys.argv[1:], __name__)"
FIRST_PLACE = """
import os, sys
say("first", sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
"""
SIGNALS = """
import signal
numbers = signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2
say("default", [signal.getsignal(number) is signal.SIG_DFL for number in numbers])
say("blocked", signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
OTHER = """
import os, sys
say("rank", os.environ["RANK"], sys.prefix == sys.base_prefix, sys.orig_argv[1:2], *sys.argv[1:])
"""
SHELL = '#!/bin/sh\necho "shell $RANK of $WORLD_SIZE with $1"\n'
RAISES = """
import os
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("no data")
main()
"""
RESTARTS = """
import os, sys
say("start", os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["TORCHELASTIC_MAX_RESTARTS"])
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] != "2" and os.environ["RANK"] == "0")
"""
STDIN = "import sys; say('read', sys.stdin.read().split())"
SPAWN = """
import os, torch.multiprocessing as mp
def work(index, rank):
    say("child", index, "of", rank)
if __name__ == "__main__":
    mp.spawn(work, args=(os.environ["RANK"],), nprocs=2)
"""
MOVES = """
import os
os.chdir("/")
say(os.path.basename(os.path.dirname(os.path.abspath(__file__))) != "", os.path.exists(__file__))
"""
TRAINS = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
torch.manual_seed(0)
dist.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
say(f"rank {dist.get_rank()} loss {loss.item():.6f}")
dist.destroy_process_group()
"""
SEEDS = """
import random, torch, torch.distributed as dist
dist.init_process_group("gloo")
seeds = [None] * dist.get_world_size()
dist.all_gather_object(seeds, (torch.initial_seed(), random.random()))
say("own seeds", len(set(seeds)))
dist.destroy_process_group()
"""
TIMED = """
import os
from torch.distributed.elastic.timer import FileTimerClient, configure, expires
configure(FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with expires(after=600):
    say("in time", os.environ["RANK"])
"""
TWO_STREAMS = """
import os, sys
say("out", os.environ["RANK"])
say("err", os.environ["RANK"], fd=2)
"""


@dataclass(frozen=True)
class Case:
    """One command line.

    Attributes:
        options: {port} is a free port, {dir} a directory of this case.
        env: {base} is the interpreter from which this virtual environment was made.
        error_lines: the workers' standard error is compared too.
        succeeds: whether the command should succeed.
    """

    name: str
    options: str
    script: str
    args: str = ""
    file: str = "script.py"
    env: dict[str, str] = field(default_factory=dict)
    stdin: str = ""
    error_lines: bool = False
    succeeds: bool = True


CASES = (
    Case("ranks", "--nproc-per-node 2", RANKS),
    Case("underscores, standalone", "--standalone --nnodes=1 --nproc_per_node=2", RANKS),
    Case("every variable", "--nproc-per-node=2 --role=trainer", VARIABLES),
    Case("all_reduce by env://", "--nproc-per-node 2", REDUCE),
    Case(
        "all_reduce by tcp://",
        "--nproc-per-node 2 --master-addr localhost --master-port {port}",
        REDUCE,
        "tcp://localhost:{port}",
    ),
    Case(
        "c10d rendezvous",
        "--nproc-per-node 2 --nnodes 1 --rdzv-backend c10d --rdzv-endpoint localhost:{port}",
        REDUCE,
    ),
    Case("a module", "--nproc-per-node 2 -m package.module", ARGUMENTS, "--lr 0.1",
         "package/module.py"),
    Case("no Python", "--nproc-per-node 2 --no-python", SHELL, "word", "run.sh"),
    Case("another interpreter", "--nproc-per-node 2", OTHER, "word", env={"PYTHON_EXEC": "{base}"}),
    Case("run path", "--nproc-per-node 2 --run-path", ARGUMENTS, "--lr 0.1"),
    Case("PET_ variables", "", RANKS, env={"PET_NPROC_PER_NODE": "3", "PET_NNODES": "1"}),
    Case("words behind two dashes", "--nproc-per-node 1", ARGUMENTS, "-- --lr 0.1"),
    Case("the path's first place", "--nproc-per-node 1", FIRST_PLACE),
    Case("a safe path", "--nproc-per-node 1", FIRST_PLACE, env={"PYTHONSAFEPATH": "1"}),
    Case("signals at the start", "--nproc-per-node 1", SIGNALS),
    Case("a macro", "--nproc-per-node 2", ARGUMENTS, "--dir=part-${{local_rank}}"),
    Case("a worker raises", "--nproc-per-node 2", RAISES, succeeds=False),
    Case("restarts are counted", "--nproc-per-node 2 --max-restarts 3", RESTARTS),
    Case("standard input", "--nproc-per-node 1", STDIN, stdin="two words"),
    Case("multiprocessing inside", "--nproc-per-node 2", SPAWN),
    Case("a script that moves", "--nproc-per-node 1", MOVES),
    Case("DistributedDataParallel", "--nproc-per-node 2", TRAINS),
    Case("seeds of one's own", "--nproc-per-node 4", SEEDS),
    Case("redirect and tee", "--nproc-per-node 2 --log-dir {dir}/logs -r 3 -t 0:1", TWO_STREAMS,
         error_lines=True),
    Case("torch's own logs and events", "--nproc-per-node 2 --logs-specs default "
         "--event-log-handler null", RANKS),
    Case("a timer that does not run out", "--nproc-per-node 2", TIMED,
         env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}),
    Case("one rank on the terminal", "--nproc-per-node 3 --local-ranks-filter 1 -t 3", TWO_STREAMS),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The parts of a command's result that must be equal."""

    succeeded: bool
    lines: tuple[str, ...]

    def words(self) -> str:
        """One line for the table."""
        shown = "; ".join(dict.fromkeys(self.lines))
        return ("ok" if self.succeeded else "fails") + (f": {shown}" if shown else "")


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def run_case(case: Case, launcher: str, show: bool) -> Outcome:
    """Run one case under one launcher, in a separate directory."""
    with tempfile.TemporaryDirectory(prefix="parity-") as directory:
        base = Path(sys.executable).resolve()
        words = {"port": free_port(), "dir": directory, "base": base}
        path = Path(directory, case.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        prelude = "" if case.file.endswith(".sh") else PRELUDE
        path.write_text(prelude + case.script)
        path.chmod(0o755)
        target = [] if case.file.startswith("package") else [str(path)]
        options = shlex.split(case.options.format(**words))
        command = [*LAUNCHERS[launcher], *options, *target, *shlex.split(case.args.format(**words))]
        variables = {name: value.format(**words) for name, value in case.env.items()}
        path_variable = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            command, cwd=directory, input=case.stdin, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": path_variable, **variables}, timeout=TIMEOUT_S,
        )  # fmt: skip
    if show:
        print(shlex.join(command), done.returncode, done.stdout, done.stderr, sep="\n")
    text = done.stdout + (done.stderr if case.error_lines else "")
    lines = [PREFIX.sub("", line) for line in text.splitlines()]
    own = [line for line in lines if not line.startswith(NOT_THEIRS)]
    return Outcome(done.returncode == 0, tuple(sorted(line for line in own if line)))


def table_of(rows: list[tuple[Case, Outcome, Outcome]]) -> str:
    """The table of docs/TORCHRUN_REFERENCE.md."""
    lines = ["| command line | under torchrun | under ftrun |", "|---|---|---|"]
    for case, theirs, ours in rows:
        variables = " ".join(f"{name}={value}" for name, value in case.env.items())
        command = " ".join(part for part in (variables, "…", case.options, case.args) if part)
        same = "the same" if theirs == ours else f"**{_cut(ours.words())}**"
        lines.append(f"| {case.name}: `{command}` | {_cut(theirs.words())} | {same} |")
    return "\n".join(lines)


def _cut(text: str) -> str:
    text = text.replace("|", "/").replace("{{", "{").replace("}}", "}")
    return text if len(text) <= 120 else text[:117] + "…"


def write_docs(table: str, name: str) -> None:
    """Replace the table between its marks."""
    path = ROOT / "docs" / "TORCHRUN_REFERENCE.md"
    begin, end = (mark.format(name) for mark in MARKS)
    head, _, rest = path.read_text().partition(begin)
    _, _, tail = rest.partition(end)
    path.write_text(f"{head}{begin}\n{table}\n{end}{tail}")


def compare_nodes(names: list[str], writes: bool) -> int:
    """Run the cases on two machines; print the table and return the exit code."""
    sys.path.insert(0, str(ROOT))
    from tests.engines.launchers import CASES as ON_NODES
    from tests.engines.launchers import compared
    from tests.engines.machines import Machines

    cases = [case for case in ON_NODES if not names or any(x in case.name for x in names)]
    lines = ["| on two nodes | under torchrun | under ftrun |", "|---|---|---|"]
    unlike = 0
    with (
        tempfile.TemporaryDirectory(prefix="parity-") as directory,
        contextlib.closing(Machines(Path(directory), 2)) as machines,
    ):
        for index in (0, 1):
            machines.start(index, ":")
        for case, theirs, ours in compared(cases, [machines], is_new=True):
            is_so = theirs == (case.theirs or theirs) and ours == (case.ours or theirs)
            unlike += not is_so
            said = [_cut(" / ".join(both).strip()) for both in (theirs, ours)]
            same = "the same" if ours == theirs else f"**{said[1]}**: {case.why}"
            command = " … ".join(part for part in (case.options, *case.own) if part)
            lines.append(f"| {case.name}: `{command}` | {said[0]} | {same} |")
            print(
                lines[-1] if is_so else f"NOT AS EXPECTED {case.name}: {theirs} {ours}", flush=True
            )
    print(f"{len(cases) - unlike} of {len(cases)} are as expected")
    if writes:
        write_docs("\n".join(lines), "nodes")
    return 1 if unlike else 0


def main() -> int:
    """Run all cases, print the table, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="words of the names of the cases to run")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--show", action="store_true", help="print all output")
    parser.add_argument("--nodes", action="store_true", help="the cases on two nodes")
    options = parser.parse_args()
    if options.nodes:
        return compare_nodes(options.names, options.write_docs)
    rows, unlike = [], 0
    for case in CASES:
        if options.names and not any(name in case.name for name in options.names):
            continue
        theirs, ours = (run_case(case, launcher, options.show) for launcher in LAUNCHERS)
        rows.append((case, theirs, ours))
        is_equal = theirs == ours and ours.succeeded == case.succeeds
        unlike += not is_equal
        verdict = "equal" if is_equal else "DIFFERENT"
        print(f"{verdict:9} {case.name}: {theirs.words()}", flush=True)
        if not is_equal:
            print(f"          ftrun: {ours.words()}", flush=True)
    print(f"{len(rows) - unlike} of {len(rows)} are equal")
    if options.write_docs:
        write_docs(table_of(rows), "parity")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
