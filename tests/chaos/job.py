"""A job under chaos: agents, workers and, for several agents, a lighthouse of its own.

Every process inherits ``CHAOS_OUT``, by which it is found again. Not here: faults (faults.py).
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from ftrun import linux
from ftrun.agent import sweep
from tests.chaos.journal import last_step
from tests.chaos.processes import SOCKET_TIMEOUT, Family, command, wait

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "train.py"
START_S = 180.0
RECOVER_S = 150.0
END_S = 150.0
GONE_S = 5.0 * SOCKET_TIMEOUT
STEPS_TO_END = 30
PORTS = (10_240, 29_000)  # below those of outgoing connections, and the lighthouse's own
PORT_TRIES = 100
HEARTBEAT_TIMEOUT_S = 3.0
ISOLATION_LIMIT_S = 8.0


class Job:
    """One run's processes, its directory, and its observations and actions with times.

    ``replicas``: the number of slots. ``lost_agents``: agents that a fault has killed for good.
    """

    def __init__(self, directory: Path, replicas: int, **environment: str) -> None:
        self.directory = directory
        self.replicas = replicas
        self.out = directory / "out"
        self.out.mkdir(parents=True)
        self.began = time.monotonic()
        self.story: list[str] = []
        self.agents: list[subprocess.Popen[bytes]] = []
        self.lost_agents: set[int] = set()
        self.service: subprocess.Popen[bytes] | None = None
        self.family = Family(f"CHAOS_OUT={self.out}")
        self.environment = {
            **os.environ,
            "CHAOS_OUT": str(self.out),
            "XDG_STATE_HOME": str(directory / "state"),
            "TMPDIR": str(directory),
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        self.bystander = _stranger()
        self._service_command: list[str] = []
        self._token = directory / "token"

    # ------------------------------------------------------------ starting

    def start_agent(self, *options: str, wrap: tuple[str, ...] = (), script: str = "") -> None:
        """``ftrun run`` with the options."""
        number = len(self.agents)
        line = [*wrap, sys.executable, "-m", "ftrun", "--replicas", str(self.replicas)]
        line += ["--job-id", "chaos", "--max-restarts", "20"]
        line += ["--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S)]
        line += ["--isolation-limit", str(ISOLATION_LIMIT_S)]
        if "--log-dir" not in options:
            line += ["--log-dir", str(self.directory / f"logs{number}")]
        line += [*options, script or str(SCRIPT)]
        with open(self.directory / f"agent{number}.log", "wb") as log:
            process = subprocess.Popen(
                line,
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.agents.append(process)
        self.tell(f"agent {number} started (pid {process.pid})")

    def start_service(self, bind: str = "", wrap: tuple[str, ...] = ()) -> str:
        """A separate lighthouse; returns its address, now and after a restart."""
        bind = bind or f"127.0.0.1:{free_port()}"
        if not self._token.exists():
            self._token.touch(mode=0o600)
            self._token.write_text(secrets.token_hex(32))
        line = [*wrap, sys.executable, "-m", "ftrun", "lighthouse", "--bind", bind]
        line += ["--token-file", str(self._token), "--state-dir", str(self.service_dir)]
        line += [] if bind.startswith("127.") else ["--insecure-plaintext"]
        line += ["--http", f"127.0.0.1:{free_port()}"]
        self._service_command = line
        address, _ = self._serve()
        return address

    @property
    def service_dir(self) -> Path:
        """The state directory of the separate lighthouse."""
        return self.directory / "lighthouse"

    def restart_service(self) -> None:
        """Starts the lighthouse again, at the same address."""
        address, _ = self._serve()
        self.tell(f"the lighthouse is back at {address}")

    def agent_options(self, address: str, nodes: int) -> tuple[str, ...]:
        """Options for agents of a separate lighthouse."""
        return ("--lighthouse", address, "--nodes", str(nodes), "--token-file", str(self._token))

    def _serve(self) -> tuple[str, str]:
        """Starts it; returns its addresses for agents and for the status."""
        path = self.directory / "service.log"
        size = path.stat().st_size if path.exists() else 0
        with open(path, "ab") as log:
            self.service = subprocess.Popen(
                self._service_command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        def said() -> re.Match[str] | None:
            return re.search(
                r"agents (\S+), status http://([^/]+)/", path.read_text(errors="replace")[size:]
            )

        wait(said, "the lighthouse's address", START_S)
        found = said()
        assert found is not None
        return found[1], found[2]

    # ------------------------------------------------------------ what can be seen

    def tell(self, text: str) -> None:
        """One line of the story."""
        self.story.append(f"{time.monotonic() - self.began:7.3f}  {text}")

    def text(self) -> str:
        """The output of all agents so far."""
        logs = sorted(self.directory.glob("agent*.log"))
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def workers(self) -> dict[str, int]:
        """The newest living process of each replica that has committed a step."""
        return {replica: pid for replica, (pid, _) in self._newest().items()}

    def step(self) -> int:
        """The highest committed step of any worker."""
        return max((last_step(path) for path in self.out.glob("journal.*.*")), default=-1)

    def floor(self) -> int:
        """The step that every replica's newest process has committed, -1 while one has none."""
        return self._floor(self._newest())

    def _floor(self, newest: dict[str, tuple[int, int]]) -> int:
        if len(newest) < self.replicas:
            return -1
        return min(step for _, step in newest.values())

    def agent_of(self, pid: int) -> int:
        """The agent that a worker descends from: an index into ``agents``."""
        pids = [agent.pid for agent in self.agents]
        while pid > 1:
            if pid in pids:
                return pids.index(pid)
            row = linux.process_row(pid)
            pid = row.ppid if row is not None else 0
        return -1

    def _newest(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for path in sorted(self.out.glob("journal.*.*"), key=lambda p: p.stat().st_ctime_ns):
            _, replica, pid = path.name.split(".")
            step = last_step(path)
            if step >= 0 and command(int(pid)).startswith("ftrun worker"):
                found[replica] = int(pid), step
        return found

    # ------------------------------------------------------------ waiting and ending

    def await_members(self, timeout_s: float = START_S) -> None:
        """Until every replica commits."""
        wait(lambda: self.floor() >= 0, "every replica in a committed step", timeout_s, self._watch)
        self.tell(f"all {self.replicas} replicas commit; step {self.step()}")

    def await_recovery(self, goal: int, gone: set[int], timeout_s: float = RECOVER_S) -> float:
        """Until every replica has committed beyond ``goal`` and ``gone`` are replaced."""

        def recovered() -> bool:
            newest = self._newest()  # once: a process that ends between two checks is in neither
            return self._floor(newest) > goal and not gone & {pid for pid, _ in newest.values()}

        took = wait(recovered, f"all replicas beyond step {goal}", timeout_s, self._watch)
        self.tell(f"all replicas are beyond step {goal}")
        return took

    def pause(self, seconds: float) -> None:
        """Let time pass while faults are at work."""
        until = time.monotonic() + seconds
        wait(lambda: time.monotonic() >= until, "the time to pass", seconds + 5, self._watch)

    def end_at_a_step(self) -> list[int]:
        """Let all end at one step; the agents' exit codes."""
        (self.out / "stop.draft").write_text(f"{self.step() + STEPS_TO_END}\n")
        (self.out / "stop.draft").rename(self.out / "stop")
        self.tell("told to end")
        return self.await_end()

    def stop(self) -> list[int]:
        """SIGTERM to the agents; their exit codes."""
        for agent in self.agents:
            if agent.poll() is None:
                agent.send_signal(signal.SIGTERM)
        self.tell("SIGTERM to the agents")
        return self.await_end()

    def await_end(self) -> list[int]:
        """Until the agents have ended; their exit codes."""
        ended = lambda: all(agent.poll() is not None for agent in self.agents)  # noqa: E731
        wait(ended, "the agents' end", END_S, self._watch)
        codes = [agent.returncode for agent in self.agents]
        self.tell(f"ended with {codes}")
        return codes

    def await_nothing(self, timeout_s: float = GONE_S) -> float:
        """P1: until no process of the job is left but a separate lighthouse."""
        own = {self.service.pid} if self.service is not None else set()
        left = lambda: [row.pid for row in self.family.rows() if row.pid not in own]  # noqa: E731
        try:
            return wait(lambda: not left(), "nothing to be left", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"P1: left are {[(p, command(p)) for p in left()]}") from error

    def close(self) -> None:
        """Ends all living processes."""
        for process in [*self.agents, *([self.service] if self.service else [])]:
            if process.poll() is None:
                process.kill()
            process.wait(10)
        sweep.kill_all(self.family.rows, GONE_S)
        self.bystander.kill()
        self.bystander.wait(10)

    def remove(self) -> None:
        """The directory is of no use any more."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _watch(self) -> None:
        self.family.look_for_zombies()


def free_port() -> int:
    """A port that the kernel gives to no outgoing connection while its owner is away."""
    first, last = PORTS
    for port in random.sample(range(first, last), PORT_TRIES):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"{PORT_TRIES} ports of {PORTS} are taken")


def _stranger() -> subprocess.Popen[bytes]:
    """A process that looks like a worker in ``ps`` but is not; it ends with the test bed (P3)."""
    command_ = ["ftrun worker 0.0", "-c", "import sys; sys.stdin.read()"]
    return subprocess.Popen(
        command_, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
