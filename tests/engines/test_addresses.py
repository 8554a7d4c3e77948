"""Agents without an engine on nodes whose /etc/hosts gives each its own name 127.0.1.1.

So does Debian. Every node has an IPv4 and an IPv6 address.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.job import DDP, TRAIN
from tests.engines.machines import Machines
from tests.engines.slurm import why_no_slurm
from tests.jobs import FTRUN, ROOT, popen
from tests.jobs.process import END_S, LOOK_S, START_S

SIX = "fd99::{}"
BIND = "[::]:29510"
V4, V6 = "10.99.0.10:29510", "[fd99::10]:29510"


class Programs:
    """ftrun's processes on machines, by name; all share a directory."""

    def __init__(self, directory: Path, machines: Machines) -> None:
        self._directory = directory
        self._machines = machines
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        (directory / "token").write_text(secrets.token_hex(32))
        (directory / "token").chmod(0o600)

    def start(self, name: str, node: int, *words: str) -> None:
        """Run ``ftrun WORDS`` on a node."""
        there = self._machines.nodes[node].inside(self._directory)
        with open(self._directory / f"{name}.log", "wb") as log:
            self.running[name] = popen(
                [*there, *FTRUN, *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={
                    **os.environ, "PYTHONPATH": str(ROOT), "STEPS": "40",
                    "XDG_STATE_HOME": str(self._directory / name),
                },
            )  # fmt: skip

    def agent(self, node: int, job: str, lighthouse: str, *more: str, script: str = TRAIN) -> str:
        """Run an agent of a job of three replicas; returns its name."""
        name = f"{job}.{len(self.running)}"
        count = ("--replicas=3", "--nodes=3", f"--job-id={job}", f"--log-dir=logs.{name}")
        where = ("--token-file=token", f"--lighthouse={lighthouse}", "--device=cpu")
        self.start(name, node, *count, *where, *more, script)
        return name

    def output(self, name: str) -> str:
        """What it has printed."""
        return (self._directory / f"{name}.log").read_text()

    def expect(self, names: list[str], pattern: str, count: int = 1) -> list[str]:
        """Wait until they have printed ``count`` matches."""
        end = time.monotonic() + START_S
        while True:
            is_over = time.monotonic() > end
            text = "\n".join(map(self.output, names))
            found = re.findall(pattern, text)
            if len(found) >= count:
                return found
            assert not is_over, f"no {count} x {pattern!r}:\n{text}"
            time.sleep(10 * LOOK_S)

    def kill(self, node: int, pid: int) -> None:
        """Kill a process by its pid on its node."""
        os.kill(self._machines.nodes[node].pid_of(pid), signal.SIGKILL)

    def end(self, name: str) -> int:
        """Wait for its end; returns the exit code."""
        return self.running[name].wait(END_S)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Three nodes, with addresses of both families."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    machines = Machines(tmp_path, 3)
    found = Programs(tmp_path, machines)
    try:
        for index in range(3):
            at = f"{SIX.format(index + 10)}/64"
            machines.ip(index, "address", "add", at, "dev", "eth0", "nodad")
            machines.start(index, ":")
        yield found
    finally:
        for process in found.running.values():
            process.kill()
            process.wait(END_S)
        machines.close()  # and all that still runs there


def test_nodes_meet_at_addresses_that_all_reach(programs: Programs) -> None:
    service = ("lighthouse", "--token-file=token", "--insecure-plaintext", "--state=state")
    programs.start("by name", 0, *service, "--bind=n0:29511")
    programs.start("lighthouse", 0, *service, f"--bind={BIND}")
    programs.expect(["lighthouse"], "lighthouse ready")

    ways = [("n0:29510",), (V6, "--interface=10.99.0.0/24"), (V4,)]
    names = [programs.agent(node, "mixed", *ways[node]) for node in range(3)]
    programs.expect(names, r"begins on n\d", 3)
    programs.expect(names, r"step 10 of 3", 3)
    assert programs.end("by name") == 2
    assert "that name is an address of the loopback interface" in programs.output("by name")
    for name in names:
        assert programs.end(name) == 0, programs.output(name)
        assert not re.search(r"Replica \d lost", programs.output(name))

    names = [programs.agent(node, "six", V6, script=DDP) for node in range(3)]
    pids = programs.expect(names[1:2], r"begins on n1 with pid (\d+)")
    programs.expect(names, "step 10: ", 3)
    programs.kill(1, int(pids[0]))
    (step,) = programs.expect(names[:1], r"healed from replicas? .*: step (\d+)")
    later = int(step) // 10 * 10 + 20
    assert len(set(programs.expect(names, rf"step {later}: (\w+)", 3))) == 1

    refused = programs.agent(1, "six", V4, script=DDP)
    assert programs.end(refused) == 76
    text = r"this node announces 10\.99\.0\.11, another one fd99::1\d, and workers at these two do"
    assert re.search(text, programs.output(refused))
